"""Weight of the Byzantine messages in the aggregate, for every rule."""

from __future__ import annotations

import torch
from torch import Tensor

from dynabro_cli.core.vectors.finite import finite_rows
from dynabro_cli.gradients.memory import send
from dynabro_cli.simulation.round.attacker import copied
from dynabro_cli.simulation.round.parts import Parts, Question, State
from dynabro_cli.simulation.round.server import Sent, Server

ACCEPTANCE_ROUNDS = 23
"""Rounds from one measurement of the acceptance ratio to the next: a prime, so that in a run the
measurements meet every place of the usual switching periods.
"""
SHARE = 2.0**-10
"""Length of the move, as a share of the honest messages' spread: larger than rounding, too small to
change a rule's choice.
"""
SAMPLE = 4096
"""Number of coordinates, evenly spaced, from which the spread is computed."""


class Probe:
    """Measure the acceptance ratio of Byzantine messages: move them a little, and measure how far
    the aggregate follows.

    All Byzantine messages of a round are moved together by e u. u is a random vector of signs that
    a run keeps, and e a small share of the spread of honest messages. With A the whole aggregation
    chain, g the n messages and B the workers that are Byzantine at some time of the round,

        w_B = <u, A(g + e 1_B u) - A(g)>/(e |u|^2)

    is the total weight of the Byzantine messages in the aggregate: |B|/n for the mean; 0 or 1 for
    Krum; for the trimmed mean, the share of values from B among the m - 2f that are kept, over all
    coordinates. The acceptance ratio is w_B/(|B|/n): 1 if Byzantine messages count as much as
    others do on average, 0 if they have no influence. Rules that mix and select can give more than
    1. A move may change a rule's choice between two equally good messages. Then the aggregate
    jumps, and w_B is not a weight; it is clipped to [0, 1].

    The messages are the server's, for the round's longest prefix. Messages and aggregates are
    computed with copies of all states, so that the probe changes neither the round nor compiled
    functions.

    Args:
        parts: The parts of the run.
        server: The server, which aggregates the messages.
    """

    def __init__(self, parts: Parts, server: Server) -> None:
        self._server = server
        self._every = 1 if parts.switching.follow is not None else ACCEPTANCE_ROUNDS
        self._streams, self._x = parts.streams, parts.problem.x
        self._signs: Tensor | None = None

    def wanted(self, round_: int, honest: Tensor) -> bool:
        """Return True if the round is measured: it is on a fixed grid, and one of the workers that
        take part is not in the mask ``honest``.
        """
        return not round_ % self._every and not bool(honest.all())

    def __call__(self, question: Question, state: State) -> tuple[Tensor, Sent]:
        """Return the acceptance ratio of an unanswered question to the server, as a tensor of one
        number, and its messages.
        """
        server, rule = self._server, state.aggregator
        sent = server.messages(question, copied(state.attack), copied(state.method), rule)
        messages, of_method = sent.messages, sent.method
        signs, byzantine = self._direction(), question.ever
        distance = SHARE * _spread(messages, byzantine)
        moved = torch.where(byzantine[:, None], messages + distance * signs, messages)
        before = server.aggregate(messages, question, copied(of_method), copied(rule))
        after = server.aggregate(moved, question, copied(of_method), copied(rule))
        change = signs.dot(after - before)
        weight = (change / (distance * signs.numel())).clamp(0, 1)
        ever = byzantine if question.cohort is None else byzantine.index_select(0, question.cohort)
        aggregated = len(ever) if question.everyone is None else len(question.everyone)
        return weight * aggregated / ever.sum(), sent

    def _direction(self) -> Tensor:
        if self._signs is None:
            drawn = self._streams.generator("probe", 0).integers(
                0, 2, size=self._x.numel(), dtype="int8"
            )
            self._signs = (
                send(torch.from_numpy(drawn), self._x.device).to(self._x.dtype).mul_(2).sub_(1)
            )
        return self._signs


def _spread(messages: Tensor, byzantine: Tensor) -> Tensor:
    """Return the root of the mean square of a coordinate's distance from its mean, over the honest
    messages.

    If no worker is honest, all finite messages count. If all messages are equal, return the root
    mean square of a coordinate, and 1 if all are 0.
    """
    finite = finite_rows(messages)
    honest = finite & ~byzantine
    counts = torch.where(honest.any(), honest, finite)[:, None]
    sample = messages[:, :: max(1, messages.shape[1] // SAMPLE)]
    number = counts.sum().clamp_min(1)
    # not weights of 0, because messages may be infinite
    clean = torch.where(counts, sample, 0).double()
    mean = clean.sum(0) / number
    spread = (
        torch.where(counts, clean - mean, 0).square().sum().div(number * sample.shape[1]).sqrt()
    )
    size = clean.square().sum().div(number * sample.shape[1]).sqrt()
    return torch.where(spread > 0, spread, torch.where(size > 0, size, 1.0))
