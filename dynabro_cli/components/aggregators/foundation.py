"""FoundationFL: a known rule on the workers' messages and synthetic messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.aggregators._api import (
    REGISTRY,
    Aggregator,
    AggregatorSetting,
    declared,
    stateless,
    tolerated,
)
from dynabro_cli.components.aggregators._order import middle_mean
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.vectors.lengths import lengths

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    copies: int = parameter(2, minimum=0, help="synthetic messages beside the workers'")
    rule: str = parameter(
        "cwtm", choices=("cwtm", "cwmed"), help="rule for all of them: trimmed mean, or median"
    )
    f: int | None = parameter(
        None,
        minimum=0,
        auto=declared,
        help="values cut off at each end by cwtm; auto: the declared number of Byzantine",
    )


@REGISTRY.register(
    "foundation", Parameters, reference="Fang et al., NDSS 2025, arXiv 2501.17381 (FoundationFL)"
)
def foundation(parameters: Parameters, setting: AggregatorSetting) -> Aggregator:
    """FoundationFL: a coordinate-wise rule on the messages and on copies of the message that is
    farthest from all extremes.

    With g_max and g_min the largest and smallest value of every coordinate, s_i = min(|g_i -
    g_max|, |g_i - g_min|) and i* = argmax s_i, the lowest index in a tie: A = rule(g_1, ..., g_m,
    g_i*, ..., g_i*), with g_i* ``copies`` times. With copies=0 it is the rule itself. No kappa is
    proved: the copied message may be a Byzantine one between the extremes.

    Costs O(m log m d). Raises SpecError unless 2 f < m + copies, or if half of the workers or more
    are declared Byzantine.

    Differs from the paper: the default number of copies comes from a public library; the paper's
    number is not known here.
    """
    m, copies = setting.workers, parameters.copies
    tolerated("foundation", None, setting)
    f = setting.byzantine if parameters.f is None else parameters.f
    if 2 * f >= m + copies:
        raise SpecError(
            f"aggregator 'foundation': f={f} is not legal with {m} workers and "
            f"copies={copies}; 2 f must be under "
            f"{m + copies}. Try: f={(m + copies - 1) // 2}, or less"
        )
    trim = f if parameters.rule == "cwtm" else (m + copies - 1) // 2

    def rule(messages: Tensor) -> Tensor:
        highest, lowest = messages.max(0).values, messages.min(0).values
        scores = torch.minimum(_apart(messages, highest), _apart(messages, lowest))
        chosen = messages.index_select(0, scores.argmax()[None])
        return middle_mean(torch.cat([messages, chosen.expand(copies, -1)]), trim)

    return stateless(rule, None)


def _apart(messages: Tensor, place: Tensor) -> Tensor:
    """Return half the distances [m] of messages [m, d] from a vector [d]; a whole difference may
    overflow.
    """
    return lengths(messages / 2 - place / 2)
