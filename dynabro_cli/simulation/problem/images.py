"""A network on images, as the loop trains it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dynabro_cli.components.models._api import LabelledInputs
from dynabro_cli.components.tasks._api import Images
from dynabro_cli.core.errors import PluginError
from dynabro_cli.core.registration import METRICS
from dynabro_cli.core.streams import Streams
from dynabro_cli.gradients import graphs
from dynabro_cli.gradients.engine import LOOP, WorkerGradients, parts
from dynabro_cli.gradients.graphs import BACKWARD, on_device
from dynabro_cli.simulation.problem.interface import (
    MOST_COMPUTATIONS,
    Draws,
    Observed,
    Problem,
    Relabel,
    Score,
    forget,
    mean_gradients,
)
from dynabro_cli.simulation.problem.mini_batches import TRIAL_ROUND, BatchSource, MiniBatches
from dynabro_cli.simulation.problem.shares import Labelled, Shares

# input values at a time on a CPU, where small batches stay in the cache
EVALUATION_VALUES = 100_000
# bytes kept by computations that share a pass on a CPU, because small operations cost time
TOGETHER = 32 << 20
# input values of a training set that is normalised once on a CPU, not batch by batch
NORMALISED_VALUES = 1 << 20


class ImageProblem(Problem):
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
            model,
            workers,
            dtype=dtype,
            compile=compile,
            samples=samples,
            compare=compare,
            classes=images.shape.classes,
        )
        self._workers, self._batch_size = workers, batch_size
        self._device = device
        self._source = BatchSource(
            streams,
            workers,
            batch_size,
            self._engine,
            len(self._train[1]) if shares is None else shares,
            0 if server is None else len(server[1]),
            device,
            flip=images.flip,
        )
        self.x, self.buffers = self._engine.parameters, self._engine.buffers
        self._observed = Observed(
            self.x.new_zeros(workers),
            torch.zeros_like(self._engine.statistics),
            self.x.new_zeros(workers),
        )
        self.sum_gradients(TRIAL_ROUND, (0,), torch.arange(workers), None)
        forget(self)

    @property
    def how(self) -> dict[str, object]:
        engine = self._engine
        words: dict[str, object] = {
            "gradients": engine.kind,
            "pass_values": engine.pass_values or None,
            "blocks": engine.blocks,
        }
        return words | ({"gradients_reason": engine.reason} if engine.reason else {})

    def _normalise(self, pixels: Tensor) -> Tensor:
        return torch.addcmul(self._offset, pixels.to(self._gain.dtype), self._gain)

    def draw(self, round_: int, computations: Sequence[int], workers: Tensor | None) -> Draws:
        step = self._computations_a_pass(1 if workers is None else len(workers))
        passes = [
            tuple(computations[part]) for part in parts(len(computations), step, self._device)
        ]
        if workers is None:
            return tuple([self._source.of_server(round_, numbers) for numbers in passes])
        return tuple([self._source.of_workers(round_, numbers, workers) for numbers in passes])

    def _batches(self, drawn: MiniBatches, source: Labelled) -> tuple[Tensor, Tensor]:
        """Return drawn mini-batches of a ``source``: [k, n B, c, h, w] and [k, n B]."""
        (images, labels), samples = source, drawn.samples
        chosen = samples.flatten()
        pixels = (
            self._inputs.index_select(0, chosen)
            if self._inputs is not None and source is self._train
            else self._normalise(images[chosen])
        )
        if drawn.flips is not None:
            flips = drawn.flips.flatten()
            pixels = torch.where(flips[:, None, None, None], pixels.flip(-1), pixels)
        return pixels.view(*samples.shape, *pixels.shape[1:]), labels[samples]

    def gradients(
        self, draws: Draws, total: Tensor | None, relabel: Relabel | None = None
    ) -> Tensor:
        for drawn in draws:
            inputs, labels = self._batches(drawn, self._train)
            k, n = len(labels), len(drawn.computations)
            if relabel is not None:
                classes, of_computation = self._images.shape.classes, labels.chunk(n, 1)
                labels = torch.cat(
                    [
                        relabel(y, computation, classes)
                        for y, computation in zip(of_computation, drawn.computations, strict=True)
                    ],
                    1,
                )
            losses = self._engine(inputs, labels, n, drawn.seeds)
            self._add_rows(self._observed.losses, losses, drawn)
            self._add_rows(self._observed.counts, torch.ones_like(losses), drawn)
            if self._observed.statistics.numel():
                self._add_rows(self._observed.statistics, self._engine.statistics[:k], drawn)
            if total is not None:
                total[:k].add_(self._engine.matrix[:k], alpha=n)
        return self._engine.matrix if total is None else total

    def _add_rows(self, total: Tensor, rows: Tensor, drawn: MiniBatches) -> None:
        """Add the rows [k, ...] of a pass of n computations, n times, to the workers' rows of a sum
        [m, ...].

        ``index_add_`` sorts on a GPU if it must be deterministic; a plain sum does not.
        """
        n = len(drawn.computations)
        if drawn.rows is not None and self._device.type == "cpu":
            total.index_add_(0, drawn.rows, rows, alpha=n)
            return
        if drawn.rows is not None:
            padded = torch.cat([rows, rows.new_zeros(1, *rows.shape[1:])])
            rows = padded.index_select(0, drawn.rows)
        total.add_(rows, alpha=n)

    def server_gradient(self, draws: Draws) -> Tensor:
        total = torch.zeros_like(self.x)
        for drawn in draws:
            inputs, labels = self._batches(drawn, cast(Labelled, self._server))
            n = len(drawn.computations)
            self._engine(inputs, labels, n, drawn.seeds)
            total.add_(self._engine.matrix[0], alpha=n)
        return total

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
            seeds = self._source.seeds(round_, (computation,), number)
            places, seeds = on_device((part, seeds), self._device)
            given = labels[places][None]
            if relabel is not None:
                everyone = given.expand(self._workers, -1)
                given = relabel(everyone, computation, self._images.shape.classes)[
                    worker : worker + 1
                ]
            losses = self._engine(self._normalise(images[places])[None], given, 1, seeds)
            gradient.add_(self._engine.matrix[0], alpha=len(part) / len(indices))
            self._observed.losses[who] += losses
            self._observed.counts[who] += 1
            self._observed.statistics[who] += self._engine.statistics[0]
        return gradient

    def _computations_a_pass(self, k: int) -> int:
        """Return the largest number of computations in a pass: on a CPU, a small amount of work."""
        samples = k * self._batch_size
        if self._device.type == "cuda":
            return max(1, self._engine.pass_values // (samples * self._train[0][0].numel()))
        return max(1, TOGETHER // (samples * self._engine.kept)) if self._engine.kept else 1

    def observed(self) -> Observed:
        return self._observed

    def graph_need(self) -> float | str:
        samples, values = self._workers * self._batch_size, self._train[0].shape[1:].numel()
        if self._engine.kind == LOOP:  # it reads its seeds on the host
            return LOOP
        if samples * values > graphs.GRAPH_VALUES:  # benchmarks change it
            return "large passes"
        largest = max(samples, self._engine.pass_values // values)
        return BACKWARD * self._engine.kept * min(largest, MOST_COMPUTATIONS * samples)

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
