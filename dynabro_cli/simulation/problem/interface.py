"""Interface of problems: to the loop, a network on images and an objective look the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from dynabro_cli.components.methods._api import NOISE_COMPUTATIONS
from dynabro_cli.components.switching._api import Switching
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.vectors.lengths import lengths
from dynabro_cli.core.vectors.means import weighted
from dynabro_cli.gradients.graphs import on_device

STATISTICS_MOMENTUM = 0.1
MOST_COMPUTATIONS = 32
"""Computations of the longest round that becomes a CUDA graph; a longer one keeps the GPU busy."""
NOISE_ROUND = 2**40  # the counter of the draws that measure V, larger than any round's counter

Relabel = Callable[[Tensor, int, int], Tensor]
"""Function of the labels [m, B] of the workers' mini-batches, the computation's counter within the
round, and the number of classes. It returns the labels that gradients are computed with.
"""
Draws = tuple[Any, ...]
"""Random numbers of gradient computations: tuples of tensors and constants, which the problem
makes on the CPU and reads on its device.
"""


class Score(NamedTuple):
    """Scores of an evaluation; a score is None if the task does not have it."""

    accuracy: float | None
    loss: float | None
    gap: float | None


class Observed(NamedTuple):
    """Sums over a worker's gradient computations: of losses [m] and batch statistics [m, s], and
    their number [m].
    """

    losses: Tensor
    statistics: Tensor
    counts: Tensor


class Problem(Protocol):
    """Interface of a problem.

    Attributes:
        x: The model x_t, [d]; the loop updates it in place.
        buffers: Running statistics kept by the server, [s]; empty if the model has none.
    """

    x: Tensor
    buffers: Tensor

    @property
    def how(self) -> dict[str, object]:
        """The current way of computing gradients, for the record of the run."""
        ...

    def draw(self, round_: int, computations: Sequence[int], workers: Tensor | None) -> Draws:
        """Draw the random numbers of ``computations`` of ``workers``.

        Args:
            round_: The counter of the round, which determines the mini-batches.
            computations: The counters of the computations within the round.
            workers: The numbers of k workers, [k], on the CPU; None for the server.
        """
        ...

    def gradients(
        self, draws: Draws, total: Tensor | None, relabel: Relabel | None = None
    ) -> Tensor:
        """Add mini-batch gradients of k workers at x_t to k rows of a matrix.

        Args:
            draws: The draws for the workers' computations.
            total: The matrix [m, d]; None (only with one computation) for a buffer that the next
                call overwrites.
            relabel: Changes the labels if all m workers compute; None for the labels of the data.

        Returns:
            ``total``, or the buffer; its first k rows belong to the workers.
        """
        ...

    def sum_gradients(
        self,
        round_: int,
        computations: Sequence[int],
        workers: Tensor,
        total: Tensor | None,
        relabel: Relabel | None = None,
    ) -> Tensor:
        """Draw and compute ``gradients`` of one mini-batch for each of ``computations``."""
        draws = on_device(self.draw(round_, computations, workers), self.x.device)
        return self.gradients(draws, total, relabel)

    def large_gradients(self, round_: int, batches: int, relabel: Relabel | None = None) -> Tensor:
        """Return every worker's mean gradient over ``batches`` mini-batches at x_t, [m, d].

        If these make up all training samples of a worker (on average, if workers have different
        samples), each sample is used once, unchanged; otherwise the mini-batches are drawn as
        usual. ``relabel`` is the same as in ``sum_gradients``.
        """
        ...

    def server_gradient(self, draws: Draws) -> Tensor:
        """Return the sum of the server's own gradients at x_t, [d]: one mini-batch of its samples
        for each computation.

        They are not observed. The buffer that ``gradients`` returns may be overwritten.
        """
        ...

    def observed(self) -> Observed | None:
        """Return the observations since they were last set to 0, by ``forget``; their places in
        memory never change. None if the problem has no losses.
        """
        ...

    def graph_need(self) -> float | str:
        """Return the bytes that a round's gradients need in a CUDA graph, or the reason why graphs
        do not serve the problem.
        """
        ...

    def project(self) -> None:
        """Project x_t onto the domain K, in place."""
        ...

    def evaluate(self) -> Score:
        """Evaluate x_t on the test set, or its gap."""
        ...

    def validate(self) -> Score | None:
        """Evaluate x_t on the held-out samples; return None without held-out samples."""
        ...

    def metrics(self) -> tuple[tuple[str, float], ...]:
        """Return the numbers that plugins' functions measure on the test set, by name."""
        ...

    def weights(self) -> dict[str, Tensor]:
        """Return the parameters and buffers of the model by name, as ``load_state_dict`` reads
        them.
        """
        ...

    def squared_gradient(self) -> Tensor | None:
        """Return |grad f(x_t)|^2, a tensor of one number; None if f is not known."""
        ...


def forget(problem: Problem) -> None:
    """Set the observations to 0, as at the start of a round."""
    for observations in problem.observed() or ():
        observations.zero_()


def mean_gradients(
    problem: Problem, round_: int, batches: int, workers: int, relabel: Relabel | None
) -> Tensor:
    """Return the mean gradients of all workers over ``batches`` mini-batches, [m, d]."""
    total = problem.x.new_zeros(workers, problem.x.numel())
    return (
        problem.sum_gradients(round_, range(batches), torch.arange(workers), total, relabel)
        / batches
    )


def measure_noise(problem: Problem, switching: Switching) -> float:
    """Return V, the largest deviation of an honest one-batch gradient from the honest mean, over
    some draws at x_1.

    Spends ``NOISE_COMPUTATIONS`` gradient computations of each worker.

    Raises:
        SpecError: The gradients have no noise, or fewer than two workers are honest at the start.
    """
    largest = 0.0
    for computation in range(NOISE_COMPUTATIONS):
        computed = (~switching.mask(0)).nonzero()[:, 0]
        honest = problem.sum_gradients(NOISE_ROUND, (computation,), computed, None)[: len(computed)]
        if len(honest):
            largest = max(
                largest,
                float(lengths(honest - weighted(honest, honest.new_ones(len(honest)))).max()),
            )
    if not largest > 0:
        raise SpecError(
            "noise_bound=auto found no noise among the honest workers at the start. Try: "
            "noise_bound=V"
        )
    return largest
