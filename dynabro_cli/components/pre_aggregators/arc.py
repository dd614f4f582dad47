"""Adaptive robust clipping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.aggregators._api import AggregatorSetting, declared, proved, tolerated
from dynabro_cli.components.pre_aggregators._api import REGISTRY, PreAggregator
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.vectors.lengths import clipped, lengths

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    f: int | None = parameter(
        None,
        minimum=0,
        auto=declared,
        help="Byzantine workers tolerated; auto: the declared number",
    )


@REGISTRY.register(
    "arc",
    Parameters,
    reference="Allouah, Guerraoui, Gupta, Jellouli, Rizk & Stephan, ICLR 2025 (Algorithm 2; "
    "kappa: Theorem 3.2)",
)
def arc(parameters: Parameters, setting: AggregatorSetting) -> PreAggregator:
    """Adaptive robust clipping (ARC): the longest messages are shortened to the length of the next
    one.

    y_i = g_i min(1, C/|g_i|), C the (k + 1)-th largest of the |g_i|, k = floor(2 (f/m) (m - f)).

    kappa of ARC before a rule with kappa_F is kappa_F + 2f/(m - 2f), if no more than f Byzantine
    workers are declared. Costs O(m d). Raises SpecError if 2f >= m.
    """
    m = setting.workers
    f = tolerated("arc", parameters.f, setting)
    k = 2 * f * (m - f) // m

    def mix(messages: Tensor) -> Tensor:
        norms = lengths(messages)
        return clipped(messages, norms, norms.sort(descending=True).values[k])

    return PreAggregator(mix, m, lambda kappa: proved(kappa + 2 * f / (m - 2 * f), f, setting))
