"""One network: its parameters as a vector, its loss, and one ordinary pass of a mini-batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from dynabro_cli.gradients.kernels.fusible import accurate
from dynabro_cli.gradients.trial import ModelError

Loss = Callable[[Any, Tensor], Tensor]


class Network:
    """A model, whose trainable parameters become views of one vector, with its loss.

    Arguments as of ``WorkerGradients``.

    Attributes:
        trained: The trainable parameters by name, views of ``parameters`` [d].
        floating: The buffers of the same type by name, views of ``buffers`` [s].
        dtype: The type of numbers in passes.
    """

    def __init__(
        self, model: nn.Module, dtype: torch.dtype | None, loss: Loss | None, classes: int | None
    ) -> None:
        self.model, self.loss, self._classes = model, loss, classes
        self.trained: dict[str, Tensor] = {
            name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad
        }
        if not self.trained:
            raise ValueError("the model has no parameter to train. Try: requires_grad_(True)")
        self.parameters = _flatten(self.trained)
        self.dtype = dtype or self.parameters.dtype
        self.floating = {
            name: buffer
            for name, buffer in model.named_buffers()
            if buffer.dtype == self.parameters.dtype
        }
        self.buffers = _flatten(self.floating) if self.floating else self.parameters.new_empty(0)

    def outputs(self, inputs: Tensor, _: Tensor) -> list[Tensor]:
        """Return the tensors among the model's outputs in evaluation mode."""
        outputs = self.model(inputs)
        self.check(outputs, len(inputs), "evaluation")
        return [x for x in tree_leaves(outputs) if isinstance(x, Tensor)]

    def check(self, outputs: object, samples: int, mode: str) -> None:
        """Raise ModelError unless the outputs of samples are logits, or a loss takes them."""
        if self.loss is not None:
            return
        legal = {self.parameters.dtype, torch.float32, torch.bfloat16}
        if not isinstance(outputs, Tensor):
            returned = f"a {type(outputs).__name__}"
        elif (
            outputs.ndim != 2
            or len(outputs) != samples
            or outputs.shape[1] < (self._classes or 1)
            or outputs.dtype not in legal
        ):
            returned = f"{outputs.dtype} {list(outputs.shape)}"
        else:
            return
        raise ModelError(
            f"returned {returned}; expected logits [n, {self._classes or 'classes'}] of "
            f"{self.parameters.dtype} (n = {samples}, {mode} mode). Try: a forward that returns "
            "logits alone"
        )

    def casting(self) -> contextlib.AbstractContextManager[object]:
        """Let autocast compute in ``dtype``; the layers of the shared pass do this themselves."""
        if self.dtype == self.parameters.dtype:
            return contextlib.nullcontext()
        return torch.autocast(self.parameters.device.type, self.dtype)

    def losses(self, outputs: Any, labels: Tensor) -> Tensor:
        """Return the loss of each sample, [n]."""
        outputs = accurate(outputs) if isinstance(outputs, Tensor) else outputs
        if self.loss is None:
            return F.cross_entropy(outputs, labels, reduction="none")
        losses = self.loss(outputs, labels)
        if losses.shape[:1] != labels.shape[:1]:
            raise ValueError(
                f"loss returned the shape {list(losses.shape)} for {len(labels)} samples; "
                "expected a loss per sample [n]. "
                "Try: reduction='none'"
            )
        return losses.flatten(1).mean(1) if losses.ndim > 1 else losses

    def mean_loss(self, outputs: Any, labels: Tensor) -> Tensor:
        """Return the mean loss of a mini-batch."""
        return (
            F.cross_entropy(accurate(outputs), labels)
            if self.loss is None
            else self.losses(outputs, labels).mean()
        )

    def own_pass(self, batch: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Make an ordinary pass of a mini-batch; return its loss, gradient [d] and buffers [s]."""
        parameters = list(self.trained.values())
        with self.casting():
            outputs = self.model(batch)
            self.check(outputs, len(target), "training")
            loss = self.mean_loss(outputs, target)
            if not loss.requires_grad:
                raise ModelError(
                    "returned outputs without a gradient. Try: a forward without detach and no_grad"
                )
            gradients = torch.autograd.grad(
                loss, parameters, allow_unused=True, materialize_grads=True
            )
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        # ``forward`` may have replaced them
        buffers = [self.model.get_buffer(name).detach() for name in self.floating]
        for buffer, (name, server) in zip(buffers, self.floating.items(), strict=True):
            if buffer.shape != server.shape:
                raise ModelError(
                    f"changes the shape of buffer {name!r} from {list(server.shape)} to "
                    f"{list(buffer.shape)}. Try: register_buffer of this shape"
                )
        statistics = torch.cat([self.buffers[:0], *(buffer.flatten() for buffer in buffers)])
        return loss.detach(), flat, statistics


@contextlib.contextmanager
def batch_statistics(model: nn.Module) -> Iterator[None]:
    """Make running statistics the statistics of the last batch only."""
    norms = [
        module for module in model.modules() if isinstance(module, nn.modules.batchnorm._NormBase)
    ]
    momenta = [module.momentum for module in norms]
    try:
        for module in norms:
            module.momentum = 1.0
        yield
    finally:
        for module, momentum in zip(norms, momenta, strict=True):
            module.momentum = momentum


def _flatten(tensors: dict[str, Tensor]) -> Tensor:
    """Copy the tensors into one vector and make each a view of its part."""
    flat = torch.cat([tensor.detach().flatten() for tensor in tensors.values()])
    for tensor, view in zip(tensors.values(), views(flat[None], tensors).values(), strict=True):
        tensor.data = view[0]
    return flat


def views(rows: Tensor, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return views [m, *shape] of [m, d], one for each tensor."""
    by_name, start = {}, 0
    for name, tensor in tensors.items():
        by_name[name] = rows[:, start : start + tensor.numel()].view(len(rows), *tensor.shape)
        start += tensor.numel()
    return by_name
