"""Static clipping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.aggregators._api import AggregatorSetting
from dynabro_cli.components.pre_aggregators._api import REGISTRY, PreAggregator
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.vectors.lengths import clipped, lengths

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    c: float = parameter(above=0, help="largest length of a message, in the messages' own units")


@REGISTRY.register(
    "clipping", Parameters, reference="as in Allouah et al., ICLR 2025 (Section 3, static clipping)"
)
def clipping(parameters: Parameters, setting: AggregatorSetting) -> PreAggregator:
    """Static clipping: messages longer than c are shortened to c.

    y_i = g_i min(1, c/|g_i|).

    No kappa: for every c, a robust rule after clipping is no longer robust (Allouah et al., ICLR
    2025, Lemma 3.1). Costs O(m d).
    """

    def mix(messages: Tensor) -> Tensor:
        return clipped(
            messages,
            lengths(messages),
            torch.full((), parameters.c, dtype=torch.float64, device=messages.device),
        )

    return PreAggregator(mix, setting.workers, lambda _: None)
