"""Vectors of NaN."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynabro_cli.components.attacks._api import REGISTRY, Attack, AttackSetting, memoryless, replace
from dynabro_cli.core.registration import NoParameters

if TYPE_CHECKING:
    from torch import Tensor


@REGISTRY.register("nan", reference="the 0/0 of a broken worker")
def nan(_: NoParameters, setting: AttackSetting) -> Attack:
    """NaN: every coordinate is NaN, as from a worker that has divided by zero.

    g~_i = (NaN, ..., NaN). A worker's momentum never recovers from such a vector: the worker still
    sends NaN when it is honest again. So under switching all workers are lost in the end. With
    attack_entry=message they recover. The recorded aggregation error leaves out workers whose
    message is not finite.
    """

    def messages(vectors: Tensor, byzantine: Tensor) -> Tensor:
        return replace(vectors, byzantine, vectors.new_full((), float("nan")))

    return memoryless(messages, reads_own=False, finite=False)
