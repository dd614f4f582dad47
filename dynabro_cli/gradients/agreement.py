"""Choice of a way to compute gradients by comparison with each worker's own forward and backward
pass.

The shared pass knows the types of layers. It does not know what ``forward`` does between them: a
mean over the mini-batch, for example, would be a mean over all workers' samples. So the ways are
tried on a copy of the model, in double precision.
"""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from dynabro_cli.gradients.generators import generators_kept
from dynabro_cli.gradients.layers.twin import without_dropout

NOISE = 0.1
TOLERANCES = {torch.float64: 1e-5, torch.float32: 2e-3}


class Engine(Protocol):
    """A way to compute gradients; returns the losses [k]."""

    random: bool
    matrix: Tensor
    statistics: Tensor

    def __call__(
        self, inputs: Tensor, labels: Tensor, batches: int, seeds: Sequence[int], /
    ) -> Tensor: ...


Make = Callable[..., Engine]
"""Function that makes the engine of two workers, without a comparison."""


class Choice(NamedTuple):
    """The ways that remain, and why earlier ways are left out; empty if none is."""

    kinds: list[str]
    reason: str


def choose(
    model: nn.Module, kinds: Sequence[str], make: Make, inputs: Tensor, labels: Tensor
) -> Choice:
    """Leave out the ways that do not give each worker's own gradients.

    Args:
        model: The network; it is not changed.
        kinds: The ways in their order; the last one is not tried.
        make: Makes the engines of the ways.
        inputs: Two mini-batches [2, n, ...]. Their values change a little, so that no two
            are alike.
        labels: Class numbers [2, n], or what the loss takes [2, n, ...].
    """
    with generators_kept(inputs.device):
        for dtype, varied in ((torch.float64, True), (torch.float32, True), (torch.float32, False)):
            try:
                trial = _Trial(model, make, dtype)
                trial.prepare(inputs, labels, varied=varied)
                expected = trial.compute(kinds[-1])
            except Exception as error:  # a forward of the user's may raise anything
                reason = _short(error)
                continue
            if not all(bool(tensor.isfinite().all()) for tensor in expected):
                reason = "its gradients are not finite"
                continue
            return _first_that_agrees(trial, kinds, expected)
    return Choice(
        list(kinds[-1:]), f"a comparison with each worker's own pass was not possible ({reason})"
    )


def _first_that_agrees(trial: _Trial, kinds: Sequence[str], expected: list[Tensor]) -> Choice:
    reason = ""
    for place, kind in enumerate(kinds[:-1]):
        try:
            agrees = trial.agree(trial.compute(kind), expected)
        except Exception as error:  # not only RuntimeError: functorch and forward raise others
            why = f"fails ({_short(error)})"
        else:
            if agrees:
                return Choice(list(kinds[place:]), reason)
            why = "gives other gradients than each worker's own pass"
        reason = reason or f"the {kind} {why}"
    return Choice(list(kinds[-1:]), reason)


def _short(error: Exception) -> str:
    return textwrap.shorten(f"{type(error).__name__}: {error}", 80, placeholder="...")


class _Trial:
    """A copy of the model with random parameters, and mini-batches that differ in scale."""

    def __init__(self, model: nn.Module, make: Make, dtype: torch.dtype) -> None:
        self._model = copy.deepcopy(model).to(dtype)
        self._make, self._dtype = make, dtype

    def prepare(self, inputs: Tensor, labels: Tensor, *, varied: bool) -> None:
        """Make mini-batches and parameters, with labels."""
        # the CPU's generator draws for every device
        x, generator = inputs, torch.Generator().manual_seed(0)
        if varied:
            # Positive integers stay legal: characters of a text get smaller, and rounding removes
            # the noise.
            scales = torch.tensor([1, 0.5], device="cpu").view(-1, *[1] * (x.ndim - 1))
            noise = torch.rand(x.shape, generator=generator, device="cpu")
            x = x.to(self._dtype).nan_to_num(0, 0, 0) * scales.to(x.device)
            x = x + 0.49 * noise.to(x.device)
            for parameter in self._model.parameters():
                # a parameter that starts from 0 would hide what it multiplies
                if parameter.requires_grad:
                    size_of = float(parameter.detach().square().mean().sqrt()) or 1.0
                    drawn = torch.randn(parameter.shape, generator=generator, device="cpu")
                    parameter.data += NOISE * size_of * drawn.to(parameter)
        without_dropout(self._model)
        self._inputs = x.to(self._dtype if inputs.is_floating_point() else inputs.dtype)
        self._labels = labels.to(self._dtype) if labels.is_floating_point() else labels

    def compute(self, kind: str) -> list[Tensor]:
        """Return losses [k], gradients [k, d] and batch statistics [k, s]."""
        engine = self._make(copy.deepcopy(self._model), kinds=(kind,))
        # ``forward`` may change its inputs in place
        losses = engine(self._inputs.clone(), self._labels, 1, (0, 0) if engine.random else ())
        return [losses, engine.matrix, engine.statistics]

    def agree(self, computed: list[Tensor], expected: list[Tensor]) -> bool:
        """Return True if losses, the gradients of each parameter, and statistics are equal up to
        rounding.
        """
        sizes = [
            parameter.numel() for parameter in self._model.parameters() if parameter.requires_grad
        ]
        pairs = [(computed[place], expected[place]) for place in (0, 2)]
        pairs += zip(
            *(torch.split(matrix, sizes, 1) for matrix in (computed[1], expected[1])), strict=True
        )
        # a gradient of 0, such as the bias before batch norm has, is only as small as rounding
        least = 0.01 * float(expected[1].norm())
        tolerance = TOLERANCES[self._dtype]
        return all(
            float((ours - theirs).norm()) <= tolerance * max(float(theirs.norm()), least)
            for ours, theirs in pairs
        )
