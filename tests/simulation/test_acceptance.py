"""The acceptance ratio: by hand for known weights, and of no influence on the run that it is
measured in.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from dynabro_cli import RunSpec, simulate
from dynabro_cli.components.aggregators._api import Aggregator
from dynabro_cli.components.attacks import optimal_alie
from dynabro_cli.components.attacks._api import AttackSetting
from dynabro_cli.components.switching._api import Switching
from dynabro_cli.core.events import Finished, Round, RoundsDone
from dynabro_cli.core.streams import Streams
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.simulation.round import acceptance
from dynabro_cli.simulation.round.acceptance import ACCEPTANCE_ROUNDS, Probe
from dynabro_cli.simulation.round.parts import Parts, Question, State
from dynabro_cli.simulation.round.server import make_server
from dynabro_cli.simulation.setup import simulate_run
from tests.simulation.test_checkpoint import DIGITS, rows
from tests.tables import each_row


class Still:
    """A problem of which only the model's size and type are asked."""

    def __init__(self, like: Tensor) -> None:
        self.x = torch.zeros_like(like)


def ratio(
    messages: Tensor, byzantine: list[int], rule: str, f: int, chain: str = "none", **replaced: Any
) -> float:
    """The acceptance ratio of ``messages`` [m, d], sent unchanged; the rows of ``byzantine`` are
    Byzantine.
    """
    m = len(messages)
    usual = {"task": "quadratic", "method": "sgd", "attack": "none"}
    run = resolve(RunSpec(**usual, aggregator=rule, pre_aggregators=chain, workers=m, byzantine=f))  # type: ignore[arg-type]
    method, aggregator = run.assemble()
    mask = torch.zeros(m, dtype=torch.bool)
    mask[byzantine] = True
    attack = run.attack.build(AttackSetting(m))
    parts = Parts(
        run.spec,
        Still(messages[0]),  # type: ignore[arg-type]
        method,
        replaced.get("aggregator", aggregator),
        attack,
        Switching(lambda _: mask),
        Streams(0),
    )
    question = Question(messages, None, None, mask, mask, attacked=False, judged=True)
    return float(Probe(parts, make_server(parts))(question, replaced.get("state", State()))[0])


def normal(m: int, d: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(m, d, generator=torch.Generator().manual_seed(0), dtype=dtype)


@each_row(
    ("byzantine", "dtype"),
    [
        ([0], torch.float64),
        ([1, 4], torch.float32),
        ([1, 4], torch.float64),
        ([0, 1, 2, 3, 4], torch.float64),
    ],
)
def test_the_mean_gives_every_message_its_share(byzantine: list[int], dtype: torch.dtype) -> None:
    assert ratio(normal(5, 100, dtype), byzantine, "mean", 2) == pytest.approx(
        1, abs=1e-3 if dtype == torch.float32 else 1e-9
    )


def test_the_trimmed_mean_by_hand() -> None:
    """Honest values 1 to 4 in each of four coordinates, f = 1: three of five are kept, of the
    Byzantine ones those between 1 and 4, which are in two coordinates: w_B = (1/3 + 1/3 + 0 + 0)/4
    = 1/6, and over 1/5 that is 5/6.
    """
    honest = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)[:, None].repeat(1, 4)
    messages = torch.cat([torch.tensor([[2.5, 1.5, 9.0, -9.0]], dtype=torch.float64), honest])
    assert ratio(messages, [0], "cwtm", 1) == pytest.approx(5 / 6, abs=1e-9)


def test_the_median_by_hand() -> None:
    """Only the third of five values counts: in one of two coordinates it is the Byzantine worker's,
    so w_B = 1/2.
    """
    messages = torch.tensor(
        [[2.5, 9.0], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [4.0, 4.0]], dtype=torch.float64
    )
    assert ratio(messages, [0], "cwmed", 1) == pytest.approx(2.5, abs=1e-9)


@pytest.mark.parametrize(("byzantine", "weight"), [([6], 0), ([1, 2], 1)])
def test_krum_takes_one_message_or_none(byzantine: list[int], weight: int) -> None:
    """Workers 1 to 5 are within 1 of 0, worker 2 nearest to the others; 6 is far away. m/|B| = 7/2
    where it is Byzantine.
    """
    messages = torch.tensor([50.0, 1, 0, -1, 0.9, -0.8, 90])[:, None].double() * torch.ones(
        3, dtype=torch.float64
    )
    assert ratio(messages, byzantine, "krum", 2) == pytest.approx(
        weight * 7 / len(byzantine), abs=1e-9
    )


def test_mixing_before_a_rule_by_hand() -> None:
    """Values 0, 1, 2, 10, 25, f = 1. NNM takes means of the four nearest: of 0, 1, 2, 10 for each
    of these, and of 1, 2, 10, 25 for 25. The mean of the five gives the message 10 a quarter in
    each, w_B = 1/4, and 25 a quarter of one, 1/20.
    """
    messages = torch.tensor([0.0, 1, 2, 10, 25], dtype=torch.float64)[:, None].repeat(1, 3)
    assert ratio(messages, [3], "mean", 1, "nnm") == pytest.approx(5 / 4, abs=1e-9)
    assert ratio(messages, [4], "mean", 1, "nnm") == pytest.approx(5 / 20, abs=1e-9)


def test_the_geometric_median_has_its_derivative() -> None:
    """If all messages have equal distances from z in orthogonal directions, the derivative of z is
    1/m by symmetry.
    """
    messages = torch.cat([torch.eye(6, dtype=torch.float64), -torch.eye(6, dtype=torch.float64)])
    assert ratio(messages, list(range(12)), "gm", 5) == pytest.approx(1, abs=1e-3)
    assert ratio(messages * 3 + 7, list(range(6)), "gm", 5) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("byzantine", [[4], [0], [0, 4]])
def test_a_jump_of_the_rule_is_no_weight(byzantine: list[int]) -> None:
    """0 and 20 are as near to 10 as each other: moved, one takes the other's place in its mean,
    which moves that by 5.
    """
    messages = torch.tensor([0.0, 1, 2, 10, 20], dtype=torch.float64)[:, None].repeat(1, 3)
    assert 0 <= ratio(messages, byzantine, "mean", 1, "nnm") <= 5 / len(byzantine)


@each_row("value", [math.inf, -math.inf, math.nan, 1e30])
def test_messages_without_bounds_are_not_accepted(value: float) -> None:
    messages = normal(9, 50, torch.float32)
    messages[:2] = value
    assert ratio(messages, [0, 1], "krum", 2) == 0


def test_the_spread_is_that_of_honest_messages() -> None:
    """The spread of 1 and 5 in each coordinate is 2, whatever else is sent; if all are Byzantine,
    of 1, 5 and 3: sqrt(8/3).
    """
    honest = torch.tensor([1.0, 5.0], dtype=torch.float64)[:, None].repeat(1, 10_000)
    for value in (math.inf, math.nan, 1e9):
        messages = torch.cat([honest, torch.full((1, 10_000), value, dtype=torch.float64)])
        assert float(
            acceptance._spread(messages, torch.tensor([False, False, True]))
        ) == pytest.approx(2)
    messages = torch.cat([honest, torch.full((1, 10_000), 3.0, dtype=torch.float64)])
    assert float(acceptance._spread(messages, torch.ones(3, dtype=torch.bool))) == pytest.approx(
        math.sqrt(8 / 3)
    )


@pytest.mark.parametrize("value", [0.0, 5.0])
def test_messages_that_are_all_the_same(value: float) -> None:
    assert ratio(torch.full((5, 8), value), [0, 1], "mean", 2) == pytest.approx(1, abs=1e-3)


def test_the_scale_of_messages_does_not_matter() -> None:
    messages = normal(9, 300, torch.float64)
    usual = ratio(messages, [0, 1, 2], "cwtm", 3)
    assert 0 < usual < 2
    for scale in (1e-9, 1e9):
        assert ratio(messages * scale, [0, 1, 2], "cwtm", 3) == pytest.approx(usual, rel=1e-6)


def test_states_are_left_alone_even_by_a_rule_that_changes_its_own() -> None:
    def aggregate(
        messages: Tensor, state: dict[str, Tensor], _: int | Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        state["count"] += 1
        return messages.mean(0), state

    state = State(aggregator={"count": torch.zeros(1)})
    assert ratio(
        normal(5, 4), [0], "mean", 1, aggregator=Aggregator(aggregate, None), state=state
    ) == pytest.approx(1)
    assert state.aggregator == {"count": torch.zeros(1)}


# --- in runs

CELLS: dict[str, dict[str, Any]] = {
    "momentum": {"method": "momentum:beta=0.9"},
    "message": {"method": "momentum", "attack": "ipm", "attack_entry": "message"},
    "state": {
        "method": "momentum",
        "attack": "alie",
        "attack_entry": "state",
        "pre_aggregators": "nnm",
    },
    "dynabro": {"method": "dynabro:jmax=2", "aggregator": "gm"},
    "within rounds": {
        "method": "dynabro:jmax=2",
        "clock": "computation",
        "switching": "periodic:K=2",
    },
    "mfm": {"method": "dynabro:filter=option2,noise_bound=5"},
    "participation": {"method": "momentum", "participation": 0.6, "attack": "alie"},
}


def made(cell: str) -> list[Any]:
    return rows(
        list(
            simulate_run(
                resolve(RunSpec(**DIGITS | {"budget": 100} | CELLS[cell])), threads=1, compile="off"
            )
        )
    )


@pytest.mark.thorough
@pytest.mark.parametrize("cell", CELLS)
def test_measuring_changes_nothing(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured in every round, and in the first alone: the same run bit for bit."""
    monkeypatch.setattr(acceptance, "ACCEPTANCE_ROUNDS", 1)
    every = made(cell)
    monkeypatch.setattr(acceptance, "ACCEPTANCE_ROUNDS", 2**40)
    once = made(cell)
    measured = [item.acceptance for item in every if isinstance(item, Round)]
    assert sum(value is not None for value in measured) > 10
    assert [item.acceptance is None for item in once if isinstance(item, Round)] == [False] + [
        True
    ] * (len(measured) - 1)

    def without(item: Any) -> Any:
        return dataclasses.replace(item, acceptance=None) if isinstance(item, Round) else item

    assert repr([without(item) for item in every]) == repr([without(item) for item in once])


def test_the_grid_and_rounds_without_byzantine_workers() -> None:
    spec = RunSpec(
        **DIGITS
        | {"method": "sgd", "budget": 100, "switching": "bernoulli:p=0.02,D=30,delta_max=0.4"}
    )
    done = [
        item
        for event in simulate_run(resolve(spec), threads=1)
        if isinstance(event, RoundsDone)
        for item in event.rounds
    ]
    grid = {item.round for item in done if item.round % ACCEPTANCE_ROUNDS == 0}
    measured = {item.round for item in done if item.acceptance is not None}
    assert measured == {item.round for item in done if item.round in grid and item.byzantine}
    assert 0 < len(measured) < len(grid)  # else nothing is seen


def test_an_attack_that_sees_the_defence_searches_once_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The messages whose acceptance is measured are the messages that are sent."""
    searches: list[int] = []
    plain = optimal_alie.strongest

    def counted(*arguments: Any) -> Tensor:
        searches.append(1)
        return plain(*arguments)

    monkeypatch.setattr(optimal_alie, "strongest", counted)
    spec = RunSpec(
        task="quadratic",
        method="momentum",
        attack="optimal-alie:evals=3",
        aggregator="cwmed",
        switching="adaptive",
    )
    last = list(simulate(dataclasses.replace(spec, workers=7, byzantine=2, budget=12)))[-1]
    assert isinstance(last, Finished)
    assert len(searches) == last.totals.rounds == 12
