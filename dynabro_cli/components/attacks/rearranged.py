"""The rearranged attack, on rules that look at lengths and counts of signs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.attacks._api import (
    REGISTRY,
    Attack,
    AttackSetting,
    honest_mean,
    honest_weights,
    memoryless,
    replace,
)
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.vectors.lengths import lengths

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    pass


@REGISTRY.register(
    "rearranged",
    Parameters,
    reference="dynabro's own; relatives: Xie, Koyejo & Gupta, UAI 2019 (inner product), and "
    "Shejwalkar & Houmansadr, NDSS 2021 "
    "(within what a rule accepts)",
)
def rearranged(parameters: Parameters, setting: AttackSetting) -> Attack:
    """Rearranged: the entries of an honest message, in the order that points most against the
    honest mean.

    g~_i = P g_j. g_j is the honest message of median length (the shorter of two), and P the
    permutation of coordinates with the least inner product <P g_j, g_bar>: the largest entry of g_j
    goes where g_bar is smallest, and so on (the rearrangement inequality). All Byzantine workers
    send the same message. If all workers are Byzantine, all count as honest.

    A permutation keeps the length and the numbers of positive, zero and negative entries, and so
    all that ``signguard`` looks at. Its sample of coordinates shows these numbers up to the noise
    of the sample. Costs O(m d + d log d).
    """

    def messages(vectors: Tensor, byzantine: Tensor) -> Tensor:
        weights, count = honest_weights(byzantine, vectors)
        sizes = lengths(vectors)
        # a Byzantine row comes last, even after an honest one that is not finite
        most = torch.finfo(sizes.dtype).max
        ordered = torch.where(weights > 0, sizes.nan_to_num(most, most), torch.inf).argsort(
            stable=True
        )
        middle = ordered.index_select(0, ((count - 1) / 2).long()[None])
        values = vectors.index_select(0, middle)[0].sort().values
        places = honest_mean(vectors, byzantine).argsort(descending=True, stable=True)
        return replace(vectors, byzantine, torch.empty_like(values).scatter(0, places, values))

    return memoryless(messages, reads_own=False)
