"""Divide and conquer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.aggregators._api import (
    REGISTRY,
    Aggregator,
    AggregatorSetting,
    declared,
    numbered,
    tolerated,
)
from dynabro_cli.components.aggregators._draws import Draws
from dynabro_cli.components.aggregators._selection import lowest
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.vectors.gram import gram
from dynabro_cli.core.vectors.means import mean_of

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
    c: float = parameter(
        1.0,
        above=0,
        maximum=2,
        help="filtering fraction: each iteration removes floor(c f) messages",
    )
    iterations: int = parameter(1, minimum=1, help="iterations, each on other coordinates")
    b: int = parameter(10_000, minimum=1, help="coordinates per iteration; all if d is at most b")


@REGISTRY.register("dnc", Parameters, reference="Shejwalkar & Houmansadr, NDSS 2021 (Algorithm 2)")
def dnc(parameters: Parameters, setting: AggregatorSetting) -> Aggregator:
    """Divide and conquer (DnC): the mean without outliers along the direction of largest variance.

    Each iteration uses b random coordinates. With mu the messages' mean there and v the leading
    right singular vector of the matrix of rows g_i - mu, the floor(c f) messages with the largest
    <g_i - mu, v>^2 are bad. In a tie (up to 2^-40 of the scores' sum) the highest indices are bad.
    A(g_1, ..., g_m) = mean of the messages that are bad in no iteration. v is exact; it comes from
    the m x m Gram matrix.

    The coordinates depend only on the seed and on the call's number, which is the rule's state. No
    kappa is proved. Costs O(m d + iterations (m^2 b + m^3)). Raises SpecError if 2f >= m, or if
    iterations floor(c f) >= m, because all messages could be removed.

    Differs from the paper: one coordinate is drawn from each of b equally long stretches, instead
    of any b coordinates.
    """
    m = setting.workers
    f = tolerated("dnc", parameters.f, setting)
    bad, iterations = math.floor(parameters.c * f), parameters.iterations
    if iterations * bad >= m:
        raise SpecError(
            f"aggregator 'dnc': c={parameters.c:g} with f={f} takes out {bad} messages in each "
            f"of {iterations} "
            f"iterations, which may be all of {m} workers. Try: 'dnc:c=...' or "
            "'dnc:iterations=...' with "
            f"iterations floor(c f) < {m}"
        )
    draws = Draws(setting.seed)

    def rule(messages: Tensor, call: Tensor) -> Tensor:
        d, part = messages.shape[1], messages
        good = torch.ones(m, dtype=torch.bool, device=messages.device)
        for k in range(iterations):
            if parameters.b < d:
                chosen = draws.coordinates(call * iterations + k, parameters.b, d, messages.device)
                part = messages.index_select(1, chosen)
            good = good & lowest(outlier_scores(gram(part)), m - bad)
        return mean_of(messages, good)

    return numbered(rule, None)


def outlier_scores(products: Tensor) -> Tensor:
    """Return <g_i - mu, v>^2 for all i, from the Gram matrix of the g_i around any point: [m, m] ->
    [m].

    They are multiples of 2^-40 of their sum, so that messages that lie symmetrically score equally
    on every processor.
    """
    centred = products - products.mean(0) - products.mean(1, keepdim=True) + products.mean()
    eigenvalues, eigenvectors = torch.linalg.eigh(centred)
    shares = torch.round(eigenvectors[:, -1].square() * 2**40) / 2**40
    scores: Tensor = eigenvalues[-1].clamp_min(0) * shares
    return scores
