"""The simulation: m workers at one x_t, some of them Byzantine, and a server; a generator of
events.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from torch import Tensor

from dynabro_cli.components.attacks._api import COMPUTATION
from dynabro_cli.components.methods._api import Plan
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
from dynabro_cli.gradients.generators import seeded
from dynabro_cli.gradients.graphs import on_device
from dynabro_cli.simulation.checkpoint import Checkpoint
from dynabro_cli.simulation.problem.interface import MOST_COMPUTATIONS
from dynabro_cli.simulation.round.identities import Drawn, Identities, identify
from dynabro_cli.simulation.round.inputs import Inputs, draws_of
from dynabro_cli.simulation.round.parts import HELD, Parts, State
from dynabro_cli.simulation.round.records import (
    Numbers,
    Record,
    changes_of,
    point,
    read,
    round_event,
    totals_after,
)
from dynabro_cli.simulation.round.update import Update

FLUSH_ROUNDS = 16
"""Number of rounds from one read of the device to the next; a read checks for NaN and Inf. The grid
is fixed, because the last round of a diverging run depends on it. ``COMMIT_SECONDS`` of the
recorder, not this number, decides when rows are stored.
"""


class Simulation:
    """One run, round by round.

    Args:
        parts: The parts of the run.
        state: Its current state; by default the start, with the cost of measuring V in ``spent``.
    """

    def __init__(self, parts: Parts, state: State) -> None:
        self._parts, self._state = parts, state
        self._records: list[Record] = []
        self._totals = Totals(
            0, state.spent, 0, 0, None if parts.problem.squared_gradient() is None else 0.0
        )
        self._update = Update(parts)
        device = parts.problem.x.device
        if not state.attack:
            state.attack = {
                name: tensor.to(device) for name, tensor in parts.attack.initial.items()
            }
        if parts.switching.follow is not None and not state.switching:
            state.switching = dict(parts.switching.follow.initial)
        graphs = device.type == "cuda" and parts.compiler.reason != "off"
        self._graphed = self._update.by_graphs() if graphs else None

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
            self._update.step.rate(state.spent),
            judged,
            self._update.probe.wanted(state.round, honest),
            attacked,
            *draws_of(parts, state, plan, drawn, attacked=attacked),
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
        problem, update = self._parts.problem, self._update
        return Checkpoint(
            self._state,
            self._totals,
            problem.x,
            problem.buffers,
            update.step.squares,
            update.loss,
            update.loss_count,
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
        current, device = self._checkpoint(), self._parts.problem.x.device
        checkpoint.check(current)
        self._state, self._totals = checkpoint.state, checkpoint.totals
        # identities are drawn on the CPU, so their states stay there
        for name in HELD:
            tensors = getattr(self._state, name)
            setattr(self._state, name, {key: tensor.to(device) for key, tensor in tensors.items()})
        for name in ("x", "buffers", "squares", "loss", "loss_count"):
            getattr(current, name).copy_(getattr(checkpoint, name))

    def _evaluate(self) -> Evaluated:
        """Evaluate the current model, at the round and budget with which the totals end."""
        spec, totals = self._parts.spec, self._totals
        problem = self._parts.problem
        seed = self._parts.streams.integer("evaluation", totals.rounds)
        with seeded(seed, problem.x.device):  # a model or a metric may draw
            score, held_out, metrics = problem.evaluate(), problem.validate(), problem.metrics()
        if self._graphed is not None:
            self._graphed.disturbed = True
        samples = totals.budget_spent * spec.batch_size * spec.workers
        validation = (None, None) if held_out is None else (held_out.accuracy, held_out.loss)
        scores = score.accuracy, score.loss, self._update.take_loss(), score.gap
        rest = point(problem.x), *validation, metrics
        return Evaluated(totals.rounds, totals.budget_spent, samples, *scores, *rest)
