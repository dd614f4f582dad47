"""Centred trimmed meta-aggregation around another rule."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynabro_cli.components.aggregators._api import (
    REGISTRY,
    Aggregator,
    AggregatorSetting,
    State,
    declared,
    proved,
    tolerated,
)
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import Component, parameter, split_text
from dynabro_cli.core.vectors.lengths import lengths
from dynabro_cli.core.vectors.means import mean_of

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    rule: str = parameter(
        "cwtm",
        help="the rule whose result is the centre, its parameters joined by :, such as gm:T=3",
    )
    f: int | None = parameter(
        None,
        minimum=0,
        auto=declared,
        help="messages to leave out; auto: declared Byzantine workers",
    )

    def __post_init__(self) -> None:
        """Write the rule canonically, so that a run has one key; the factory reports problems."""
        with contextlib.suppress(SpecError):
            object.__setattr__(self, "rule", _parse(self.rule).joined(":"))

    @property
    def components(self) -> tuple[Component[Any], ...]:
        """The rule."""
        return (_parse(self.rule),)


@REGISTRY.register(
    "ctma", Parameters, reference="Dahan & Levy, ICML 2024, arXiv 2405.14759, Algorithm 1 (CTMA)"
)
def ctma(parameters: Parameters, setting: AggregatorSetting) -> Aggregator:
    """Centred trimmed meta-aggregation (CTMA): the mean of the m - f messages that are nearest to
    another rule's result.

    a_0 = rule(g_1, ..., g_m), S = the m - f messages with the smallest |g_i - a_0|, ties to the
    lowest index, and A = mean of the g_i with i in S. After pre-aggregators, both steps see the
    messages that come out of them.

    kappa = 4 f/(m - f) (1 + kappa of the rule). For m - f honest messages H with mean g_H: S and H
    differ in k <= f messages each way. The messages in S are no farther from a_0, so |A - g_H| <=
    2/(m - f) sum over H without S of |g_i - a_0|, which is at most 2 sqrt(f/(m - f)) times the root
    of the mean of |g_i - a_0|^2 over H.

    The state is the rule's state. Costs O(m d), and the rule's own cost. Raises SpecError unless 2
    f < m, or if the rule cannot be built.

    Differs from the paper: all workers have weight 1, and the bound is for Definition 3.2 of
    DynaBRO. The authors' code adds messages that tie at the (m - f)-th distance to the sum. With
    nearest-neighbour mixing, their code trims the unmixed messages.
    """
    m, f = setting.workers, tolerated("ctma", parameters.f, setting)
    return around(_build(parameters.rule, setting), m, f, setting)


def around(rule: Aggregator, m: int, f: int, setting: AggregatorSetting) -> Aggregator:
    """Return the meta-rule around a built rule."""

    def aggregate(messages: Tensor, state: State, batches: int | Tensor) -> tuple[Tensor, State]:
        centre, state = rule.aggregate(messages, state, batches)
        order = lengths(messages - centre).sort(stable=True).indices
        near = torch.zeros_like(order, dtype=torch.bool).index_fill(0, order[: m - f], value=True)
        return mean_of(messages, near), state

    at_threshold = rule.at_threshold
    return Aggregator(
        aggregate,
        None if rule.kappa is None else proved(4 * f / (m - f) * (1 + rule.kappa), f, setting),
        by_number=rule.by_number,
        needs_server=rule.needs_server,
        at_threshold=None
        if at_threshold is None
        else lambda threshold: around(at_threshold(threshold), m, f, setting),
    )


def _build(text: str, setting: AggregatorSetting) -> Aggregator:
    try:
        rule: Aggregator = _parse(text).build(setting)
    except SpecError as error:
        raise SpecError(f"aggregator 'ctma', rule={text}: {'; '.join(error.problems)}") from None
    return rule


def _parse(text: str) -> Component[Any]:
    """Read ``name:key=value:key=value``; raise SpecError if the name is not a rule, or is ``ctma``
    itself.
    """
    name, _, rest = text.partition(":")
    if name == "ctma":
        raise SpecError("aggregator 'ctma' cannot be its own rule. Try: rule=cwtm")
    return REGISTRY.parse(f"{name}:{','.join(split_text(rest, ':'))}" if rest else name)
