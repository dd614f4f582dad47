"""Mini-batches of images: the samples, flips and seeds of dropout of gradient computations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dynabro_cli.core.streams import Name, Streams
from dynabro_cli.gradients.engine import SHARED, WorkerGradients
from dynabro_cli.simulation.problem.shares import Shares

# the counter of the batch for trying the gradients, larger than any round's counter
TRIAL_ROUND = 2**41


class MiniBatches(NamedTuple):
    """Mini-batches of gradient computations that share a pass.

    Attributes:
        computations: Their n counters within the round.
        samples: Indices of the samples of k mini-batches after one another, [k, n B].
        flips: The mask of the images to flip, [k, n B]; None if the task does not flip.
        seeds: The seeds of dropout [k n], for the shared pass of a GPU a tensor; empty without
            dropout.
        rows: Where the results of the k workers belong, see ``ImageProblem._add_rows``; None if all
            workers are computed, and for the server.
    """

    computations: tuple[int, ...]
    samples: Tensor
    flips: Tensor | None
    seeds: Sequence[int] | Tensor
    rows: Tensor | None


class BatchSource:
    """Source of mini-batches of the workers and of the server.

    Args:
        streams: Random streams of batches, flips and dropout.
        workers: m.
        batch_size: B.
        engine: The engine, which says if dropout needs seeds, and where.
        samples: The samples of each worker, or the number of samples that every worker has.
        server_samples: The number of samples of the server.
        device: The device of the computations.
        flip: Draw a mask of images to flip.
    """

    def __init__(
        self,
        streams: Streams,
        workers: int,
        batch_size: int,
        engine: WorkerGradients,
        samples: Shares | int,
        server_samples: int,
        device: torch.device,
        *,
        flip: bool,
    ) -> None:
        self._streams, self._workers, self._batch_size = streams, workers, batch_size
        self._engine, self._device, self._flip = engine, device, flip
        self._samples, self._server_samples = samples, server_samples

    def of_workers(
        self, round_: int, computations: tuple[int, ...], workers: Tensor
    ) -> MiniBatches:
        """Draw mini-batches of ``workers``, uniformly with replacement."""
        samples_of = self._samples
        shape = self._workers, self._batch_size

        def all_of(name: Name, from_: Callable[[np.random.Generator], np.ndarray]) -> Tensor:
            drawn = [from_(self._streams.moved(name, round_, number)) for number in computations]
            rows = torch.from_numpy(drawn[0] if len(drawn) == 1 else np.concatenate(drawn, axis=1))
            return rows if len(workers) == len(rows) else rows[workers]

        if isinstance(samples_of, int):
            samples = all_of("data", lambda generator: generator.integers(samples_of, size=shape))
        else:
            samples = all_of("data", lambda generator: samples_of.draw(generator, self._batch_size))
        flips = (
            all_of("augment", lambda generator: generator.random(shape) < 0.5)
            if self._flip
            else None
        )
        seeds = self.seeds(round_, computations, workers)
        return MiniBatches(computations, samples, flips, seeds, self._rows(workers))

    def seeds(
        self, round_: int, computations: Sequence[int], workers: Tensor
    ) -> Sequence[int] | Tensor:
        """Return the seeds of dropout of each worker's computations, independent of other workers
        and of the pass.
        """
        # the trial finds out if ``forward`` draws
        if not self._engine.random and round_ != TRIAL_ROUND:
            return ()
        drawn = [
            self._streams.moved("dropout", round_, number).integers(2**63, size=self._workers)
            for number in computations
        ]
        return self._given(torch.from_numpy(np.stack(drawn, axis=1))[workers].flatten())

    def _given(self, seeds: Tensor) -> Sequence[int] | Tensor:
        """Return the seeds as the engine takes them: a GPU's shared pass draws on the GPU."""
        on_gpu = self._device.type == "cuda" and self._engine.kind == SHARED
        return seeds if on_gpu else seeds.tolist()

    def of_server(self, round_: int, computations: tuple[int, ...]) -> MiniBatches:
        """Draw mini-batches of the server."""
        size, samples = self._batch_size, self._server_samples
        places, flips, seeds = list[np.ndarray](), list[np.ndarray](), list[int]()
        for computation in computations:
            generator = self._streams.moved("server", round_, computation)
            places.append(generator.integers(samples, size=size))
            flips.append(generator.random(size) < 0.5)
            seeds.append(int(generator.integers(2**63)))
        first, second = (torch.from_numpy(np.concatenate(drawn))[None] for drawn in (places, flips))
        return MiniBatches(
            computations,
            first,
            second if self._flip else None,
            self._given(torch.tensor(seeds)) if self._engine.random else (),
            None,
        )

    def _rows(self, workers: Tensor) -> Tensor | None:
        """Return where ``ImageProblem._add_rows`` adds results of the ``workers``: on a CPU their
        numbers; on a GPU each worker's row, or the last row, of zeros, for other workers.
        """
        k = len(workers)
        if self._device.type == "cpu":
            return workers
        if k == self._workers:
            return None
        return torch.full((self._workers,), k).index_copy_(0, workers, torch.arange(k))
