"""Multi-Krum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.aggregators._api import (
    REGISTRY,
    Aggregator,
    AggregatorSetting,
    declared,
    proved,
    weighing,
)
from dynabro_cli.components.aggregators._selection import lowest, refuse_f
from dynabro_cli.components.aggregators.krum import proved_kappa
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.vectors.gram import squared_distances

if TYPE_CHECKING:
    from torch import Tensor


def all_but_f(parameters: Parameters, setting: AggregatorSetting) -> int:
    """Resolve q=auto: m - f."""
    return setting.workers - (setting.byzantine if parameters.f is None else parameters.f)


@dataclass(frozen=True)
class Parameters:
    f: int | None = parameter(
        None,
        minimum=0,
        auto=declared,
        help="Byzantine workers tolerated; auto: the declared number",
    )
    q: int | None = parameter(
        None, minimum=1, auto=all_but_f, help="number of messages that are averaged; auto: m - f"
    )
    neighbours: str = parameter(
        "paper",
        choices=("paper", "m-f-1"),
        help="number of nearest others in the score: m-f-2 as in the paper, or m-f-1",
    )


@REGISTRY.register(
    "multi-krum",
    Parameters,
    reference="Blanchard, El Mhamdi, Guerraoui & Stainer, NeurIPS 2017; kappa at q=1: Allouah "
    "et al., AISTATS 2023, Table 1",
)
def multi_krum(parameters: Parameters, setting: AggregatorSetting) -> Aggregator:
    """Multi-Krum: the mean of the q messages closest to their neighbours.

    With s(i) the sum of |g_i - g_j|^2 over the m - f - 2 messages j != i that are nearest to i
    (Krum's score), A(g_1, ..., g_m) = mean of the q messages with the lowest s; the lowest indices
    win ties. q=1 is Krum.

    kappa is Krum's, 6 (1 + f/(m - 2f)), if q = 1 and no more than f Byzantine workers are declared,
    with either number of neighbours (proved in ``krum.py``). For other q Bareilles et al. (2026)
    prove a kappa, which is not used here. Costs O(m^2 d). Raises SpecError unless 2f + 2 < m and
    1 <= q <= m - f.

    Differs from the paper: the paper leaves q open; other libraries use m - f.
    """
    m = setting.workers
    f = setting.byzantine if parameters.f is None else parameters.f
    refuse_f("multi-krum", f, m, 2, "2f + 2 < m")
    q = m - f if parameters.q is None else parameters.q
    if q > m - f:
        raise SpecError(
            f"aggregator 'multi-krum': q={q} is not legal with {m} workers and f={f}. "
            f"Try: 'multi-krum:q=...' with at most {m - f}"
        )
    scored = m - f - (2 if parameters.neighbours == "paper" else 1)

    def weigh(gram: Tensor) -> Tensor:
        # the first is the message itself
        nearest = squared_distances(gram).sort(1).values[:, 1 : 1 + scored]
        return lowest(nearest.sum(1), q).double()

    return weighing(weigh, proved(proved_kappa(m, f), f, setting) if q == 1 else None)
