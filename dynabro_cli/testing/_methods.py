"""Checks of training methods."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dynabro_cli.components.methods._api import (
    JudgingMethod,
    MeansMethod,
    Measured,
    Method,
    MethodSetting,
    Plan,
    State,
    senders,
)
from dynabro_cli.testing._common import check_run, component, require

M, D = 4, 3


def check_method(text: str, *, plugin: str | Path | None = None) -> None:
    """Check a training method.

    Its plans are drawn only from the generator, with growing prefixes. It sends a message for each
    prefix, and its direction has the shape of a message. It declares if it remembers gradients, and
    its rows belong to the workers. In a run, its numbers are reproducible.

    Args:
        text: Such as ``my-method:beta=0.5``.
        plugin: The file that defines it.

    Raises:
        AssertionError: A promise is broken; the message says which.
        SpecError: The method does not exist, or cannot be built.
    """
    component("methods", text, plugin)
    method = _made(text)
    plans = _plans(method)
    require(
        plans == _plans(_made(text)),
        f"{text}: plans must be drawn from the generator that is passed",
    )
    for plan in plans:
        prefixes = list(plan.prefixes)
        require(
            prefixes and prefixes == sorted(prefixes),
            f"{text}: prefixes must grow, but are {prefixes}",
        )
        require(
            all(isinstance(prefix, int) for prefix in prefixes),
            f"{text}: prefixes must be ints, not {prefixes}",
        )
    if isinstance(method, MeansMethod):
        _check_messages(text, plans)
        _check_memory(text)
    check_run(text, method=text, aggregator="mean" if isinstance(method, JudgingMethod) else None)


def directions(
    text: str, aggregates: Sequence[float], *, plugin: str | Path | None = None
) -> list[float]:
    """Return a method's directions g_1, g_2, ... from the aggregates of rounds with one mini-batch,
    for d = 1.
    """
    component("methods", text, plugin)
    method, values = _made(text), []
    state: State = {}
    for number in aggregates:
        aggregate = torch.tensor([number], dtype=torch.float64)
        if method.settle is not None:
            aggregate, state = method.settle(aggregate, state)
        values.append(float(senders(method).direct([aggregate], Plan(None, (1,)))[0]))
    return values


def _made(text: str) -> Method:
    method: Method = component("methods", text, None).build(MethodSetting(M, 1000, 0.1))
    return method if method.with_measured is None else method.with_measured(Measured(1.0, 0.1, 1.0))


def _plans(method: Method) -> list[Plan]:
    return [method.plan(np.random.Generator(np.random.Philox(seed))) for seed in range(40)]


def _check_messages(text: str, plans: list[Plan]) -> None:
    for plan in dict.fromkeys(plans):
        method = senders(_made(text))
        state: State = {}
        aggregates: list[Tensor] = []
        for _ in plan.prefixes:
            message, state = method.send(torch.ones(M, D, dtype=torch.float64), state)
            require(
                message.shape == (M, D),
                f"{text}: send must return messages [m, d], not {list(message.shape)}",
            )
            aggregates.append(message.mean(0))
        direction, accepted = method.direct(aggregates, plan)
        require(
            direction.shape == (D,), f"{text}: direct must return [d], not {list(direction.shape)}"
        )
        require(direction.isfinite().all(), f"{text}: equal gradients have no finite direction")
        boolean = accepted is None or accepted.dtype == torch.bool
        require(boolean, f"{text}: direct must return None or a bool tensor besides g_t")


def _check_memory(text: str) -> None:
    sent = []
    for earlier in (1.0, 5.0):
        method = senders(_made(text))
        _, state = method.send(torch.full((M, D), earlier), {})
        sent.append(method.send(torch.ones(M, D), state)[0])
    remembers = not torch.equal(*sent)
    method = senders(_made(text))
    require(
        remembers == method.remembers,
        f"{text}: messages depend on earlier gradients: {remembers}; say remembers=",
    )
    if not method.by_row:
        return
    first, second = (
        torch.randn(M, D, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)
    )
    _, state = method.send(first.clone(), {})
    rows = {name: value.clone() for name, value in state.items()}
    both, _ = method.send(second.clone(), {name: value.clone() for name, value in rows.items()})
    some, _ = method.send(
        second[1:3].clone(), {name: value[1:3].clone() for name, value in rows.items()}
    )
    require(
        torch.equal(some, both[1:3]),
        f"{text}: by_row=True, but a worker's message depends on other workers' rows",
    )
