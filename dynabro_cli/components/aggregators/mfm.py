"""Median-filtered mean, the paper's own rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.aggregators._api import REGISTRY, Aggregator, AggregatorSetting, State
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.vectors.finite import number
from dynabro_cli.core.vectors.gram import distances
from dynabro_cli.core.vectors.means import mean_of

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    threshold: float | None = parameter(
        None,
        above=0,
        auto=lambda _, setting: setting.threshold,
        help="T for messages of one mini-batch; auto: 2 C V, from method dynabro:filter=option2",
    )


@REGISTRY.register("mfm", Parameters, reference="DynaBRO (ICML 2024), Algorithm 3 and Section 5")
def mfm(parameters: Parameters, setting: AggregatorSetting) -> Aggregator:
    """Median-filtered mean (MFM).

    M = {i : |{j : |g_j - g_i| <= T/2}| > m/2}. If M is empty, A = 0; else g_med is the first g_i
    with i in M, and A = mean of the g_i with |g_i - g_med| <= T. For messages that are means of N
    mini-batches, T = threshold/sqrt(N), as in Algorithm 2 (Option 2), T^j = 2 C V/sqrt(2^j).

    Not (delta, kappa)-robust for any kappa (Appendix F.1). Raises SpecError if no threshold is
    given or set by the method.
    """
    base = parameters.threshold if parameters.threshold is not None else setting.threshold
    if base is None:
        raise SpecError(
            "aggregator 'mfm' needs threshold= here. Try: 'mfm:threshold=VALUE', "
            "or the method dynabro:filter=option2, which sets it from noise_bound"
        )

    def at(base: float) -> Aggregator:
        def aggregate(
            messages: Tensor, state: State, batches: int | Tensor
        ) -> tuple[Tensor, State]:
            apart = distances(messages)
            threshold = base / number(batches, apart).sqrt()
            central = (apart <= threshold / 2).sum(1) > messages.shape[0] / 2  # [m]
            median = torch.argmax(central.int()).view(1)  # the first of M, or 0 if M is empty
            return mean_of(
                messages, (apart.index_select(0, median)[0] <= threshold) & central.any()
            ), state

        return Aggregator(
            aggregate, None, at_threshold=at if parameters.threshold is None else None
        )

    return at(base)
