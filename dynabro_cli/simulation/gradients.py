"""Per-worker gradients of a network as one [m, d] matrix.

The interface is ``WorkerGradients``; how the gradients come about is nobody else's business. Models made of the layers in
``worker_layers`` take one pass over all workers' samples; every other model takes a loop over workers and mini-batches.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dynabro_cli.simulation.worker_layers import Shared, UnsupportedError, twin

LOOP = "loop over workers"
PASS_VALUES = 600_000
"""Input values of one shared pass: all workers of an MNIST iteration, three of CIFAR-10's. It bounds the memory of
activations and costs no time; it is no function of the machine, so that results are not either."""


class WorkerGradients:
    """The gradients of all workers at one model.

    The model's parameters become views of ``parameters`` [d], and its floating-point buffers views of ``buffers`` [s]
    (running statistics), so that the server updates the model by writing to these two.

    Args:
        model: The network; its own ``forward`` takes [n, c, h, w] and returns logits [n, classes].
        workers: The number m of workers.
        force_loop: Use the loop over workers even where one shared pass would serve.

    Attributes:
        kind: ``shared pass`` or ``loop over workers``; the first call may find that the model needs the latter.
        matrix: The [m, d] matrix that each call overwrites.
        statistics: The [m, s] batch statistics that each call overwrites, in the order of ``buffers``.
    """

    def __init__(self, model: nn.Module, workers: int, *, force_loop: bool = False) -> None:
        self.model = model
        self.workers = workers
        self.parameters = _flatten(dict(model.named_parameters()))
        floating = {name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point()}
        self.buffers = _flatten(floating) if floating else self.parameters.new_empty(0)
        self.matrix = self.parameters.new_zeros(workers, self.parameters.numel())
        self.statistics = self.parameters.new_zeros(workers, self.buffers.numel())
        self._shared = Shared(workers)
        self._gradients = _views(self.matrix, dict(model.named_parameters()))
        self._statistics = _views(self.statistics, floating)
        self._twin: nn.Module | None = None
        if not force_loop:
            try:
                self._twin = twin(model, self._shared).train()
            except UnsupportedError:
                self._twin = None
        self.kind = LOOP if self._twin is None else "shared pass"

    def __call__(self, inputs: Tensor, labels: Tensor, batches: int, generator: torch.Generator) -> Tensor:
        """Compute the gradient of every worker's mean loss over its samples.

        Args:
            inputs: [m, batches * B, c, h, w], every worker's mini-batches one after the other.
            labels: [m, batches * B], class numbers.
            batches: The number of mini-batches a worker; batch norm normalises each by its own statistics.
            generator: Where dropout draws from.

        Returns:
            [m] mean losses. The gradients are in ``matrix``, the batch statistics in ``statistics``.
        """
        with torch.enable_grad():
            if self._twin is not None:
                state = generator.get_state()
                losses = self._shared_passes(self._twin, inputs, labels, batches, generator)
                if losses is not None:
                    return losses
                self._twin, self.kind = None, LOOP
                generator.set_state(state)
            return self._loop(inputs, labels, batches, generator)

    def _shared_passes(
        self, model: nn.Module, inputs: Tensor, labels: Tensor, batches: int, generator: torch.Generator
    ) -> Tensor | None:
        """Shared forward and backward passes for a few workers at a time; returns the losses [m].

        None where the model uses a parameter in another way than by one call of its layer: its gradients are not all here.
        """
        self._shared.batches, self._shared.generator = batches, generator
        step = max(1, PASS_VALUES // inputs[0].numel())
        means = []
        for start in range(0, self.workers, step):
            part = slice(start, start + step)
            self._shared.workers = len(inputs[part])
            self._shared.gradients = {name: view[part] for name, view in self._gradients.items()}
            self._shared.written.clear()
            flat = inputs[part].flatten(0, 1).contiguous(memory_format=torch.channels_last)
            losses = F.cross_entropy(model(flat), labels[part].flatten(), reduction="none")
            means.append(losses.view(self._shared.workers, -1).mean(1))
            means[-1].sum().backward()  # type: ignore[no-untyped-call]
            elsewhere = any(parameter.grad is not None for parameter in self.model.parameters())
            if elsewhere or sorted(self._shared.written) != sorted(self._gradients):
                self.model.zero_grad(set_to_none=True)
                return None
            for name, target in self._statistics.items():
                target[part].copy_(self._shared.statistics[name])
        return torch.cat(means).detach()

    def _loop(self, inputs: Tensor, labels: Tensor, batches: int, generator: torch.Generator) -> Tensor:
        """One ordinary forward and backward pass for each worker and mini-batch."""
        self.model.train()
        parameters = list(self.model.parameters())
        losses = inputs.new_zeros(self.workers)
        self.matrix.zero_()
        self.statistics.zero_()
        before = self.buffers.clone()
        momenta = _set_statistics_momentum(self.model, 1.0)
        with torch.random.fork_rng(devices=[inputs.device] if inputs.is_cuda else []):
            torch.manual_seed(int(torch.randint(2**62, (), generator=generator, device=generator.device)))
            for worker in range(self.workers):
                pairs = zip(inputs[worker].chunk(batches), labels[worker].chunk(batches), strict=True)
                for batch, target in pairs:
                    self.buffers.copy_(before)
                    loss = F.cross_entropy(self.model(batch), target)
                    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
                    flat = torch.cat([gradient.flatten() for gradient in gradients])
                    self.matrix[worker].add_(flat, alpha=1 / batches)
                    self.statistics[worker].add_(self.buffers, alpha=1 / batches)
                    losses[worker] += loss.detach() / batches
        for module, momentum in momenta.items():
            module.momentum = momentum
        self.buffers.copy_(before)
        return losses


def _set_statistics_momentum(model: nn.Module, momentum: float) -> dict[nn.BatchNorm2d, float | None]:
    """Make running statistics those of the last batch alone; return the old settings."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    old = {cast(nn.BatchNorm2d, module): module.momentum for module in norms}
    for module in norms:
        module.momentum = momentum
    return old


def _flatten(tensors: dict[str, Tensor]) -> Tensor:
    """Copy the tensors into one vector and make each a view of its part."""
    flat = torch.cat([tensor.detach().flatten() for tensor in tensors.values()])
    for tensor, view in zip(tensors.values(), _views(flat[None], tensors).values(), strict=True):
        tensor.data = view[0]
    return flat


def _views(rows: Tensor, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Views [m, *shape] of [m, d], one for each tensor."""
    views, start = {}, 0
    for name, tensor in tensors.items():
        views[name] = rows[:, start : start + tensor.numel()].view(len(rows), *tensor.shape)
        start += tensor.numel()
    return views
