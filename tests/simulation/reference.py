"""The quadratic of Appendix E once more, in plain NumPy: what the simulation is checked against."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dynabro_cli import RunSpec, make_switching, simulate
from dynabro_cli.core import events
from dynabro_cli.core.streams import Streams

Vectors = np.ndarray
A = np.array([[2.0, 1.0], [1.0, 2.0]])
START = np.array([3.0, -3.0])
SIGMA = 0.5


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The events of a run, by kind."""

    started: events.Started
    rounds: list[events.Round]
    evaluations: list[events.Evaluated]
    last: events.Finished | events.Diverged

    @property
    def norms(self) -> list[float]:
        return [item.gradient_norm for item in self.rounds]

    @property
    def gaps(self) -> list[float | None]:
        return [item.gap for item in self.evaluations]


def run(**fields: Any) -> Outcome:
    """Simulate ``RunSpec(**fields)`` on the CPU."""
    stream = list(simulate(RunSpec(**fields), device="cpu"))
    started, *middle, last = stream
    assert isinstance(started, events.Started)
    assert isinstance(last, events.Finished | events.Diverged)
    rounds = [
        item for event in middle if isinstance(event, events.RoundsDone) for item in event.rounds
    ]
    return Outcome(
        started, rounds, [event for event in middle if isinstance(event, events.Evaluated)], last
    )


def quadratic(**fields: Any) -> Outcome:
    """Simulate on the quadratic, evaluated after every round unless said otherwise."""
    return run(**({"task": "quadratic", "eval_every": 1} | fields))


def masks(
    switching: str,
    workers: int,
    byzantine: int,
    ticks: int,
    beta: float | None = None,
    seed: int = 0,
) -> list[Vectors]:
    """The Byzantine workers at ticks 0, 1, ..."""
    strategy = make_switching(switching, workers=workers, byzantine=byzantine, seed=seed, beta=beta)
    return [strategy.mask(tick).numpy() for tick in range(ticks)]


def noise(
    workers: int, round_: int, computation: int, batch_size: int = 1, seed: int = 0
) -> Vectors:
    """The noise of one mini-batch of every worker, [m, 2]."""
    draws = (
        Streams(seed)
        .generator("noise", round_, computation)
        .standard_normal((workers * batch_size, 2))
    )
    return SIGMA * draws.reshape(workers, batch_size, 2).mean(1)


def level(round_: int, seed: int = 0) -> int:
    """J of a round."""
    return int(Streams(seed).generator("level", round_).geometric(0.5))


def sf(own: Vectors, byzantine: Vectors) -> Vectors:
    return np.where(byzantine[:, None], -own, own)


def ipm(own: Vectors, byzantine: Vectors) -> Vectors:
    return np.where(byzantine[:, None], -0.1 * own[~byzantine].mean(0), own)


def alie(own: Vectors, byzantine: Vectors) -> Vectors:
    """ALIE with z = 1, whatever the number of Byzantine workers."""
    honest = own[~byzantine]
    return np.where(byzantine[:, None], honest.mean(0) - honest.std(0, ddof=1), own)


ATTACKS: dict[str, Callable[[Vectors, Vectors], Vectors]] = {"sf": sf, "ipm": ipm, "alie:z=1": alie}


def trimmed(messages: Vectors, f: int) -> Vectors:
    """The coordinate-wise trimmed mean."""
    return np.sort(messages, axis=0)[f : len(messages) - f].mean(0)


def mfm(messages: Vectors, threshold: float) -> Vectors:
    """Algorithm 3 of the paper, line by line."""
    m = len(messages)
    for candidate in messages:
        distances = np.linalg.norm(messages - candidate, axis=1)
        if (distances <= threshold / 2).sum() > m / 2:
            return messages[distances <= threshold].mean(0)
    return np.zeros(messages.shape[1])


def gap(x: Vectors) -> float:
    return float(0.5 * x @ A @ x)


def descend(
    directions: Callable[[int, Vectors], Vectors], rounds: int, rate: float
) -> tuple[list[float], list[float]]:
    """x <- x - rate g for ``rounds`` rounds; return the gaps, from x_1 on, and the |g|."""
    x, gaps, norms = START, [gap(START)], []
    for round_ in range(rounds):
        direction = directions(round_, x)
        x = x - rate * direction
        gaps.append(gap(x))
        norms.append(float(np.linalg.norm(direction)))
    return gaps, norms


def momentum(
    workers: int,
    identities: Sequence[Vectors],
    attack: Callable[[Vectors, Vectors], Vectors],
    aggregate: Callable[[Vectors], Vectors],
    *,
    beta: float,
    gain: float,
    entry: str,
) -> Callable[[int, Vectors], Vectors]:
    """The directions of worker momentum, with the attack before it, on what is sent, or on what is
    sent and kept.
    """
    kept = np.zeros((workers, 2))

    def direction(round_: int, x: Vectors) -> Vectors:
        nonlocal kept
        gradients = x @ A + noise(workers, round_, 0)
        if entry in ("gradient", "computation"):
            gradients = attack(gradients, identities[round_])
        kept = beta * kept + gain * gradients
        sent = kept if entry in ("gradient", "computation") else attack(kept, identities[round_])
        if entry == "state":
            kept = sent
        return aggregate(sent)

    return direction


@dataclasses.dataclass
class DynaBRO:
    """The directions of Algorithm 2, mini-batch after mini-batch; ``limit(J)`` is the filter's
    bound, inf without filter. ``each``: the attack acts on each mini-batch in static rounds, too.
    """

    workers: int
    ticks: Sequence[Vectors]  # the identities at every tick of the clock
    by_round: bool
    jmax: int
    attack: Callable[[Vectors, Vectors], Vectors]
    aggregate: Callable[[Vectors, int], Vectors]
    limit: Callable[[int], float] = lambda _: math.inf
    each: bool = False
    costs: list[int] = dataclasses.field(default_factory=list)
    accepted: list[bool | None] = dataclasses.field(default_factory=list)
    errors: list[float | None] = dataclasses.field(default_factory=list)

    def __call__(self, round_: int, x: Vectors) -> Vectors:
        drawn = level(round_)
        count = 2**drawn if drawn <= self.jmax else 1
        first = round_ if self.by_round else sum(self.costs)
        who = [self.ticks[first if self.by_round else first + k] for k in range(count)]
        # [2^J, m, 2]
        gradients = np.stack([x @ A + noise(self.workers, round_, k) for k in range(count)])
        static = not self.each and all(np.array_equal(mask, who[0]) for mask in who)
        if not static:
            gradients = np.stack(
                [self.attack(own, mask) for own, mask in zip(gradients, who, strict=True)]
            )

        def sent(j: int) -> Vectors:
            message = gradients[: 2**j].mean(0)
            return self.attack(message, who[0]) if static else message

        def aggregated(j: int) -> Vectors:
            return self.aggregate(sent(j), 2**j)

        highest = drawn if count > 1 else 0
        honest = ~np.any(who, axis=0)  # honest in every computation of the round
        error = aggregated(highest) - sent(highest)[honest].mean(0) if honest.any() else None
        self.errors.append(None if error is None else float(np.linalg.norm(error)))
        self.costs.append(count)
        if count == 1:
            self.accepted.append(None)
            return aggregated(0)
        difference = aggregated(drawn) - aggregated(drawn - 1)
        within = bool(np.linalg.norm(difference) <= self.limit(drawn))
        self.accepted.append(within)
        return aggregated(0) + (count * difference if within else 0)
