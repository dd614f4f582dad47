"""The contract of training methods, and their registry.

A method is a factory ``(parameters, MethodSetting) -> Method``. In a round the method plans its mini-batches, turns each
worker's prefix means into messages (this is where worker momentum lives), and makes a direction g_t of the aggregates;
the update x_{t+1} = Proj_K(x_t - eta_t (g_t + wd x_t)) is the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from dynabro_cli.components import Registry

State = dict[str, Tensor]
Aggregate = Callable[[Tensor, int], Tensor]


@dataclass(frozen=True)
class MethodSetting:
    """What a method knows of its run: m, the budget, kappa of the aggregation chain, and V where it was measured."""

    workers: int
    budget: int
    kappa: float | None = None
    measured_noise: float | None = None


class Plan(NamedTuple):
    """A round's mini-batches: the MLMC level drawn (None without MLMC), and the prefix lengths, the longest last."""

    level: int | None
    prefixes: tuple[int, ...]


class Method(NamedTuple):
    """A method in its setting.

    Attributes:
        plan: Draws a round's plan.
        send: Maps the prefix means, a tensor [m, d] each, and the state to the messages, one for each prefix, and the
            next state. The state belongs to the method, which may update it in place.
        keep: Puts attacked messages into the state, for attacks that enter there.
        direct: Maps the messages, the plan, and ``aggregate(messages, prefix) -> [d]`` to g_t [d] and whether the fail-safe
            filter accepted the correction (a bool tensor; None where there was none to judge).
        beta: The momentum parameter, None without momentum.
        mlmc: Whether the default learning rate is that of MLMC methods.
        threshold: MFM's T^0, where the method sets it.
        wants_noise: Whether V has to be measured before the first round.
        noise_bound: The V in use, None where none is.
    """

    plan: Callable[[np.random.Generator], Plan]
    send: Callable[[Sequence[Tensor], State], tuple[Sequence[Tensor], State]]
    keep: Callable[[Sequence[Tensor], State], State]
    direct: Callable[[Sequence[Tensor], Plan, Aggregate], tuple[Tensor, Tensor | None]]
    beta: float | None = None
    mlmc: bool = False
    threshold: float | None = None
    wants_noise: bool = False
    noise_bound: float | None = None


REGISTRY: Registry[Callable[..., Method]] = Registry("method", "dynabro_cli.methods")


def one_batch(_: np.random.Generator) -> Plan:
    """The plan of methods that compute one mini-batch a round."""
    return Plan(None, (1,))


def send_gradients(gradients: Sequence[Tensor], state: State) -> tuple[Sequence[Tensor], State]:
    """Send the gradients as they are; nothing is remembered."""
    return gradients, state


def keep_nothing(_: Sequence[Tensor], state: State) -> State:
    """Workers that remember nothing have nowhere to keep an attacked message."""
    return state


def direct_aggregate(messages: Sequence[Tensor], plan: Plan, aggregate: Aggregate) -> tuple[Tensor, None]:
    """g_t is the aggregate of the round's one message."""
    return aggregate(messages[0], plan.prefixes[0]), None
