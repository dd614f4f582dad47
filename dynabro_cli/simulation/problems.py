"""What a simulation trains: a network on images, or an objective. Both look the same to the loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dynabro_cli.simulation.gradients import WorkerGradients
from dynabro_cli.streams import Streams
from dynabro_cli.tasks._api import Images, Objective

EVALUATION_BATCH = 1000
STATISTICS_MOMENTUM = 0.1
TRIAL_ROUND = 2**41  # the counter of the batch that the gradients are tried on, out of reach of any round's


class Score(NamedTuple):
    """What an evaluation finds; None where the task has no such number."""

    accuracy: float | None
    loss: float | None
    gap: float | None


class Problem(Protocol):
    """What the loop needs of a task.

    Attributes:
        x: The model x_t, [d]; the loop updates it in place.
        buffers: Running statistics kept by the server, [s]; empty where the model has none.
        sampling: How gradients are computed, in words.
    """

    x: Tensor
    buffers: Tensor
    sampling: str

    def sum_gradients(self, round_: int, computations: Iterable[int], total: Tensor | None) -> Tensor:
        """Add the workers' mini-batch gradients at x_t to ``total`` [m, d], one for each of ``computations``.

        With ``total`` None, the result is a buffer that the next call overwrites.
        """
        ...

    def observed(self) -> tuple[Tensor, Tensor]:
        """Sums over the computations since the last call: the workers' losses [m] and batch statistics [m, s].

        Empty tensors where the problem has none.
        """
        ...

    def project(self) -> None:
        """Project x_t onto the domain K, in place."""
        ...

    def evaluate(self) -> Score:
        """Evaluate x_t on the test set, or its gap."""
        ...


class ImageProblem:
    """A network trained on images that live on the device as uint8.

    Args:
        images: The data.
        model: The network, initialised, on the device.
        workers: m.
        batch_size: B.
        streams: Where batches, flips and dropout come from.
        device: Where everything lives.
    """

    def __init__(
        self, images: Images, model: nn.Module, workers: int, batch_size: int, streams: Streams, device: torch.device
    ) -> None:
        self._images = images
        self._train = images.train_images.to(device), images.train_labels.to(device)
        self._test = images.test_images.to(device), images.test_labels.to(device)
        scale = torch.tensor(images.std, device=device).mul(images.scale)
        self._gain = (1 / scale)[:, None, None]
        self._offset = (-torch.tensor(images.mean, device=device) * images.scale / scale)[:, None, None]
        self._engine = WorkerGradients(model, workers)
        self._workers, self._batch_size = workers, batch_size
        self._streams, self._device = streams, device
        self._generator = torch.Generator(device)
        self.x, self.buffers = self._engine.parameters, self._engine.buffers
        self._engine(*self._batch(TRIAL_ROUND, 0), 1, self._generator)  # to learn how the model's gradients are to be computed
        self.sampling = self._engine.kind
        self._losses = self.x.new_zeros(workers)
        self._statistics = torch.zeros_like(self._engine.statistics)

    def _normalise(self, pixels: Tensor) -> Tensor:
        return torch.addcmul(self._offset, pixels.to(self._gain.dtype), self._gain)

    def _batch(self, round_: int, computation: int) -> tuple[Tensor, Tensor]:
        """Draw every worker's mini-batch, uniformly with replacement: [m, B, c, h, w] and [m, B]."""
        images, labels = self._train
        shape = (self._workers, self._batch_size)
        drawn = self._streams.generator("data", round_, computation).integers(len(labels), size=shape)
        indices = torch.from_numpy(drawn).to(self._device)
        pixels = self._normalise(images[indices.flatten()])
        if self._images.flip:
            coins = self._streams.generator("augment", round_, computation).random(len(pixels)) < 0.5
            flips = torch.from_numpy(coins).to(self._device)
            pixels = torch.where(flips[:, None, None, None], pixels.flip(-1), pixels)
        return pixels.view(*shape, *pixels.shape[1:]), labels[indices]

    def sum_gradients(self, round_: int, computations: Iterable[int], total: Tensor | None) -> Tensor:
        for computation in computations:
            inputs, labels = self._batch(round_, computation)
            self._generator.manual_seed(self._streams.integer("dropout", round_, computation))
            self._losses += self._engine(inputs, labels, 1, self._generator)
            self._statistics += self._engine.statistics
            total = self._engine.matrix if total is None else total.add_(self._engine.matrix)
        if total is None:
            raise ValueError("no computations")
        return total

    def observed(self) -> tuple[Tensor, Tensor]:
        losses, statistics = self._losses.clone(), self._statistics.clone()
        self._losses.zero_()
        self._statistics.zero_()
        return losses, statistics

    def project(self) -> None:
        return

    def evaluate(self) -> Score:
        images, labels = self._test
        model = self._engine.model.eval()
        correct = torch.zeros((), dtype=torch.int64, device=self._device)
        loss = torch.zeros((), dtype=torch.float64, device=self._device)
        for start in range(0, len(labels), EVALUATION_BATCH):
            part = slice(start, start + EVALUATION_BATCH)
            inputs = self._normalise(images[part]).contiguous(memory_format=torch.channels_last)
            logits = model(inputs)
            correct += (logits.argmax(1) == labels[part]).sum()
            loss += F.cross_entropy(logits, labels[part], reduction="sum").double()
        return Score(correct.item() / len(labels), loss.item() / len(labels), None)


class ObjectiveProblem:
    """An objective with additive noise, in double precision on the CPU."""

    def __init__(self, objective: Objective, workers: int, batch_size: int, streams: Streams) -> None:
        self._objective, self._streams = objective, streams
        self._workers, self._batch_size = workers, batch_size
        self.x = objective.start.clone()
        self.buffers = self.x.new_empty(0)
        self.sampling = "exact gradient plus noise"

    def sum_gradients(self, round_: int, computations: Iterable[int], total: Tensor | None) -> Tensor:
        gradient = self._objective.gradient(self.x)
        result = self.x.new_zeros(self._workers, self.x.numel()) if total is None else total
        for computation in computations:
            generator = self._streams.generator("noise", round_, computation)
            noise = self._objective.noise(generator, self._workers * self._batch_size)
            result += gradient + noise.view(self._workers, self._batch_size, -1).mean(1)
        return result

    def observed(self) -> tuple[Tensor, Tensor]:
        return self.buffers, self.buffers

    def project(self) -> None:
        self.x.copy_(self._objective.project(self.x))

    def evaluate(self) -> Score:
        return Score(None, None, self._objective.gap(self.x).item())
