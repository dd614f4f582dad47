"""Trial of a model that dynabro does not ship: what ``forward`` changes, and what it keeps from one
mini-batch to the next.

Parameters, buffers and submodules are put back after every pass. What a model keeps elsewhere, such
as a list or a generator of random numbers, cannot be put back. So a mini-batch is computed alone,
again, and after another worker's mini-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dynabro_cli.core.errors import PluginError, first_line
from dynabro_cli.core.registration.interactive import digest_of
from dynabro_cli.gradients.generators import generator_states, generators_kept, seed_generators
from dynabro_cli.gradients.layers.twin import without_dropout
from dynabro_cli.gradients.state import ModuleState, marks

TABLES = ("_parameters", "_buffers", "_modules")
REPEATED = {torch.float64: 1e-10, torch.float32: 1e-5}
"""Largest difference between two equal passes, relative to their size; in half precision more."""
MIXED = 2e-3

Compute = Callable[[Tensor, Tensor], Sequence[Tensor]]


class ModelError(PluginError, ValueError):
    """The model does not give each worker's own gradients, or returns no logits.

    Attributes:
        problem: The message without its subject.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(f"the model {problem}")
        self.problem = problem


class Trial(NamedTuple):
    """Findings of a trial in one mode.

    Attributes:
        draws: True if ``forward`` draws random numbers outside of its dropout layers.
        changed: Names of the parameters, buffers and submodules that ``forward`` changes.
        attributes: True if ``forward`` sets other attributes.
        results: What was computed from each mini-batch.
    """

    draws: bool
    changed: list[str]
    attributes: bool
    results: list[Sequence[Tensor]]


def examine(
    model: nn.Module, train: Compute, evaluate: Compute, inputs: Tensor, labels: Tensor
) -> tuple[Trial, Trial | None]:
    """Compute four mini-batches in training, and three of two samples in evaluation mode; the model
    and the generators end as they were.

    Args:
        model: The network.
        train: Returns loss, gradients and buffers of a mini-batch and its labels.
        evaluate: Returns the outputs in evaluation mode.
        inputs: Two mini-batches, [2, B, ...].
        labels: Their labels, [2, B, ...].

    Returns:
        The findings in both modes; None if ``forward`` fails in evaluation mode.

    Raises:
        ModelError: The same mini-batch gives other results a second time.
    """
    kept = [(vars(part), dict(vars(part))) for part in model.modules()]
    first, second = zip(inputs, labels, strict=True)
    few = inputs[0, :2], labels[0, :2]
    other = tuple(torch.cat([data[0, :1], data[1, -1:]]) for data in (inputs, labels))
    try:
        with generators_kept(inputs.device):
            without_dropout(model.train())
            # an odd number of passes in between shows what changes with every second one
            trained = _computed(model, train, [first, first, second, first])
            try:
                with torch.no_grad():
                    return trained, _computed(model.eval(), evaluate, [few, other, few])
            except ModelError:
                raise
            except Exception:  # it may need mini-batches of one size, or never be evaluated
                return trained, None
    finally:
        for attributes, before in kept:
            attributes.clear()
            attributes.update(before)


def mixes(trial: Trial) -> bool:
    """Return True if the first sample's outputs depend on the second sample."""
    first, second = ([x[:1] for x in outputs if x.ndim] for outputs in trial.results[:2])
    return not trial.draws and not _equal(first, second, MIXED)


def _computed(model: nn.Module, compute: Compute, batches: list[Any]) -> Trial:
    state, marked, prints = ModuleState(model), marks(model), [_attributes(model)]
    results, changed, draws = list[Sequence[Tensor]](), list[str](), False
    for x, y in batches:
        seed_generators(0)
        drawn, again, problem = generator_states(x.device), x is batches[0][0], ""
        try:
            results.append(compute(x.clone(), y))
        except Exception as error:  # a forward of the user's may raise anything
            if not results or not again:
                raise
            problem = first_line(error)
        finally:
            changed = changed or _differing(marked, marks(model))
            state.put_back()
        draws = draws or generator_states(x.device) != drawn
        prints.append(_attributes(model))
        names = _differing(prints[1], prints[-1])
        if problem or (again and (names or not _equal(results[0], results[-1]))):
            raise _keeps(names or _differing(prints[0], prints[-1]), problem)
    return Trial(draws, changed, prints[0] != prints[1], results)


def _differing(before: dict[str, object], after: dict[str, object]) -> list[str]:
    return [name for name in {**before, **after} if before.get(name) != after.get(name)]


def _keeps(names: list[str], error: str) -> ModelError:
    where = "state outside of itself"
    if names:
        where = f"state in {', '.join(f'`{name}`' for name in names[:3])}"
    why = f" ({error})" if error else ""
    return ModelError(
        f"keeps {where} from one mini-batch to the next, so a worker's gradient would depend on "
        f"other workers{why}. Try: register_buffer for tensors, torch.rand for random numbers"
    )


def _equal(
    first: Sequence[Tensor], second: Sequence[Tensor], tolerance: float | None = None
) -> bool:
    """Return True if tensors are equal up to rounding; NaN equals NaN."""
    for x, y in zip(first, second, strict=True):
        limit = tolerance or REPEATED.get(x.dtype, 1e-2)
        x, y = x.detach().double(), y.detach().double()
        size = float(y.nan_to_num(0, 0, 0).norm()) / max(1, y.numel()) ** 0.5
        if x.shape != y.shape or not torch.allclose(x, y, limit, limit * size, equal_nan=True):
            return False
    return True


def _attributes(model: nn.Module) -> dict[str, object]:
    """Return digests of all that the modules and their classes have, except for parameters,
    buffers and submodules, by name.
    """
    return {
        f"self.{prefix}.{name}".replace("..", "."): digest_of(value, scope="")
        for prefix, part in model.named_modules()
        for holder in (*type(part).__mro__, part)
        if holder is part or not holder.__module__.startswith("torch.")
        for name, value in vars(holder).items()
        if name not in TABLES and not name.startswith("__")
    }
