"""Where an attack enters, and what it cannot enter."""

from __future__ import annotations

from typing import Any

from dynabro_cli.attacks._api import ON_VECTORS, Attack, AttackSetting
from dynabro_cli.components import Component
from dynabro_cli.errors import SpecError
from dynabro_cli.spec import RunSpec

WORDS = {"gradient": "gradients", "message": "messages", "state": "states", "data": "data"}


def usual_entry(attack: Component[Any] | None, setting: AttackSetting) -> str:
    """What attack_entry=auto comes to; where the attack cannot be built, which is told elsewhere, as for most of them."""
    try:
        entries: tuple[str, ...] = ON_VECTORS if attack is None else attack.build(setting).entries
    except SpecError:
        entries = ON_VECTORS
    return entries[0]


def conflicts(spec: RunSpec, name: str, attack: Attack, *, has_labels: bool) -> list[str]:
    """What is wrong between an attack, where it enters, and what is trained, a line each."""
    found = []
    if spec.attack_entry not in attack.entries:
        acts = " or ".join(WORDS[entry] for entry in attack.entries)
        found.append(
            f"attack {name!r} acts on {acts}, and attack_entry={spec.attack_entry}; "
            f"leave --attack-entry out, or type --attack-entry {attack.entries[0]}"
        )
    if attack.labels is not None and not has_labels:
        found.append(f"attack {name!r} changes labels, and task {spec.task!r} has none; type another --attack or --task")
    return found
