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
        send: Maps the workers' means over one prefix [m, d] and the state to their messages [m, d] and the next state;
            called for each prefix. The state belongs to the method, which may update it in place.
        keep: Puts attacked messages into the state, for attacks that enter there.
        direct: Maps the aggregates of the messages, [d] for each prefix, and the plan to g_t [d] and whether the fail-safe
            filter accepted the correction (a bool tensor; None where there was none to judge).
        beta: The momentum parameter, None without momentum.
        remembers: Whether past gradients influence a worker's messages.
        mlmc: Whether the default learning rate is that of MLMC methods.
        threshold: MFM's T^0, where the method sets it.
        wants_noise: Whether V has to be measured before the first round.
        noise_bound: The V in use, None where none is.
        jmax: The largest MLMC level at which a round has a correction, None without MLMC.
        by_row: Whether the state is made of tensors with a row for each worker, 0 at first, so that some of the workers can
            send while those of the others are kept.
    """

    plan: Callable[[np.random.Generator], Plan]
    send: Callable[[Tensor, State], tuple[Tensor, State]]
    keep: Callable[[Tensor, State], State]
    direct: Callable[[Sequence[Tensor], Plan], tuple[Tensor, Tensor | None]]
    beta: float | None = None
    remembers: bool = False
    mlmc: bool = False
    threshold: float | None = None
    wants_noise: bool = False
    noise_bound: float | None = None
    jmax: int | None = None
    by_row: bool = False


NOISE_COMPUTATIONS = 10
"""What measuring V costs each worker before the first round, in gradient computations."""

REGISTRY: Registry[Callable[..., Method]] = Registry("method", "dynabro_cli.methods")


def one_batch(_: np.random.Generator) -> Plan:
    """The plan of methods that compute one mini-batch a round."""
    return Plan(None, (1,))


def send_gradients(gradients: Tensor, state: State) -> tuple[Tensor, State]:
    """Send the gradients as they are; nothing is remembered."""
    return gradients, state


def keep_nothing(_: Tensor, state: State) -> State:
    """Workers that remember nothing have nowhere to keep an attacked message."""
    return state


def direct_aggregate(aggregates: Sequence[Tensor], _: Plan) -> tuple[Tensor, None]:
    """g_t is the aggregate of the round's one message."""
    return aggregates[0], None
