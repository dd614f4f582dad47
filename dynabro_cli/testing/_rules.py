"""Checks of aggregators and pre-aggregators."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from pathlib import Path

import torch
from torch import Tensor

from dynabro_cli.components.aggregators._api import SERVER, State
from dynabro_cli.components.api import BoundAggregator, make_aggregator, make_pre_aggregator
from dynabro_cli.core.errors import first_line
from dynabro_cli.core.vectors.finite import sound
from dynabro_cli.testing._common import check_run, component, require

PROMISES = ("order", "origin", "scale", "identical", "large")
"""Promises that some sound rules do not make; ``but`` names them."""
D = 6


def check_aggregator(
    text: str,
    *,
    plugin: str | Path | None = None,
    workers: int = 9,
    byzantine: int = 2,
    but: Collection[str] = (),
) -> None:
    """Check an aggregation rule.

    Its aggregate has the messages' type. It is finite if the messages are finite, and not finite if
    no message is. The rule leaves its input unchanged, agrees in single and double precision,
    ignores workers whose message is not finite, can be compiled, and declares a row of state for
    each worker. In a run, its numbers are reproducible.

    Args:
        text: Such as ``my-rule:f=2``.
        plugin: The file that defines it.
        workers: m.
        byzantine: f.
        but: Promises that the rule does not make: ``order`` (of the workers does not matter),
            ``origin`` (a shift of all messages shifts the aggregate), ``scale`` (a factor scales
            it), ``identical`` (equal messages are their aggregate), ``large`` (messages near the
            largest number of their type have a finite aggregate).

    Raises:
        AssertionError: A promise is broken; the message says which.
        SpecError: The rule does not exist, or not for m and f.
    """
    component("aggregators", text, plugin)
    _check(text, lambda: made(text, workers=workers, byzantine=byzantine), workers, but)
    check_run(text, aggregator=text, workers=workers, byzantine=byzantine)


def check_pre_aggregator(
    text: str,
    *,
    plugin: str | Path | None = None,
    workers: int = 9,
    byzantine: int = 2,
    but: Collection[str] = (),
) -> None:
    """Check a pre-aggregator: the number of its messages, and all promises of ``check_aggregator``
    before the median.

    Args:
        text: Such as ``my-stage``.
        plugin: See ``check_aggregator``.
        workers: See ``check_aggregator``.
        byzantine: See ``check_aggregator``.
        but: See ``check_aggregator``; clipping, for example, does not promise ``origin``.

    Raises:
        AssertionError: A promise is broken; the message says which.
        SpecError: The pre-aggregator does not exist, or not for m and f.
    """
    component("pre_aggregators", text, plugin)
    stage = make_pre_aggregator(text, workers=workers, byzantine=byzantine)
    messages = _draw(0, workers)
    mixed = stage(messages)
    require(
        mixed.ndim == 2 and mixed.shape == (stage.workers, D),
        f"{text}: it declares {stage.workers} messages [m', d]",
    )
    require(mixed.dtype == messages.dtype, f"{text}: its messages have another type")
    chain = f"{text}+cwmed"
    _check(chain, lambda: made(chain, workers=workers, byzantine=byzantine), workers, but)
    check_run(text, pre_aggregators=text, workers=workers, byzantine=byzantine)


def made(text: str, *, workers: int, byzantine: int) -> BoundAggregator:
    """Make a rule; half the median of the messages stands for the server's gradient, if it needs
    one.
    """
    bound = make_aggregator(text, workers=workers, byzantine=byzantine)
    rule = bound._rule

    def aggregate(messages: Tensor, state: State, batches: int | Tensor) -> tuple[Tensor, State]:
        server = sound(messages)[0].median(0).values / 2
        return rule.aggregate(messages, state | {SERVER: server}, batches)

    if rule.needs_server:
        bound._rule = rule._replace(aggregate=aggregate, of_sound=None, needs_server=False)
    return bound


def _draw(seed: int, m: int, d: int = D) -> Tensor:
    """Return normal messages, two of them far away, in random order."""
    generator = torch.Generator().manual_seed(seed)
    messages = torch.randn(m, d, generator=generator, dtype=torch.float64)
    messages[:2] += 100
    return messages[torch.randperm(m, generator=generator)]


def _check(text: str, make: Callable[[], BoundAggregator], m: int, but: Collection[str]) -> None:
    unknown = set(but) - set(PROMISES)
    if unknown:
        raise ValueError(f"but={sorted(unknown)}: not a promise. Try: {', '.join(PROMISES)}")
    for seed in range(5):
        _check_draw(text, make, _draw(seed, m), but)
    for dtype in (torch.float32, torch.float64):
        _check_finite(text, make, m, 1e6 if "large" in but else torch.finfo(dtype).max, dtype)
    _check_state(text, make, m)


def _close(actual: Tensor, expected: Tensor, size: float = 1.0) -> bool:
    return torch.allclose(actual, expected, rtol=1e-7, atol=1e-7 * size)


def _check_draw(
    text: str, make: Callable[[], BoundAggregator], messages: Tensor, but: Collection[str]
) -> None:
    before, aggregate = messages.clone(), make()(messages)
    require(
        aggregate.shape == messages.shape[1:],
        f"{text}: the aggregate must be [d], but is {list(aggregate.shape)}",
    )
    raw = make()._rule.aggregate(messages.clone(), {}, 1)[0]
    require(
        raw.dtype == messages.dtype,
        f"{text}: of {messages.dtype} the rule must return {messages.dtype}, not {raw.dtype}",
    )
    kept = aggregate.clone()
    aggregate.fill_(7)
    require(
        torch.equal(messages, before),
        f"{text}: it changes the messages, or returns a view of one; clone it",
    )
    single = make()(messages.float())
    require(
        single.dtype == torch.float32,
        f"{text}: the aggregate of single-precision messages must be in single precision",
    )
    require(
        torch.allclose(single.double(), kept, rtol=1e-4, atol=1e-4),
        f"{text}: single and double precision differ",
    )
    if "order" not in but:
        turned = make()(messages.flip(0))
        require(
            _close(turned, kept),
            f"{text}: the order of the workers matters. If it has to: but=['order']",
        )
    if "origin" not in but:
        moved = make()(messages + 3) - 3
        require(
            _close(moved, kept, 100),
            f"{text}: a shift of all messages does not shift it. If so: but=['origin']",
        )
    if "scale" not in but:
        scaled = make()(messages * -0.5) / -0.5
        require(
            _close(scaled, kept),
            f"{text}: a factor does not scale the aggregate. If it has to: but=['scale']",
        )
    if "identical" not in but:
        alike = make()(messages[:1].repeat(len(messages), 1))
        require(
            _close(alike, messages[0]),
            f"{text}: equal messages are not their aggregate. If so: but=['identical']",
        )


def _check_finite(
    text: str, make: Callable[[], BoundAggregator], m: int, largest: float, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    for share in (1.0, 0.3):
        messages = torch.randn(m, D, generator=generator).to(dtype)
        huge = torch.rand(m, D, generator=generator) < share
        aggregate = make()(torch.where(huge, largest * messages.sign(), messages))
        require(
            aggregate.isfinite().all(),
            f"{text}: finite messages of size {largest:.0e} have no finite aggregate. Try: "
            "means and lengths of "
            "dynabro_cli.core.vectors, and differences of halves; or but=['large']",
        )
    messages = _draw(1, m).to(dtype)
    without = messages.clone()
    messages[[0, 4], 1], without[[0, 4]] = math.nan, 0
    require(
        torch.equal(make()(messages), make()(without)),
        f"{text}: a worker that sends NaN must count like a worker that sends 0",
    )
    none = torch.full((m, D), math.nan, dtype=dtype)
    require(
        not make()(none).isfinite().any(),
        f"{text}: if no message is finite, the aggregate must not be finite",
    )


def _check_state(text: str, make: Callable[[], BoundAggregator], m: int) -> None:
    rule = make()
    _, state = rule._rule.aggregate(_draw(0, m), {}, 1)
    _, state = rule._rule.aggregate(_draw(1, m), state, 1)
    rows = any(value.ndim and value.shape[0] == m for value in state.values())
    require(
        rule._rule.by_number or not rows,
        f"{text}: its state has a row for each worker; say by_number=True",
    )
    torch.compiler.reset()
    traced = torch.compile(make()._rule.aggregate, backend="eager", fullgraph=True, dynamic=False)
    try:
        aggregate, _ = traced(_draw(0, m), {}, torch.tensor(1.0))
    except Exception as error:
        advice = "Use torch's functions, and no value of a tensor"
        raise AssertionError(
            f"{text}: it cannot be compiled ({first_line(error)}). {advice}"
        ) from error
    finally:
        torch.compiler.reset()
    require(_close(aggregate, make()(_draw(0, m))), f"{text}: compiled, it has other numbers")
