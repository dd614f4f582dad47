"""Label flipping."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynabro_cli.components.attacks._api import ON_DATA, REGISTRY, Attack, AttackSetting, stay
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import NoParameters

if TYPE_CHECKING:
    from torch import Tensor


@REGISTRY.register(
    "label-flip",
    reference="Tolpegin, Truex, Gursoy & Liu, ESORICS 2020; the map of Karimireddy, He & "
    "Jaggi, ICML 2021",
)
def label_flip(_: NoParameters, setting: AttackSetting) -> Attack:
    """Label flip: a Byzantine worker follows the protocol, on wrong labels.

    g~_i is the gradient of i's own mini-batch with every label y replaced by C - 1 - y, C the
    number of classes. If C is odd, the middle class keeps its label. Each gradient computation uses
    wrong labels for the workers that are Byzantine in it. The attack acts on data
    (attack_entry=data, to which auto resolves), so it needs a task with labels. train_loss is the
    loss of the honest workers.
    """

    def labels(given: Tensor, byzantine: Tensor, classes: int) -> Tensor:
        return torch.where(byzantine[:, None], classes - 1 - given, given)

    return Attack(
        {}, lambda vectors, _byzantine, _state: vectors, stay, labels=labels, entries=(ON_DATA,)
    )
