"""A network on images, as the loop trains it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dynabro_cli.errors import PluginError
from dynabro_cli.gradients.engine import SHARED, WorkerGradients, parts
from dynabro_cli.gradients.graphs import GraphedGradients
from dynabro_cli.gradients.memory import Ahead, send, send_once
from dynabro_cli.models._api import METRICS, LabelledInputs
from dynabro_cli.simulation.problem.interface import Observed, Relabel, Score, mean_gradients
from dynabro_cli.simulation.problem.shares import Labelled, Shares
from dynabro_cli.streams import Name, Streams
from dynabro_cli.tasks._api import Images

# input values at a time on a CPU, where small batches stay in the cache
EVALUATION_VALUES = 100_000
# bytes kept by computations that share a pass on a CPU, because small operations cost time
TOGETHER = 32 << 20
# input values of a training set that is normalised once on a CPU, not batch by batch
NORMALISED_VALUES = 1 << 20
# the counter of the batch for trying the gradients, larger than any round's counter
TRIAL_ROUND = 2**41


class ImageProblem:
    """A network trained on images that live on the device as uint8.

    Args:
        images: The data.
        model: The network, initialised, on the device.
        workers: m.
        batch_size: B.
        streams: Random streams of batches, flips and dropout.
        device: The device of all tensors.
        dtype: The type of numbers in forward and backward passes.
        shares: The samples of each worker; None if every worker has all samples.
        held_out: Samples that are not in the training set, for evaluation.
        server: Samples of the server, which are not in the training set; None if it has none.
        compile: Compile kernels: ``on``, ``off`` or ``auto``.
        budget: Gradient computations per worker in the whole run; ``auto`` depends on it.
        compare: Compare the ways of computing gradients before the first one; see
            ``WorkerGradients``.
    """

    def __init__(
        self,
        images: Images,
        model: nn.Module,
        workers: int,
        batch_size: int,
        streams: Streams,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        shares: Shares | None = None,
        held_out: Labelled | None = None,
        server: Labelled | None = None,
        *,
        compile: str = "off",  # noqa: A002
        budget: int = 0,
        compare: bool = True,
    ) -> None:
        self._images, self._shares = images, shares
        self._train = images.train_images.to(device), images.train_labels.to(device)
        self._test = images.test_images.to(device), images.test_labels.to(device)
        self._held_out = (
            None if held_out is None else (held_out[0].to(device), held_out[1].to(device))
        )
        self._server = None if server is None else (server[0].to(device), server[1].to(device))
        scale = torch.tensor(images.std, device=device).mul(images.scale)
        self._gain = (1 / scale)[:, None, None]
        self._offset = (-torch.tensor(images.mean, device=device) * images.scale / scale)[
            :, None, None
        ]
        small = device.type == "cpu" and self._train[0].numel() <= NORMALISED_VALUES
        self._inputs = self._normalise(self._train[0]) if small else None
        samples = budget * workers * batch_size
        self._engine = WorkerGradients(
            model, workers, dtype=dtype, compile=compile, samples=samples, compare=compare
        )
        self._compute = GraphedGradients(self._engine) if device.type == "cuda" else self._engine
        self._workers, self._batch_size = workers, batch_size
        self._streams, self._device = streams, device
        self._ahead = Ahead(device) if device.type == "cuda" else None
        self.x, self.buffers = self._engine.parameters, self._engine.buffers
        self._losses = self.x.new_zeros(workers)
        self._counts = self.x.new_zeros(workers)
        self._statistics = torch.zeros_like(self._engine.statistics)
        self.sum_gradients(TRIAL_ROUND, (0,), torch.arange(workers), None)
        self.observed()

    @property
    def how(self) -> dict[str, object]:
        engine, graphed = self._engine, self._compute
        words: dict[str, object] = {
            "gradients": engine.kind,
            "pass_values": engine.pass_values or None,
            "blocks": engine.blocks,
        }
        if engine.reason:
            words["gradients_reason"] = engine.reason
        return words | ({"graphs": graphed.state} if isinstance(graphed, GraphedGradients) else {})

    def _normalise(self, pixels: Tensor) -> Tensor:
        return torch.addcmul(self._offset, pixels.to(self._gain.dtype), self._gain)

    def _batches(
        self, round_: int, computations: Sequence[int], workers: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return mini-batches of ``workers``, drawn uniformly with replacement: [k, n B, c, h, w]
        and [k, n B].

        A worker's mini-batches of the n ``computations`` follow one another.
        """
        images, labels = self._train
        shape, shares = (self._workers, self._batch_size), self._shares

        def draw(name: Name, from_: Callable[[np.random.Generator], np.ndarray]) -> Tensor:
            if self._is_ahead(round_, computations):
                return self._of_round(name, round_, workers, from_)
            parts = [
                from_(self._streams.moved(name, round_, computation))
                for computation in computations
            ]
            drawn = torch.from_numpy(parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1))
            return send(drawn if len(workers) == len(drawn) else drawn[workers], self._device)

        if shares is None:
            indices = draw("data", lambda generator: generator.integers(len(labels), size=shape))
        else:
            indices = draw("data", lambda generator: shares.draw(generator, self._batch_size))
        chosen = indices.flatten()
        pixels = (
            self._normalise(images[chosen])
            if self._inputs is None
            else self._inputs.index_select(0, chosen)
        )
        if self._images.flip:
            flips = draw("augment", lambda generator: generator.random(shape) < 0.5).flatten()
            pixels = torch.where(flips[:, None, None, None], pixels.flip(-1), pixels)
        return pixels.view(*indices.shape, *pixels.shape[1:]), labels[indices]

    def _is_ahead(self, round_: int, computations: Sequence[int]) -> bool:
        """Return True if the draws for these computations are sent to the device together with
        draws of later rounds.
        """
        return self._ahead is not None and tuple(computations) == (0,) and round_ != TRIAL_ROUND

    def _of_round(
        self,
        name: Name,
        round_: int,
        workers: Tensor,
        from_: Callable[[np.random.Generator], np.ndarray],
    ) -> Tensor:
        """Return the draws of the round's first computation, on the device, for ``workers``."""
        drawn = cast(Ahead, self._ahead).of(
            name, round_, lambda later: from_(self._streams.moved(name, later, 0))
        )
        return (
            drawn
            if len(workers) == len(drawn)
            else drawn.index_select(0, send_once(workers, self._device))
        )

    def _seeds(
        self, round_: int, computations: Sequence[int], workers: Tensor
    ) -> Sequence[int] | Tensor:
        """Return the seeds of dropout of each worker's computations, independent of other workers
        and of the pass.
        """
        # the trial finds out if ``forward`` draws
        if not self._engine.random and round_ != TRIAL_ROUND:
            return []
        if self._is_ahead(round_, computations) and self._engine.kind == SHARED:
            return self._of_round(
                "dropout",
                round_,
                workers,
                lambda generator: generator.integers(2**63, size=self._workers),
            )
        drawn = [
            self._streams.moved("dropout", round_, c).integers(2**63, size=self._workers)
            for c in computations
        ]
        return [int(seeds[worker]) for worker in workers.tolist() for seeds in drawn]

    def sum_gradients(
        self,
        round_: int,
        computations: Sequence[int],
        workers: Tensor,
        total: Tensor | None,
        relabel: Relabel | None = None,
    ) -> Tensor:
        k, step, add = len(workers), self._computations_a_pass(len(workers)), self._adding(workers)
        for some in parts(len(computations), step, self._device):
            part = computations[some]
            n = len(part)
            inputs, labels = self._batches(round_, part, workers)
            if relabel is not None:
                classes, of_computation = self._images.shape.classes, labels.chunk(n, 1)
                labels = torch.cat(
                    [
                        relabel(y, computation, classes)
                        for y, computation in zip(of_computation, part, strict=True)
                    ],
                    1,
                )
            losses = self._compute(inputs, labels, n, self._seeds(round_, part, workers))
            add(self._losses, losses, n)
            add(self._counts, torch.ones_like(losses), n)
            if self._statistics.numel():
                add(self._statistics, self._engine.statistics[:k], n)
            if total is not None:
                total[:k].add_(self._engine.matrix[:k], alpha=n)
        return self._engine.matrix if total is None else total

    def _adding(self, workers: Tensor) -> Callable[[Tensor, Tensor, int], object]:
        """Return a function that adds n times the rows [k, ...] of ``workers`` to rows of a sum [m,
        ...].

        ``index_add_`` sorts on a GPU if it must be deterministic; a plain sum does not.
        """
        k = len(workers)
        if self._device.type == "cpu":
            return lambda total, rows, n: total.index_add_(0, workers, rows, alpha=n)
        if k == self._workers:
            return lambda total, rows, n: total.add_(rows, alpha=n)
        places_on_host = torch.full((self._workers,), k).index_copy_(0, workers, torch.arange(k))
        # the place of each worker's row; for other workers the last row, of zeros
        places = send_once(places_on_host, self._device)

        def add(total: Tensor, rows: Tensor, n: int) -> Tensor:
            padded = torch.cat([rows, rows.new_zeros(1, *rows.shape[1:])])
            return total.add_(padded.index_select(0, places), alpha=n)

        return add

    def server_gradient(self, round_: int, computations: Sequence[int]) -> Tensor:
        images, labels = cast(Labelled, self._server)
        total, step = torch.zeros_like(self.x), self._computations_a_pass(1)
        for some in parts(len(computations), step, self._device):
            part = computations[some]
            places, flips, seeds = self._of_server(round_, part)
            pixels = self._normalise(images[places])
            if self._images.flip:
                pixels = torch.where(flips[:, None, None, None], pixels.flip(-1), pixels)
            self._compute(
                pixels[None], labels[places][None], len(part), seeds if self._engine.random else []
            )
            total.add_(self._engine.matrix[0], alpha=len(part))
        return total

    def _of_server(
        self, round_: int, computations: Sequence[int]
    ) -> tuple[Tensor, Tensor, list[int]]:
        """Return the server's draws: sample indices and flips of its mini-batches, [n B], and the
        seeds of dropout, [n].
        """
        size, samples = self._batch_size, len(cast(Labelled, self._server)[1])
        places, flips, seeds = list[np.ndarray](), list[np.ndarray](), list[int]()
        for computation in computations:
            generator = self._streams.moved("server", round_, computation)
            places.append(generator.integers(samples, size=size))
            flips.append(generator.random(size) < 0.5)
            seeds.append(int(generator.integers(2**63)))
        first, second = (
            send(torch.from_numpy(np.concatenate(drawn)), self._device) for drawn in (places, flips)
        )
        return first, second, seeds

    def large_gradients(self, round_: int, batches: int, relabel: Relabel | None = None) -> Tensor:
        samples = (
            len(self._train[1])
            if self._shares is None
            else -(-len(self._train[1]) // self._workers)
        )
        if batches != -(-samples // self._batch_size):
            return mean_gradients(self, round_, batches, self._workers, relabel)
        # the workers have the same samples, and so the same gradient
        if relabel is None and self._shares is None:
            return self._full_gradient(round_, 0, None, slice(None)).repeat(self._workers, 1)
        workers = range(self._workers)
        return torch.stack(
            [
                self._full_gradient(round_, worker, relabel, slice(worker, worker + 1))
                for worker in workers
            ]
        )

    def _full_gradient(
        self, round_: int, worker: int, relabel: Relabel | None, who: slice
    ) -> Tensor:
        """Return the gradient [d] of a worker over all its training samples; its losses count for
        ``who``.
        """
        images, labels = self._train
        indices = (
            torch.arange(len(labels))
            if self._shares is None
            else torch.from_numpy(self._shares.of(worker))
        )
        gradient = torch.zeros_like(self.x)
        number = torch.tensor([worker])
        for computation, part in enumerate(torch.split(indices, self._batch_size)):
            places = send(part, self._device)
            given = labels[places][None]
            if relabel is not None:
                everyone = given.expand(self._workers, -1)
                given = relabel(everyone, computation, self._images.shape.classes)[
                    worker : worker + 1
                ]
            losses = self._compute(
                self._normalise(images[places])[None],
                given,
                1,
                self._seeds(round_, (computation,), number),
            )
            gradient.add_(self._engine.matrix[0], alpha=len(part) / len(indices))
            self._losses[who] += losses
            self._counts[who] += 1
            self._statistics[who] += self._engine.statistics[0]
        return gradient

    def _computations_a_pass(self, k: int) -> int:
        """Return the largest number of computations in a pass: on a CPU, a small amount of work."""
        samples = k * self._batch_size
        if self._device.type == "cuda":
            return max(1, self._engine.pass_values // (samples * self._train[0][0].numel()))
        return max(1, TOGETHER // (samples * self._engine.kept)) if self._engine.kept else 1

    def observed(self) -> Observed:
        seen = Observed(self._losses, self._statistics, self._counts)
        self._losses, self._counts = torch.zeros_like(self._losses), torch.zeros_like(self._counts)
        self._statistics = torch.zeros_like(self._statistics)
        return seen

    def project(self) -> None:
        return

    def evaluate(self) -> Score:
        return self._score(*self._test)

    def validate(self) -> Score | None:
        return None if self._held_out is None else self._score(*self._held_out)

    def metrics(self) -> tuple[tuple[str, float], ...]:
        (images, labels), values = self._test, dict[str, float]()
        counts = () if self._shares is None else self._shares.counts
        for name, function in METRICS.items():
            # a function may change what it gets, such as the mode of a layer or a label, and the
            # run must not change
            model, data = (
                copy.deepcopy(self._engine.model).eval(),
                LabelledInputs(self._normalise(images), labels.clone()),
            )
            asked = (
                {"worker_labels": counts}
                if "worker_labels" in inspect.signature(function).parameters
                else {}
            )
            numbers = function(model, data, **asked)
            try:
                values |= {str(key): float(value) for key, value in numbers.items()}
            except (AttributeError, TypeError, ValueError) as error:
                raise PluginError(
                    f"metrics {name!r} returned {numbers!r}. Try: a dict of numbers by name"
                ) from error
        return tuple(values.items())

    def weights(self) -> dict[str, Tensor]:
        return dict(self._engine.model.state_dict())

    def squared_gradient(self) -> None:
        return

    def _score(self, images: Tensor, labels: Tensor) -> Score:
        on_gpu = self._device.type == "cuda"
        step = max(
            1,
            max(EVALUATION_VALUES, self._engine.pass_values if on_gpu else 0) // images[0].numel(),
        )
        correct = torch.zeros((), dtype=torch.int64, device=self._device)
        loss = torch.zeros((), dtype=torch.float64, device=self._device)
        for start in range(0, len(labels), step):
            part = slice(start, start + step)
            logits = self._engine.logits(self._normalise(images[part]))
            correct += (logits.argmax(1) == labels[part]).sum()
            loss += F.cross_entropy(logits, labels[part], reduction="sum").double()
        return Score(correct.item() / len(labels), loss.item() / len(labels), None)
