"""The simulation: m workers at one x_t, some of them Byzantine, and a server; a generator of
events.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from dynabro_cli.components.attacks._api import COMPUTATION, honest_weights
from dynabro_cli.components.methods._api import GatheringMethod, Plan, senders
from dynabro_cli.core.events import (
    Checkpointed,
    Diverged,
    Evaluated,
    Event,
    Finished,
    Identity,
    Round,
    RoundsDone,
    Totals,
)
from dynabro_cli.core.vectors.lengths import length
from dynabro_cli.experiment.complete import CompleteSpec, parse_drops
from dynabro_cli.gradients.generators import seeded
from dynabro_cli.gradients.graphs import Capture, Graphed, on_device
from dynabro_cli.simulation.checkpoint import Checkpoint
from dynabro_cli.simulation.problem.interface import MOST_COMPUTATIONS, STATISTICS_MOMENTUM, forget
from dynabro_cli.simulation.round.acceptance import Probe
from dynabro_cli.simulation.round.attacker import advance
from dynabro_cli.simulation.round.gathering import gather
from dynabro_cli.simulation.round.identities import Drawn, Identities, identify
from dynabro_cli.simulation.round.inputs import Inputs, draws_of
from dynabro_cli.simulation.round.parts import HELD, Parts, State
from dynabro_cli.simulation.round.prefixes import Prefixes
from dynabro_cli.simulation.round.records import (
    Numbers,
    Record,
    changes_of,
    point,
    read,
    round_event,
    totals_after,
)
from dynabro_cli.simulation.round.server import Sent, make_server

FLUSH_ROUNDS = 16
"""Number of rounds from one read of the device to the next; a read checks for NaN and Inf. The grid
is fixed, because the last round of a diverging run depends on it. ``COMMIT_SECONDS`` of the
recorder, not this number, decides when rows are stored.
"""


class Direction(NamedTuple):
    """Direction of a round's update, with its record.

    Attributes:
        vector: g_t, [d].
        accepted: True if the fail-safe filter accepted the correction; None without a correction to
            judge.
        error: The distance of the last aggregate from the mean of its honest messages.
        acceptance: The acceptance ratio, if it is measured in this round.
    """

    vector: Tensor
    accepted: Tensor | None
    error: Tensor | None
    acceptance: Tensor | None


class Step:
    """The server's update, x_{t+1} = x_t - eta_t (g_t + wd x_t): the learning-rate rule and weight
    decay of a run.

    ``fixed`` uses eta, times the factor of every drop whose fraction of the budget is reached
    before the round. ``adagrad-norm`` uses eta_t = eta_0/sqrt(sum_{s <= t} |g_s|^2) (equation 5 of
    the paper); ``squares`` is the sum.
    """

    def __init__(self, spec: CompleteSpec, x: Tensor) -> None:
        rate = self._rate = spec.learning_rate
        self._decay = spec.weight_decay
        self._rates = list[tuple[float, Tensor]]()
        for fraction, factor in ((0.0, 1.0), *parse_drops(spec.lr_drop)):
            rate *= factor
            self._rates.append((fraction * spec.budget, torch.tensor(rate, dtype=torch.float64)))
        self._adaptive = spec.lr_rule == "adagrad-norm"
        self.squares = x.new_zeros((), dtype=torch.float64)

    def rate(self, spent: int) -> Tensor:
        """Return the rate of ``fixed`` after ``spent`` computations, on the CPU."""
        # binary fractions: 0.55 of a budget of 100 is 55.00000000000001
        return [rate for start, rate in self._rates if spent >= start - 1e-9][-1]

    def update(self, x: Tensor, direction: Tensor, rate: Tensor) -> Tensor:
        """Move ``x`` in place along ``direction`` by the ``rate`` of ``fixed``; return the learning
        rate used.
        """
        if self._adaptive:
            self.squares += length(direction).square()
            rate = torch.where(self.squares > 0, self._rate / self.squares.sqrt(), 0.0)
        if self._decay:
            direction = direction.add(x, alpha=self._decay)
        x.sub_(rate * direction)
        return rate


class Simulation:
    """One run, round by round.

    Args:
        parts: The parts of the run.
        state: Its current state; by default the start, with the cost of measuring V in ``spent``.
    """

    def __init__(self, parts: Parts, state: State) -> None:
        self._parts, self._state = parts, state
        self._step = Step(parts.spec, parts.problem.x)
        self._records: list[Record] = []
        self._totals = Totals(
            0, state.spent, 0, 0, None if parts.problem.squared_gradient() is None else 0.0
        )
        # The losses stay on the device until an evaluation: reading a loss would make the host wait
        # for the round.
        self._loss = parts.problem.x.new_zeros(())
        self._loss_count = self._loss.clone()
        self._server = make_server(parts)
        self._prefixes = Prefixes(parts, self._server.attacker)
        self._probe = Probe(parts, self._server)
        device = parts.problem.x.device
        if not state.attack:
            state.attack = {
                name: tensor.to(device) for name, tensor in parts.attack.initial.items()
            }
        if parts.switching.follow is not None and not state.switching:
            state.switching = dict(parts.switching.follow.initial)
        graphs = device.type == "cuda" and parts.compiler.reason != "off"
        self._graphed = self._by_graphs() if graphs else None

    def _by_graphs(self, capture: Capture | None = None) -> Graphed:
        """Return ``_update`` with CUDA graphs."""
        parts, problem = self._parts, self._parts.problem
        # what a round changes, besides the states; each tensor stays at its place in memory
        changed = [problem.x, problem.buffers, *(problem.observed() or ())]
        changed += self._step.squares, self._loss, self._loss_count
        gathers = isinstance(parts.method, GatheringMethod)
        need = "the method gathers its vectors" if gathers else problem.graph_need()
        if parts.draws.streams is not None:
            need = "a plugin's function may draw random numbers"
        return Graphed(self._update, changed, HELD, problem.x.device, need, capture)

    def events(self, wanted: Callable[[], bool] = lambda: False) -> Iterator[Event]:
        """Yield ``RoundsDone`` and ``Evaluated`` in turn, and finally ``Finished`` or ``Diverged``.

        Args:
            wanted: Called after every round; if it returns True, ``Checkpointed`` is also yielded.
        """
        spec, state, draws = self._parts.spec, self._state, self._parts.draws
        round_ = draws("level", self._round)
        budget, every = spec.budget, spec.eval_every
        if not state.round:
            evaluation = self._evaluate()
            yield evaluation
        finite = True
        while finite and state.spent < budget:
            before = state.spent
            draws.round, draws.computation = state.round, 0
            self._records.append(round_())
            due = state.spent // every > before // every or state.spent >= budget
            if due or state.round % FLUSH_ROUNDS == 0:
                done = self._flush()
                yield done
                rounds = done.rounds
                finite = math.isfinite(rounds[-1].gradient_norm)
            if due or not finite:
                evaluation = self._evaluate()
                yield evaluation
            # A resumed run does not see the rounds before its checkpoint again. So there is no
            # checkpoint after a round that is not finite, because only its flush would report it,
            # and rounds before a checkpoint are flushed with its totals.
            if finite and state.spent < budget and wanted() and self._finite_so_far():
                if self._records:
                    yield self._flush()
                yield Checkpointed(
                    self._totals, self._checkpoint().encode(self._parts.spec, self._parts.code)
                )
        final = evaluation.test_accuracy, evaluation.test_loss, evaluation.gap
        if finite and bool(self._parts.problem.x.isfinite().all()):
            yield Finished(*final, self._totals)
        else:
            yield Diverged(self._totals.rounds - 1, *final, self._totals)

    def _round(self) -> Record:
        """Make one server update: Algorithm 2 from the draw of J_t to x_{t+1}.

        The host draws, and the device computes; the host reads nothing of the device, except for a
        strategy that follows the run.
        """
        parts, state = self._parts, self._state
        plan = parts.method.plan_of(state.round, parts.streams.moved("level", state.round))
        # ``identify`` puts the new mask into the state
        previous = state.mask
        who, drawn = identify(parts, state, plan.prefixes[-1], plan.level)
        changes = changes_of(previous, drawn) if parts.switching.kept else ()
        inputs = self._inputs(plan, who, drawn)
        if self._graphed is None or plan.prefixes[-1] > MOST_COMPUTATIONS:
            numbers = self._update(on_device(inputs, parts.problem.x.device), state)
        else:
            numbers = Numbers(*self._graphed(inputs, state))
        # From here on the state belongs to the next round: the calls below learn for it, and a
        # checkpoint resumes there.
        state.round += 1
        state.spent += plan.prefixes[-1]
        follow, acceptance = parts.switching.follow, numbers.acceptance
        if follow is not None:
            ratio = None if acceptance is None else float(acceptance)
            state.switching = follow.learn(state.switching, ratio)
        return Record(state.round - 1, state.spent, plan, who.dynamic, drawn, numbers, changes)

    def _inputs(self, plan: Plan, who: Identities, drawn: Drawn) -> Inputs:
        parts, state = self._parts, self._state
        honest, judged = drawn.honest, who.any_honest
        if plan.cohort is not None:
            honest = honest[list(plan.cohort)]
            judged = bool(honest.any())
        entry, several = parts.spec.attack_entry, plan.prefixes[-1] > 1
        attacked = who.dynamic if entry == "gradient" else entry == COMPUTATION and several
        return Inputs(
            plan,
            who,
            self._step.rate(state.spent),
            judged,
            self._probe.wanted(state.round, honest),
            attacked,
            *draws_of(parts, state, plan, drawn, attacked=attacked),
        )

    def _update(self, inputs: Inputs, state: State) -> Numbers:
        """Move x_t to x_{t+1} on the device; return the round's numbers.

        A CUDA graph repeats this function's operations without its Python. So what differs between
        two rounds is in ``inputs`` and ``state``.
        """
        parts, problem = self._parts, self._parts.problem
        forget(problem)
        made = (
            self._gathered(parts.method, inputs, state)
            if isinstance(parts.method, GatheringMethod)
            else self._sent(inputs, state)
        )
        if parts.attack.follow is not None:
            state.attack = parts.attack.follow(made.vector, state.attack)
        self._observe(inputs.who)
        square = problem.squared_gradient()
        rate = self._step.update(problem.x, made.vector, inputs.rate)
        problem.project()
        norm = length(made.vector)
        return Numbers(norm, made.error, rate, made.accepted, made.acceptance, square)

    def _sent(self, inputs: Inputs, state: State) -> Direction:
        """Return g_t from the aggregates of the workers' messages, one message for each prefix.

        In a round with a correction the prefixes are the levels 0, J - 1 and J.
        """
        parts, plan = self._parts, inputs.plan
        aggregates: list[Tensor] = []
        acceptance: Tensor | None = None
        spread: Tensor | None = None
        sent: Sent | None = None
        for place, prefix in enumerate(plan.prefixes):
            parts.draws.computation = place
            question = self._prefixes.question(place, inputs, state)
            if prefix == plan.prefixes[-1] and inputs.probed:
                acceptance, sent = self._probe(question, state)
            answer = self._server.answer(
                question, state.attack, state.method, state.aggregator, sent
            )
            # Each prefix is a message: momentum and stateful rules advance with every prefix, the
            # attack once a round.
            state.method, state.aggregator = answer.method, answer.aggregator
            aggregates.append(answer.aggregate)
            spread = spread if answer.spread is None else answer.spread
        # else each computation has already advanced the attack
        if not inputs.attacked:
            advance(parts, state, question, answer.attack)
        vector, accepted = senders(parts.method).direction(aggregates, plan, spread)
        return Direction(vector, accepted, answer.error, acceptance)

    def _gathered(self, method: GatheringMethod, inputs: Inputs, state: State) -> Direction:
        """Return g_t from the vectors that the method gathers itself."""
        parts = self._parts
        question = gather(parts, method, state, inputs, self._server.attacker)
        acceptance, sent = self._probe(question, state) if inputs.probed else (None, None)
        answer = self._server.answer(question, state.attack, state.method, state.aggregator, sent)
        state.method, state.aggregator = answer.method, answer.aggregator
        if not (question.attacked and inputs.attacked):
            advance(parts, state, question, answer.attack)
        return Direction(answer.aggregate, None, answer.error, acceptance)

    def _observe(self, who: Identities) -> None:
        """Average losses and batch statistics over the honest workers; the server keeps running
        statistics.
        """
        observed = self._parts.problem.observed()
        if observed is None:
            return
        weights, _ = honest_weights(who.unseen, observed.counts)
        count = weights @ observed.counts
        # else the losses belong to wrong labels
        if who.any_honest or self._parts.attack.labels is None:
            self._loss += weights @ observed.losses
            self._loss_count += count
        if observed.statistics.numel():
            self._parts.problem.buffers.lerp_(
                weights @ observed.statistics / count, STATISTICS_MOMENTUM
            )

    def _flush(self) -> RoundsDone:
        """Read the rounds since the last flush from the device, up to the first round that is not
        finite.
        """
        records, self._records = self._records, []
        columns = map(read, zip(*(record.numbers for record in records), strict=True))
        rounds: list[Round] = []
        changes: list[Identity] = []
        for record, norm, error, rate, verdict, acceptance, square in zip(
            records, *columns, strict=True
        ):
            norm = math.nan if norm is None else norm
            accepted = None if verdict is None else bool(verdict)
            rounds.append(round_event(record, norm, error, rate or 0.0, accepted, acceptance))
            changes += record.changes
            self._totals = totals_after(self._totals, record, square)
            if not math.isfinite(norm):
                break
        return RoundsDone(tuple(rounds), self._totals, tuple(changes))

    def _finite_so_far(self) -> bool:
        """Return True if all rounds since the last flush are finite; if not, the next flush finds
        the first that is not.
        """
        return all(
            math.isfinite(norm or 0.0)
            for norm in read([record.numbers.gradient_norm for record in self._records])
        )

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

    @property
    def how(self) -> dict[str, object]:
        """The current way of computing, for the record of the run."""
        graphs = {} if self._graphed is None else {"graphs": self._graphed.state}
        return self._parts.problem.how | {"compile": str(self._parts.compiler)} | graphs

    def weights(self) -> dict[str, Tensor]:
        """Return the parameters and buffers of the model by name."""
        return self._parts.problem.weights()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint of the same run.

        Raises:
            CheckpointError: Its values do not have the shapes of this run's.
        """
        checkpoint.check(self._checkpoint())
        problem, device = self._parts.problem, self._parts.problem.x.device
        self._state, self._totals = checkpoint.state, checkpoint.totals
        # identities are drawn on the CPU, so their states stay there
        for name in HELD:
            tensors = getattr(self._state, name)
            setattr(self._state, name, {key: tensor.to(device) for key, tensor in tensors.items()})
        problem.x.copy_(checkpoint.x)
        problem.buffers.copy_(checkpoint.buffers)
        self._step.squares.copy_(checkpoint.squares)
        self._loss.copy_(checkpoint.loss)
        self._loss_count.copy_(checkpoint.loss_count)

    def _evaluate(self) -> Evaluated:
        """Evaluate the current model, at the round and budget with which the totals end."""
        spec, totals = self._parts.spec, self._totals
        problem = self._parts.problem
        seed = self._parts.streams.integer("evaluation", totals.rounds)
        with seeded(seed, problem.x.device):  # a model or a metric may draw
            score, held_out, metrics = problem.evaluate(), problem.validate(), problem.metrics()
        if self._graphed is not None:
            self._graphed.disturbed = True
        loss, count = torch.stack([self._loss, self._loss_count]).tolist()
        train_loss = loss / count if count else None
        self._loss.zero_()
        self._loss_count.zero_()
        samples = totals.budget_spent * spec.batch_size * spec.workers
        validation = (None, None) if held_out is None else (held_out.accuracy, held_out.loss)
        scores = score.accuracy, score.loss, train_loss, score.gap
        rest = point(problem.x), *validation, metrics
        return Evaluated(totals.rounds, totals.budget_spent, samples, *scores, *rest)
