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
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor, nn

from dynabro_cli.gradients.generators import generator_states, generators_kept
from dynabro_cli.gradients.twin import is_random

if TYPE_CHECKING:
    from dynabro_cli.gradients.engine import WorkerGradients

Make = Callable[..., "WorkerGradients"]
"""``WorkerGradients``, without a comparison."""
GROUPS = 4
"""Mini-batches of a comparison: of two workers, or of one."""
MOST_VALUES = 600_000
"""Input values of a comparison, about a pass."""
NOISE = 0.1
MIXES = (
    "forward mixes samples in evaluation mode, so test accuracy depends on the parts in "
    "which the test set is computed"
)
TOLERANCES = {torch.float64: 1e-5, torch.float32: 2e-3}


class Choice(NamedTuple):
    """The ways that remain, why earlier ways are left out (empty if none is), and if ``forward``
    draws random numbers.
    """

    kinds: list[str]
    reason: str
    draws: bool


def choose(
    model: nn.Module, kinds: Sequence[str], make: Make, workers: int, inputs: Tensor, labels: Tensor
) -> Choice:
    """Leave out the ways that do not give each worker's own gradients.

    Args:
        model: The network; it is not changed.
        kinds: The ways in their order; the last one is not tried.
        make: Makes the engines of the ways.
        workers: The number m of workers.
        inputs: Samples [n, c, h, w], n >= 1. Their values change a little, so that no two
            mini-batches are alike.
        labels: Class numbers [n], or what the loss takes [n, ...].
    """
    with generators_kept(inputs.device):
        for dtype, varied in ((torch.float64, True), (torch.float32, True), (torch.float32, False)):
            try:
                trial = _Trial(model, make, min(workers, 2), dtype)
                draws = trial.prepare(inputs, labels, varied=varied)
                if draws:
                    return Choice(list(kinds[-1:]), "forward draws random numbers", True)
                mixes = trial.mixes_in_evaluation()
                expected = trial.compute(kinds[-1])
            except Exception as error:  # a forward of the user's may raise anything
                reason = _short(error)
                continue
            if not all(bool(tensor.isfinite().all()) for tensor in expected):
                reason = "its gradients are not finite"
                continue
            choice = _first_that_agrees(trial, kinds, expected)
            return choice._replace(
                reason="; ".join(filter(None, (choice.reason, MIXES if mixes else "")))
            )
    return Choice(
        list(kinds), f"a comparison with each worker's own pass was not possible ({reason})", False
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
                return Choice(list(kinds[place:]), reason, False)
            why = "gives other gradients than each worker's own pass"
        reason = reason or f"the {kind} {why}"
    return Choice(list(kinds[-1:]), reason, False)


def _short(error: Exception) -> str:
    return textwrap.shorten(f"{type(error).__name__}: {error}", 80, placeholder="...")


class _Trial:
    """A copy of the model with random parameters, and mini-batches that differ in scale."""

    def __init__(self, model: nn.Module, make: Make, workers: int, dtype: torch.dtype) -> None:
        self._model = copy.deepcopy(model).to(dtype)
        self._make, self._workers, self._dtype = make, workers, dtype

    def prepare(self, inputs: Tensor, labels: Tensor, *, varied: bool) -> bool:
        """Make mini-batches and parameters; return True if ``forward`` draws random numbers outside
        of its dropout layers.
        """
        size = max(1, min(len(labels) // GROUPS, MOST_VALUES // (GROUPS * inputs[0].numel())))
        places = torch.arange(GROUPS * size, device=inputs.device) % len(labels)
        x, generator = inputs[places].to(self._dtype), torch.Generator().manual_seed(0)
        if varied:
            # Positive integers stay legal: characters of a text get smaller, and rounding removes
            # the noise.
            scales = (
                torch.linspace(1, 0.5, GROUPS).repeat_interleave(size).view(-1, *[1] * (x.ndim - 1))
            )
            x = x * scales.to(x) + 0.49 * torch.rand(x.shape, generator=generator).to(x)
            for parameter in self._model.parameters():
                # a parameter that starts from 0 would hide what it multiplies
                if parameter.requires_grad:
                    size_of = float(parameter.detach().square().mean().sqrt()) or 1.0
                    parameter.data += (
                        NOISE
                        * size_of
                        * torch.randn(parameter.shape, generator=generator).to(parameter)
                    )
        for module in self._model.modules():
            if is_random(module) and hasattr(module, "p"):  # the ways draw masks differently
                cast(nn.Dropout, module).p = 0.0
        y = labels[places]
        y = y.to(self._dtype) if y.is_floating_point() else y
        self._batch = (
            x.view(self._workers, -1, *x.shape[1:]),
            y.view(self._workers, -1, *y.shape[1:]),
        )
        before = generator_states(x.device)
        with torch.no_grad():  # a module that keeps its output could not be copied afterwards
            self._model.train()(x[:size])
        return generator_states(x.device) != before

    def mixes_in_evaluation(self) -> bool:
        """Return True if the logits of a sample depend on the others in evaluation mode."""
        model, x = copy.deepcopy(self._model).eval(), self._batch[0].flatten(0, 1)
        with torch.no_grad():
            whole, parts = model(x), torch.cat([model(part) for part in x.tensor_split(2)])
        return not float((whole - parts).norm()) <= TOLERANCES[self._dtype] * float(whole.norm())

    def compute(self, kind: str) -> list[Tensor]:
        """Return losses [k], gradients [k, d] and batch statistics [k, s]."""
        engine = self._make(copy.deepcopy(self._model), self._workers, kinds=(kind,))
        losses = engine(
            *self._batch, GROUPS // self._workers, [0] * GROUPS if engine.random else []
        )
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
