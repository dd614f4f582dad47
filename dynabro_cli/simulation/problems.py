"""What the loop needs of what it trains: a network on images and an objective look the same to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

STATISTICS_MOMENTUM = 0.1

Relabel = Callable[[Tensor, int, int], Tensor]
"""Maps the labels [m, B] of the workers' mini-batches, the computation's counter within the round, and the number of classes to
the labels that gradients are computed with."""


class Score(NamedTuple):
    """What an evaluation finds; None where the task has no such number."""

    accuracy: float | None
    loss: float | None
    gap: float | None


class Observed(NamedTuple):
    """Sums over a worker's gradient computations: of losses [m] and batch statistics [m, s], and their number [m]."""

    losses: Tensor
    statistics: Tensor
    counts: Tensor


class Problem(Protocol):
    """What the loop needs of a task.

    Attributes:
        x: The model x_t, [d]; the loop updates it in place.
        buffers: Running statistics kept by the server, [s]; empty where the model has none.
        how: How gradients are computed, for the record of the run.
    """

    x: Tensor
    buffers: Tensor
    how: dict[str, object]

    def sum_gradients(
        self,
        round_: int,
        computations: Sequence[int],
        workers: Tensor,
        total: Tensor | None,
        relabel: Relabel | None = None,
    ) -> Tensor:
        """Add mini-batch gradients of k ``workers`` at x_t, one for each of ``computations``, to k rows of a matrix.

        Args:
            round_: The counter of the round, which the mini-batches depend on.
            computations: The counters of the computations within the round, at least one.
            workers: The numbers of the workers, [k], on the CPU.
            total: [m, d]; None, with one computation, for a buffer that the next call overwrites.
            relabel: Changes labels, where all m workers compute; None for the labels of the data.

        Returns:
            ``total``, or that buffer; its first k rows are those of ``workers``.
        """
        ...

    def large_gradients(self, round_: int, batches: int, relabel: Relabel | None = None) -> Tensor:
        """Every worker's mean gradient over so many mini-batches at x_t, [m, d].

        Where that is what all training samples of a worker make (on average, where workers have their own), each is taken once,
        as it is; else the mini-batches are drawn as usual. ``relabel`` is that of ``sum_gradients``.
        """
        ...

    def observed(self) -> Observed | None:
        """What was seen since the last call; None where the problem has no losses."""
        ...

    def project(self) -> None:
        """Project x_t onto the domain K, in place."""
        ...

    def evaluate(self) -> Score:
        """Evaluate x_t on the test set, or its gap."""
        ...

    def validate(self) -> Score | None:
        """Evaluate x_t on the samples that are held out of training; None where none are."""
        ...

    def squared_gradient(self) -> Tensor | None:
        """|grad f(x_t)|^2, a tensor of one number; None where f is not known."""
        ...


def mean_gradients(problem: Problem, round_: int, batches: int, workers: int, relabel: Relabel | None) -> Tensor:
    """The mean gradients of all workers over so many mini-batches, [m, d]."""
    total = problem.x.new_zeros(workers, problem.x.numel())
    return problem.sum_gradients(round_, range(batches), torch.arange(workers), total, relabel) / batches
