"""FLTrust: trust by the angle to the server's own gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynabro_cli.components.aggregators._api import (
    REGISTRY,
    SERVER,
    Aggregator,
    AggregatorSetting,
    State,
)
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import NoParameters
from dynabro_cli.core.vectors.means import weighted

if TYPE_CHECKING:
    from torch import Tensor


@REGISTRY.register(
    "fltrust", reference="Cao, Fang, Liu & Gong, NDSS 2021, arXiv 2012.13995 (FLTrust), Algorithm 2"
)
def fltrust(_: NoParameters, setting: AggregatorSetting) -> Aggregator:
    """FLTrust: the mean of the messages, scaled to the length of the server's gradient, weighted by
    their cosines with it.

    With g_0 the server's gradient, TS_i = max(0, <g_i, g_0>/(|g_i| |g_0|)) and A = sum_i TS_i
    (|g_0|/|g_i|) g_i/sum_i TS_i. If no trust score TS_i is positive, A = 0. The rule does not use
    f, and any number of workers may be Byzantine.

    g_0 is a mini-batch gradient at x_t of samples that the server holds: --data iid:server=100, or
    the same with another partition. On an objective the server draws noise like a worker. At level
    j of ``dynabro``, g_0 is the mean over the server's first 2^j mini-batches. g_0 has no memory:
    with momentum, the rule compares messages with a gradient, and gives them its length.

    No kappa: Definition 3.2 has no server. Costs O(m d), and one more worker's gradients.

    Differs from the paper: workers take one local step, and the run's learning rate replaces the
    global one. The server draws a mini-batch, as in Algorithm 2; the authors' code uses all its
    samples, and adds 1e-9 to lengths and to the sum of trust.
    """

    def aggregate(messages: Tensor, state: State, _: int | Tensor) -> tuple[Tensor, State]:
        units, _sizes = directed(messages)
        unit, (largest, size) = directed(state[SERVER][None])
        trust = (units @ unit[0]).double().clamp(0, 1)  # a NaN stays
        mean = weighted(units, trust).double() * size * largest
        # lengths may be larger than any number, if entries are not
        limit = torch.finfo(messages.dtype).max
        return mean.clamp(-limit, limit).to(messages.dtype), {}

    return Aggregator(aggregate, None, needs_server=True)


def directed(vectors: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return vectors [m, d] scaled to length 1 (0 if they are 0), and two factors [m] whose product
    is their length.

    The second factor, the largest entry, is taken out first, so that no square overflows or
    underflows.
    """
    largest = vectors.abs().amax(1, keepdim=True)
    scaled = vectors / torch.where(largest == 0, 1, largest)
    sizes = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
    return scaled / torch.where(sizes == 0, 1, sizes), (
        largest[:, 0].double(),
        sizes[:, 0].double(),
    )
