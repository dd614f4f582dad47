"""The device's part of a round: from the gradients at x_t to x_{t+1}."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dynabro_cli.components.attacks._api import honest_weights
from dynabro_cli.components.methods._api import GatheringMethod, senders
from dynabro_cli.core.vectors.lengths import length
from dynabro_cli.experiment.complete import CompleteSpec, parse_drops
from dynabro_cli.gradients.graphs import Capture, Graphed
from dynabro_cli.simulation.problem.interface import STATISTICS_MOMENTUM, forget
from dynabro_cli.simulation.round.acceptance import Probe
from dynabro_cli.simulation.round.attacker import advance
from dynabro_cli.simulation.round.gathering import gather
from dynabro_cli.simulation.round.identities import Identities
from dynabro_cli.simulation.round.inputs import Inputs
from dynabro_cli.simulation.round.parts import HELD, Parts, State
from dynabro_cli.simulation.round.prefixes import Prefixes
from dynabro_cli.simulation.round.records import Numbers
from dynabro_cli.simulation.round.server import Sent, make_server


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


class Update:
    """Move x_t to x_{t+1} on the device: gradients, attack, aggregation and step.

    A CUDA graph repeats these operations without their Python. So what differs between two rounds
    is in ``inputs`` and ``state``.

    Args:
        parts: The parts of the run.

    Attributes:
        step: The learning-rate rule and weight decay.
        probe: Measures the acceptance ratio.
        loss: Sum of the training losses since the last evaluation; ``loss_count`` is their number.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.step = Step(parts.spec, parts.problem.x)
        # The losses stay on the device until an evaluation: reading a loss would make the host wait
        # for the round.
        self.loss = parts.problem.x.new_zeros(())
        self.loss_count = self.loss.clone()
        self._server = make_server(parts)
        self._prefixes = Prefixes(parts, self._server.attacker)
        self.probe = Probe(parts, self._server)

    def by_graphs(self, capture: Capture | None = None) -> Graphed:
        """Return the same with CUDA graphs."""
        parts, problem = self._parts, self._parts.problem
        # what a round changes, besides the states; each tensor stays at its place in memory
        changed = [problem.x, problem.buffers, *(problem.observed() or ())]
        changed += self.step.squares, self.loss, self.loss_count
        gathers = isinstance(parts.method, GatheringMethod)
        need = "the method gathers its vectors" if gathers else problem.graph_need()
        if parts.draws.streams is not None:
            need = "a plugin's function may draw random numbers"
        return Graphed(self, changed, HELD, problem.x.device, need, capture)

    def take_loss(self) -> float | None:
        """Return the mean training loss since the last call; None without a loss."""
        loss, count = torch.stack([self.loss, self.loss_count]).tolist()
        self.loss.zero_()
        self.loss_count.zero_()
        return loss / count if count else None

    def __call__(self, inputs: Inputs, state: State) -> Numbers:
        """Make the update in place; return the round's numbers."""
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
        rate = self.step.update(problem.x, made.vector, inputs.rate)
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
                acceptance, sent = self.probe(question, state)
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
        acceptance, sent = self.probe(question, state) if inputs.probed else (None, None)
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
            self.loss += weights @ observed.losses
            self.loss_count += count
        if observed.statistics.numel():
            self._parts.problem.buffers.lerp_(
                weights @ observed.statistics / count, STATISTICS_MOMENTUM
            )
