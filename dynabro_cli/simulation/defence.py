"""What an attack that sees the defence is shown: what the server would make of other vectors, without making it."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from dynabro_cli.aggregators._finite import sound
from dynabro_cli.attacks._api import Defence, honest_mean
from dynabro_cli.simulation.parts import Parts

States = dict[str, Tensor]
Strike = Callable[[Tensor, Tensor, States, States, States, "int | Tensor"], Tensor]


def make_strike(parts: Parts, aggregate: Callable[..., tuple[Tensor, States]]) -> Strike:
    """The attack as a function of the workers' vectors, the mask, the states of attack, method and aggregator, and the number
    of mini-batches that the vectors are means of.

    Args:
        parts: What the run is made of.
        aggregate: The run's rule for messages that are finite, compiled or not.
    """
    attack, enters = parts.attack, parts.spec.attack_entry

    def made_of(vectors: Tensor, of_method: States) -> Tensor:
        """The messages that the workers would send; methods update their state in place, so they get a copy."""
        if enters != "gradient":
            return vectors
        return parts.method.send(vectors, {name: value.clone() for name, value in of_method.items()})[0]

    def strike(
        own: Tensor, byzantine: Tensor, of_attack: States, of_method: States, of_aggregator: States, batches: int | Tensor
    ) -> Tensor:
        if not attack.sees_defence:
            return attack.messages(own, byzantine, of_attack)
        seen = Defence(
            honest_mean(made_of(own, of_method), byzantine),
            lambda vectors: aggregate(sound(made_of(vectors, of_method))[0], of_aggregator, batches)[0],
        )
        return attack.messages(own, byzantine, of_attack, seen)

    return strike
