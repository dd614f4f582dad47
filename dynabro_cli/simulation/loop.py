"""The simulation: m workers at one x_t, some of them Byzantine, and a server; a generator of events."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from dynabro_cli.aggregators._api import Aggregator
from dynabro_cli.attacks._api import Attack, honest_mean
from dynabro_cli.errors import SpecError
from dynabro_cli.events import Diverged, Evaluated, Event, Finished, Round, RoundsDone, Totals
from dynabro_cli.methods._api import Method, Plan
from dynabro_cli.simulation.problems import STATISTICS_MOMENTUM, Problem
from dynabro_cli.simulation.step import Step
from dynabro_cli.spec import RunSpec
from dynabro_cli.streams import Streams
from dynabro_cli.switching._api import Switching

FLUSH_ROUNDS = 16
NOISE_COMPUTATIONS = 10
NOISE_ROUND = 2**40  # the counter of the draws that measure V, out of reach of any round's


@dataclass
class Parts:
    """The parts that a simulation is put together from."""

    spec: RunSpec
    problem: Problem
    method: Method
    aggregator: Aggregator
    attack: Attack
    switching: Switching
    streams: Streams


@dataclass
class State:
    """All that changes from round to round, beside x and the buffers of the problem and the step's sum of squares."""

    round: int = 0
    spent: int = 0
    mask: Tensor | None = None
    method: dict[str, Tensor] = field(default_factory=dict)
    aggregator: dict[str, Tensor] = field(default_factory=dict)
    attack: dict[str, Tensor] = field(default_factory=dict)


class Identities(NamedTuple):
    """Who is Byzantine in a round: the mask [m] at each of its ticks on the device, and what the host knows of them.

    ``ever`` marks the workers that are Byzantine at some tick; ``most`` is the largest number at one tick.
    """

    masks: list[Tensor]
    ever: Tensor
    most: int
    changes: int
    dynamic: bool
    any_honest: bool


class Record(NamedTuple):
    """A round's numbers; those that are tensors are read in batches, so that no round waits for the device."""

    round: int
    budget: int
    plan: Plan
    who: Identities
    learning_rate: Tensor | float
    gradient_norm: Tensor
    aggregation_error: Tensor | None
    accepted: Tensor | None


class Simulation:
    """One run, round by round.

    Args:
        parts: What the run is made of.
        state: Where it stands; by default at the start, with ``spent`` what measuring V has cost.
    """

    def __init__(self, parts: Parts, state: State) -> None:
        self._parts, self._state = parts, state
        self._step = Step(parts.spec, parts.problem.x)
        self._records: list[Record] = []
        self._totals = Totals(0, state.spent, 0, 0)
        self._loss = parts.problem.x.new_zeros(())
        self._loss_count = 0
        m = parts.spec.workers or 0
        self._total = parts.problem.x.new_zeros(m, parts.problem.x.numel())
        if not state.attack:
            state.attack = dict(parts.attack.initial)

    def events(self) -> Iterator[Event]:
        """Yield ``RoundsDone`` and ``Evaluated`` in turn, and last ``Finished`` or ``Diverged``."""
        spec, state = self._parts.spec, self._state
        budget, every = spec.budget or 0, spec.eval_every or 1
        evaluation = self._evaluate()
        yield evaluation
        finite = True
        while finite and state.spent < budget:
            before = state.spent
            self._records.append(self._round())
            due = state.spent // every > before // every or state.spent >= budget
            if due or len(self._records) >= FLUSH_ROUNDS:
                rounds = self._flush()
                yield RoundsDone(rounds, self._totals)
                finite = math.isfinite(rounds[-1].gradient_norm)
            if due or not finite:
                evaluation = self._evaluate()
                yield evaluation
        final = evaluation.test_accuracy, evaluation.test_loss, evaluation.gap
        if finite and bool(self._parts.problem.x.isfinite().all()):
            yield Finished(*final, self._totals)
        else:
            yield Diverged(self._totals.rounds - 1, *final, self._totals)

    def _round(self) -> Record:
        """One server update: mini-batches, attack, aggregation, step."""
        parts, state = self._parts, self._state
        plan = parts.method.plan(parts.streams.generator("level", state.round))
        who = self._identities(plan.prefixes[-1])
        messages, state.method = parts.method.send(self._gradients(plan, who), state.method)
        if parts.spec.attack_entry != "gradient":
            messages = [parts.attack.messages(message, who.masks[-1], state.attack) for message in messages]
            state.attack = parts.attack.advance(who.masks[-1], state.attack)
            if parts.spec.attack_entry == "state":
                state.method = parts.method.keep(messages, state.method)
        direction, error, accepted = self._direct(messages, plan, who)
        self._observe(who, plan.prefixes[-1])
        rate = self._step.update(parts.problem.x, direction, state.spent)
        parts.problem.project()
        state.round += 1
        state.spent += plan.prefixes[-1]
        return Record(state.round - 1, state.spent, plan, who, rate, direction.norm(), error, accepted)

    def _identities(self, computations: int) -> Identities:
        """Ask the switching strategy who is Byzantine, by round or by computation."""
        state, mask = self._state, self._parts.switching.mask
        if self._parts.spec.clock == "round":
            masks = [mask(state.round)]
        else:
            masks = [mask(state.spent + computation) for computation in range(computations)]
        before = [masks[0] if state.mask is None else state.mask, *masks[:-1]]
        changed = [not torch.equal(old, new) for old, new in zip(before, masks, strict=True)]
        state.mask = masks[-1]
        stacked = torch.stack(masks)
        ever = stacked.any(0)
        device = self._parts.problem.x.device
        return Identities(
            masks=[new.to(device) for new in masks],
            ever=ever.to(device),
            most=int(stacked.sum(1).max()),
            changes=sum(changed),
            dynamic=any(changed[1:]),
            any_honest=not bool(ever.all()),
        )

    def _gradients(self, plan: Plan, who: Identities) -> list[Tensor]:
        """The workers' means over each prefix of the round's mini-batches, attacked where the attack enters here.

        In a static round the attack acts on each level's message, with that level's honest statistics; in a dynamic one,
        where a worker is Byzantine for some computations only, it acts on each computation.
        """
        attacked = self._parts.spec.attack_entry == "gradient"
        if attacked and who.dynamic:
            return self._dynamic_gradients(plan, who)
        problem, state = self._parts.problem, self._state
        if plan.prefixes == (1,):
            levels = [problem.sum_gradients(state.round, (0,), None)]
        else:
            levels, done = [], 0
            self._total.zero_()
            for prefix in plan.prefixes:
                if prefix > done:
                    problem.sum_gradients(state.round, range(done, prefix), self._total)
                levels.append(self._total / prefix)
                done = prefix
        if attacked:
            attack = self._parts.attack
            levels = [attack.messages(level, who.masks[0], state.attack) for level in levels]
            state.attack = attack.advance(who.masks[0], state.attack)
        return levels

    def _dynamic_gradients(self, plan: Plan, who: Identities) -> list[Tensor]:
        """As ``_gradients``, with the attack on every single computation, by who is Byzantine at it."""
        problem, attack, state = self._parts.problem, self._parts.attack, self._state
        levels: list[Tensor] = []
        self._total.zero_()
        for computation in range(plan.prefixes[-1]):
            own = problem.sum_gradients(state.round, (computation,), None)
            self._total += attack.messages(own, who.masks[computation], state.attack)
            state.attack = attack.advance(who.masks[computation], state.attack)
            levels += [self._total / prefix for prefix in plan.prefixes if prefix == computation + 1]
        return levels

    def _direct(self, messages: Sequence[Tensor], plan: Plan, who: Identities) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """g_t, the distance of the longest prefix's aggregate from its honest mean, and the filter's verdict."""
        aggregates: list[Tensor] = []

        def aggregate(message: Tensor, prefix: int) -> Tensor:
            result, self._state.aggregator = self._parts.aggregator.aggregate(message, self._state.aggregator, prefix)
            aggregates.append(result)
            return result

        direction, accepted = self._parts.method.direct(messages, plan, aggregate)
        error = None
        if who.any_honest:
            error = (aggregates[-1] - honest_mean(messages[-1], who.ever)).norm()
        return direction, error, accepted

    def _observe(self, who: Identities, computations: int) -> None:
        """Average losses and batch statistics over the honest workers; the server keeps running statistics."""
        losses, statistics = self._parts.problem.observed()
        if losses.numel():
            self._loss += honest_mean(losses[:, None], who.ever)[0]
            self._loss_count += computations
        if statistics.numel():
            mean = honest_mean(statistics, who.ever) / computations
            self._parts.problem.buffers.lerp_(mean, STATISTICS_MOMENTUM)

    def _flush(self) -> tuple[Round, ...]:
        """Read the rounds since the last flush from the device, up to the first that is not finite."""
        records, self._records = self._records, []
        norms, errors, rates = (
            _read([getattr(record, name) for record in records])
            for name in ("gradient_norm", "aggregation_error", "learning_rate")
        )
        accepted = _read([record.accepted for record in records])
        rounds: list[Round] = []
        for record, norm, error, rate, verdict in zip(records, norms, errors, rates, accepted, strict=True):
            norm = math.nan if norm is None else norm
            rounds.append(_round_event(record, norm, error, rate or 0.0, None if verdict is None else bool(verdict)))
            self._totals = Totals(
                record.round + 1,
                record.budget,
                self._totals.switches + record.who.changes,
                self._totals.dynamic_rounds + record.who.dynamic,
            )
            if not math.isfinite(norm):
                break
        return tuple(rounds)

    def _evaluate(self) -> Evaluated:
        """Evaluate the model as it stands, at the round and budget that the totals end with."""
        spec, totals = self._parts.spec, self._totals
        score = self._parts.problem.evaluate()
        train_loss = self._loss.item() / self._loss_count if self._loss_count else None
        self._loss.zero_()
        self._loss_count = 0
        samples = totals.budget_spent * (spec.batch_size or 0) * (spec.workers or 0)
        return Evaluated(totals.rounds, totals.budget_spent, samples, score.accuracy, score.loss, train_loss, score.gap)


def _round_event(record: Record, norm: float, error: float | None, rate: float, accepted: bool | None) -> Round:
    return Round(
        round=record.round,
        budget=record.budget,
        level=record.plan.level,
        cost=record.plan.prefixes[-1],
        byzantine=record.who.most,
        switched=record.who.changes > 0,
        dynamic=record.who.dynamic,
        accepted=accepted,
        learning_rate=rate,
        gradient_norm=norm,
        aggregation_error=error,
    )


def _read(values: Sequence[Tensor | float | None]) -> list[float | None]:
    """Read scalars with one transfer from the device."""
    tensors = [value.double() for value in values if isinstance(value, Tensor)]
    numbers = iter(torch.stack(tensors).tolist() if tensors else [])
    return [next(numbers) if isinstance(value, Tensor) else value for value in values]


def measure_noise(problem: Problem, switching: Switching) -> float:
    """V as the largest deviation of an honest one-batch gradient from the honest mean, over some draws at x_1.

    Spends ``NOISE_COMPUTATIONS`` gradient computations of each worker.

    Raises:
        SpecError: There is no noise to see, or fewer than two workers are honest at the start.
    """
    largest = 0.0
    for computation in range(NOISE_COMPUTATIONS):
        gradients = problem.sum_gradients(NOISE_ROUND, (computation,), None)
        honest = gradients[~switching.mask(0).to(gradients.device)]
        if len(honest):
            largest = max(largest, float((honest - honest.mean(0)).norm(dim=1).max()))
    problem.observed()
    if not largest > 0:
        raise SpecError("noise_bound=auto found no noise among the honest workers at the start; type noise_bound=V")
    return largest
