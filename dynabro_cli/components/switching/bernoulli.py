"""Bernoulli switching."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dynabro_cli.components.switching._api import REGISTRY, Array, Mask, Switching, SwitchingSetting
from dynabro_cli.core.lazy import np
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.streams import Streams


@dataclass(frozen=True)
class Parameters:
    p: float = parameter(
        minimum=0, maximum=1, help="probability that an honest worker turns Byzantine at a tick"
    )
    D: int = parameter(minimum=1, help="ticks for which it stays Byzantine")
    delta_max: float = parameter(
        minimum=0, maximum=1, help="largest fraction of Byzantine workers at once"
    )
    draws: str = parameter(
        "honest",
        choices=("honest", "all"),
        later=True,
        help="workers that draw; with all, a 1 restarts the D ticks of a Byzantine one",
    )


@REGISTRY.register(
    "bernoulli", Parameters, reference="DynaBRO (ICML 2024), Section 6, Bernoulli(p, D, delta_max)"
)
def bernoulli(parameters: Parameters, setting: SwitchingSetting) -> Switching:
    """Bernoulli(p, D, delta_max): at each tick every honest worker draws Ber(p); on 1 it is
    Byzantine for D ticks.

    At most floor(delta_max m) workers are Byzantine at a time: if too many draw 1, a uniform choice
    of them turns Byzantine and the rest stay honest. The declared number of Byzantine workers is
    not used. A worker whose D ticks are over draws again at once.

    With draws=all, Byzantine workers draw, too: a worker whose draw is 1 is Byzantine for D ticks
    from now on.

    Differs from the paper: the paper samples "independently across workers and iterations", and
    does not say whether a worker that is already Byzantine draws. Both readings are here.
    """
    m = setting.workers
    # so that 0.72 x 25 is 18, despite binary fractions
    most = math.floor(parameters.delta_max * m + 1e-9)
    streams = Streams(setting.seed)
    # ticks that each worker stays Byzantine, the current one included
    rounds_left = np.zeros(m, dtype=np.int64)
    at = -1

    def step(t: int) -> None:
        np.maximum(rounds_left - 1, 0, out=rounds_left)
        generator = streams.moved("identities", t)
        drawn = generator.random(m) < parameters.p
        if parameters.draws == "all":
            rounds_left[drawn & (rounds_left > 0)] = parameters.D
        turning = np.flatnonzero(drawn & (rounds_left == 0))
        room = most - int((rounds_left > 0).sum())
        if len(turning) > room:
            turning = generator.choice(turning, room, replace=False)
        rounds_left[turning] = parameters.D

    def mask(t: int) -> Array:
        nonlocal at
        if t < at:
            # a tick depends on all ticks before it, so an earlier one begins again at the start
            rounds_left[:], at = 0, -1
        while at < t:
            at += 1
            step(at)
        return rounds_left > 0

    return Switching(Mask(mask))
