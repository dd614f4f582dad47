"""The simulation: m workers at one x_t, some of them Byzantine, and a server; a generator of events."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from dynabro_cli.attacks._api import honest_weights
from dynabro_cli.events import Checkpointed, Diverged, Evaluated, Event, Finished, Identity, Round, RoundsDone, Totals
from dynabro_cli.methods._api import Plan
from dynabro_cli.simulation.acceptance import Probe
from dynabro_cli.simulation.checkpoint import Checkpoint
from dynabro_cli.simulation.defence import strike_computation
from dynabro_cli.simulation.gathering import advance, gather
from dynabro_cli.simulation.identities import Identities, identify, relabelling
from dynabro_cli.simulation.parts import Parts, State
from dynabro_cli.simulation.problems import STATISTICS_MOMENTUM, Relabel
from dynabro_cli.simulation.question import Question
from dynabro_cli.simulation.records import Record, changes_of, point, read, round_event, totals_after
from dynabro_cli.simulation.server import make_server
from dynabro_cli.simulation.step import Step
from dynabro_cli.vectors.lengths import length

FLUSH_ROUNDS = 16
"""Rounds are read from the device, and looked at for NaN and Inf, after every so many: a fixed grid, as the end of a run that
diverges depends on it.
"""


class Aggregated(NamedTuple):
    """The aggregate of every prefix of a round; the last one's distance from its honest mean, and its acceptance ratio.

    ``spread`` is the first one's, if the method measures it.
    """

    aggregates: list[Tensor]
    error: Tensor | None
    acceptance: Tensor | float | None
    spread: Tensor | None = None


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
        self._totals = Totals(0, state.spent, 0, 0, None if parts.problem.squared_gradient() is None else 0.0)
        self._loss = parts.problem.x.new_zeros(())
        self._loss_count = self._loss.clone()
        self._rows = parts.spec.workers if parts.answering is None else len(parts.answering(0))
        self._total = parts.problem.x.new_zeros(self._rows, parts.problem.x.numel())
        self._counts: dict[int, Tensor] = {}
        self._server = make_server(parts)
        self._probe = Probe(parts, self._server)
        if not state.attack:
            state.attack = dict(parts.attack.initial)
        if parts.switching.follow is not None and not state.switching:
            state.switching = dict(parts.switching.follow.initial)

    def events(self, wanted: Callable[[], bool] = lambda: False) -> Iterator[Event]:
        """Yield ``RoundsDone`` and ``Evaluated`` in turn, and last ``Finished`` or ``Diverged``.

        Args:
            wanted: Asked after every round whether to yield ``Checkpointed``, too.
        """
        spec, state = self._parts.spec, self._state
        budget, every = spec.budget, spec.eval_every
        if not state.round:
            evaluation = self._evaluate()
            yield evaluation
        finite = True
        while finite and state.spent < budget:
            before = state.spent
            self._records.append(self._round())
            due = state.spent // every > before // every or state.spent >= budget
            if due or state.round % FLUSH_ROUNDS == 0:
                done = self._flush()
                yield done
                rounds = done.rounds
                finite = math.isfinite(rounds[-1].gradient_norm)
            if due or not finite:
                evaluation = self._evaluate()
                yield evaluation
            if finite and state.spent < budget and wanted() and self._finite_so_far():
                if self._records:
                    yield self._flush()
                yield Checkpointed(self._totals, self._checkpoint().encode(self._parts.spec, self._parts.code))
        final = evaluation.test_accuracy, evaluation.test_loss, evaluation.gap
        if finite and bool(self._parts.problem.x.isfinite().all()):
            yield Finished(*final, self._totals)
        else:
            yield Diverged(self._totals.rounds - 1, *final, self._totals)

    def _round(self) -> Record:
        """One server update: mini-batches, attack, aggregation, step."""
        parts, state = self._parts, self._state
        plan = parts.method.first if not state.round else None
        plan = plan or parts.method.plan(parts.streams.generator("level", state.round))
        known = state.mask
        who = identify(parts, state, plan.prefixes[-1], plan.level)
        changes = changes_of(known, who) if parts.switching.kept else ()
        aggregates, error, acceptance, spread = self._aggregates(plan, who)
        direction, accepted = parts.method.decide(aggregates, plan, spread)
        self._observe(who)
        square = parts.problem.squared_gradient()
        rate = self._step.update(parts.problem.x, direction, state.spent)
        parts.problem.project()
        state.round += 1
        state.spent += plan.prefixes[-1]
        if parts.switching.follow is not None:
            acceptance = None if acceptance is None else float(acceptance)  # who is Byzantine next depends on it
            state.switching = parts.switching.follow.learn(state.switching, acceptance)
        return Record(
            state.round - 1, state.spent, plan, who, rate, length(direction), error, accepted, acceptance, square, changes
        )

    def _aggregates(self, plan: Plan, who: Identities) -> Aggregated:
        """The aggregate of every prefix of the round's mini-batches.

        In a static round the attack acts on each level's message, with that level's honest statistics; in a dynamic one,
        where a worker is Byzantine for some computations only, an attack on gradients acts on each computation.
        """
        parts, state = self._parts, self._state
        if parts.method.gather is not None:
            return self._gathered(plan, who)
        attacked = parts.spec.attack_entry == "gradient" and who.dynamic
        relabel = relabelling(parts.attack, who)
        last = who.ticks[-1]
        aggregates: list[Tensor] = []
        total, error, done = self._total, None, 0
        acceptance: Tensor | None = None
        spread: Tensor | None = None
        for prefix in plan.prefixes:
            if attacked:
                self._add_attacked(who, range(done, prefix), relabel)
            elif plan.prefixes == (1,):
                total = parts.problem.sum_gradients(state.round, (0,), last.computed, None, relabel)
                total = total if parts.answering is None else total[: self._rows]
            elif prefix > done:
                if not done:
                    total[: len(last.computed)] = 0
                parts.problem.sum_gradients(state.round, range(done, prefix), last.computed, total, relabel)
            done = prefix
            question = Question(
                total=total,
                places=None if attacked else last.places,
                batches=None if plan.prefixes == (1,) else self._count(prefix),
                byzantine=last.byzantine,
                ever=who.ever,
                attacked=attacked,
                judged=prefix == plan.prefixes[-1] and who.any_honest,
                learned=prefix == plan.prefixes[-1] and parts.attack.observe is not None,
                x=parts.problem.x if parts.method.judge is not None else None,
                answering=who.answering,
                workers=parts.spec.workers,
                first=not aggregates,
            )
            if prefix == plan.prefixes[-1] and self._probe.wanted(state.round, who):
                acceptance = self._probe(question, state)
            answer = self._server.answer(question, state.attack, state.method, state.aggregator)
            aggregates.append(answer.aggregate)
            spread = spread if answer.spread is None else answer.spread
            state.method, state.aggregator, error = answer.method, answer.aggregator, answer.error
        if not attacked:
            learned = state.attack if answer.attack is None else answer.attack
            state.attack = parts.attack.advance(last.byzantine, learned)
        return Aggregated(aggregates, error, acceptance, spread)

    def _gathered(self, plan: Plan, who: Identities) -> Aggregated:
        """Return the aggregate of the vectors that the method gathers itself."""
        parts, state = self._parts, self._state
        question = gather(parts, state, plan, who, self._server.strike)
        acceptance = self._probe(question, state) if self._probe.wanted(state.round, who, plan.cohort) else None
        answer = self._server.answer(question, state.attack, state.method, state.aggregator)
        state.method, state.aggregator = answer.method, answer.aggregator
        advance(parts, state, question, who, answer.attack)
        return Aggregated([answer.aggregate], answer.error, acceptance)

    def _add_attacked(self, who: Identities, computations: range, relabel: Relabel | None) -> None:
        """Add to the round's sum each computation's gradients, attacked by who is Byzantine at it."""
        problem, state = self._parts.problem, self._state
        if not computations.start:
            self._total.zero_()
        for computation in computations:
            tick = who.ticks[computation]
            own = problem.sum_gradients(state.round, (computation,), tick.computed, None, relabel)
            own = own[: self._rows] if tick.places is None else own.index_select(0, tick.places)
            self._total += strike_computation(self._parts, state, self._server.strike, own, tick, who.answering, learns=True)

    def _count(self, prefix: int) -> Tensor:
        """Return ``prefix`` as a tensor on the device: a number would be compiled into the server's function."""
        if prefix not in self._counts:
            self._counts[prefix] = self._parts.problem.x.new_tensor(prefix)
        return self._counts[prefix]

    def _observe(self, who: Identities) -> None:
        """Average losses and batch statistics over the honest workers; the server keeps running statistics."""
        observed = self._parts.problem.observed()
        if observed is None:
            return
        weights, _ = honest_weights(who.unseen, observed.counts)
        count = weights @ observed.counts
        if who.any_honest or self._parts.attack.labels is None:  # else the losses belong to wrong labels
            self._loss += weights @ observed.losses
            self._loss_count += count
        if observed.statistics.numel():
            self._parts.problem.buffers.lerp_(weights @ observed.statistics / count, STATISTICS_MOMENTUM)

    def _flush(self) -> RoundsDone:
        """Read the rounds since the last flush from the device, up to the first that is not finite."""
        records, self._records = self._records, []
        names = ("gradient_norm", "aggregation_error", "learning_rate", "accepted", "acceptance", "squared_gradient")
        columns = (read([getattr(record, name) for record in records]) for name in names)
        rounds: list[Round] = []
        changes: list[Identity] = []
        for record, norm, error, rate, verdict, acceptance, square in zip(records, *columns, strict=True):
            norm = math.nan if norm is None else norm
            accepted = None if verdict is None else bool(verdict)
            rounds.append(round_event(record, norm, error, rate or 0.0, accepted, acceptance))
            changes += record.changes
            self._totals = totals_after(self._totals, record, square)
            if not math.isfinite(norm):
                break
        return RoundsDone(tuple(rounds), self._totals, tuple(changes))

    def _finite_so_far(self) -> bool:
        """Return True if the rounds that are not flushed yet are finite; if not, the next flush finds out where."""
        return all(math.isfinite(norm or 0.0) for norm in read([record.gradient_norm for record in self._records]))

    def _checkpoint(self) -> Checkpoint:
        problem = self._parts.problem
        return Checkpoint(
            self._state,
            self._totals,
            problem.x,
            problem.buffers,
            self._step.squares,
            self._loss,
            self._loss_count,
            self._parts.method.noise_bound,
        )

    def weights(self) -> dict[str, Tensor]:
        """Return the parameters and buffers of the model by name."""
        return self._parts.problem.weights()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint of the same run."""
        problem, device = self._parts.problem, self._parts.problem.x.device
        self._state, self._totals = checkpoint.state, checkpoint.totals
        for name in ("method", "aggregator", "attack"):
            own = getattr(self._state, name)
            setattr(self._state, name, {key: tensor.to(device) for key, tensor in own.items()})
        problem.x.copy_(checkpoint.x)
        problem.buffers.copy_(checkpoint.buffers)
        self._step.squares.copy_(checkpoint.squares)
        self._loss.copy_(checkpoint.loss)
        self._loss_count.copy_(checkpoint.loss_count)

    def _evaluate(self) -> Evaluated:
        """Evaluate the model as it stands, at the round and budget that the totals end with."""
        spec, totals = self._parts.spec, self._totals
        score, held_out = self._parts.problem.evaluate(), self._parts.problem.validate()
        loss, count = torch.stack([self._loss, self._loss_count]).tolist()
        train_loss = loss / count if count else None
        self._loss.zero_()
        self._loss_count.zero_()
        samples = totals.budget_spent * spec.batch_size * spec.workers
        validation = (None, None) if held_out is None else (held_out.accuracy, held_out.loss)
        scores = score.accuracy, score.loss, train_loss, score.gap
        return Evaluated(totals.rounds, totals.budget_spent, samples, *scores, point(self._parts.problem.x), *validation)
