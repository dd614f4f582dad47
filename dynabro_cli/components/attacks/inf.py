"""Infinite vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynabro_cli.components.attacks._api import REGISTRY, Attack, AttackSetting, memoryless, replace
from dynabro_cli.core.registration import NoParameters

if TYPE_CHECKING:
    from torch import Tensor


@REGISTRY.register("inf", reference="the overflow of a broken worker; as Inf of ByzFL")
def inf(_: NoParameters, setting: AttackSetting) -> Attack:
    """Inf: every coordinate is plus infinity, as from a worker whose numbers have overflowed.

    g~_i = (Inf, ..., Inf). A worker's momentum never recovers from such a vector: the worker still
    sends Inf or NaN when it is honest again. So under switching all workers are lost in the end.
    With attack_entry=message they recover. The recorded aggregation error leaves out workers whose
    message is not finite.
    """

    def messages(vectors: Tensor, byzantine: Tensor) -> Tensor:
        return replace(vectors, byzantine, vectors.new_full((), float("inf")))

    return memoryless(messages, reads_own=False, finite=False)
