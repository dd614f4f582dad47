"""Only gradients that can matter are computed, with the same results as if all were computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dynabro_cli import RunSpec
from dynabro_cli.components.attacks._api import AttackSetting
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.components.switching._api import Switching
from dynabro_cli.core.events import Evaluated, RoundsDone
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.simulation.problem.images import ImageProblem
from dynabro_cli.simulation.round.identities import identify
from dynabro_cli.simulation.round.parts import Parts, State
from dynabro_cli.simulation.setup import simulate
from tests.tables import each_row

BYZANTINE = torch.tensor([False, True, True, False, False])


class Still:
    """A problem of which only the place is asked."""

    x = torch.zeros(3)


def parts(
    attack: str, method: str = "sgd", entry: str = "gradient", clock: str = "round", **masks: Any
) -> Parts:
    """Parts in which the strategy answers with BYZANTINE, or with ``masks["at"]`` by tick."""
    spec = RunSpec(
        attack=attack,
        method=method,
        attack_entry=entry,
        clock=clock,
        workers=5,
        byzantine=2,
        batch_size=2,
    )
    run = resolve(spec)
    made, aggregator = run.assemble()

    def mask(t: int) -> torch.Tensor:
        return masks["at"][t] if masks else BYZANTINE

    return Parts(
        run.spec,
        Still(),
        made,
        aggregator,
        run.attack.build(AttackSetting(5, made.beta)),
        Switching(mask),
        None,  # type: ignore[arg-type]
    )


@each_row(
    ("attack", "method", "entry", "all_of_them"),
    [
        ("sf", "sgd", "gradient", True),
        ("none", "sgd", "gradient", True),
        ("ipm", "sgd", "gradient", False),
        ("alie", "dynabro", "gradient", False),
        ("alie", "dynabro", "computation", False),
        # the attack's vector takes the place of the worker's gradient
        ("ipm", "momentum", "gradient", False),
        ("ipm", "momentum", "state", False),
        # the worker's own momentum goes on, and shows when it is honest again
        ("ipm", "momentum", "message", True),
        ("ipm", "sgd", "message", False),
        ("sf", "momentum", "state", True),
    ],
)
def test_whose_gradients_matter(attack: str, method: str, entry: str, all_of_them: bool) -> None:
    who, drawn = identify(parts(attack, method, entry), State(), 1)
    (tick,), (computed,) = who.ticks, drawn.computed
    assert tick.byzantine.tolist() == BYZANTINE.tolist()
    assert tick.rows == len(computed)
    assert computed.tolist() == ([0, 1, 2, 3, 4] if all_of_them else [0, 3, 4])
    if all_of_them:
        assert tick.places is None
    else:
        assert tick.places is not None
        assert tick.places[~BYZANTINE].tolist() == [0, 1, 2]
        assert 0 <= int(tick.places.min()) <= int(tick.places.max()) < 3


@pytest.mark.parametrize("count", [0, 5])
def test_all_where_none_or_all_are_byzantine(count: int) -> None:
    who, drawn = identify(parts("ipm", at=[torch.arange(5) < count]), State(), 1)
    assert drawn.computed[0].tolist() == [0, 1, 2, 3, 4]
    assert who.any_honest == (count == 0)


def test_by_computation_or_by_the_last() -> None:
    """An attack on gradients replaces each computation's, one on messages the sum, by who is
    Byzantine at the end.
    """
    at = [torch.arange(5) < count for count in (1, 2, 2)]
    for entry in ("computation", "gradient"):
        of_gradients, drawn = identify(
            parts("ipm", entry=entry, clock="computation", at=at), State(), 3
        )
        assert [numbers.tolist() for numbers in drawn.computed] == [
            [1, 2, 3, 4],
            [2, 3, 4],
            [2, 3, 4],
        ]
    _, of_messages = identify(parts("ipm", entry="message", clock="computation", at=at), State(), 3)
    assert [numbers.tolist() for numbers in of_messages.computed] == [[2, 3, 4]] * 3
    assert drawn.changes == 1
    assert of_gradients.dynamic
    assert drawn.most == 2


CELLS = [
    {"method": "momentum", "switching": "periodic:K=3"},
    {"method": "momentum", "switching": "periodic:K=3", "attack_entry": "message"},
    {"method": "dynabro", "switching": "bernoulli:p=0.2,D=10,delta_max=1"},
    {"method": "dynabro", "switching": "periodic:K=2", "clock": "computation"},
    {
        "method": "dynabro",
        "switching": "periodic:K=2",
        "clock": "computation",
        "attack_entry": "message",
    },
]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("attack", "cell"), [*(("ipm", cell) for cell in CELLS), ("alie", CELLS[0])]
)
def test_what_is_left_out_changes_nothing(
    attack: str, cell: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = RunSpec(
        task="digits", model="mlp:hidden=8", attack=attack, budget=40, eval_every=20, **cell
    )  # type: ignore[arg-type]
    asked: list[int] = []
    draw = ImageProblem.draw

    def counted(self: ImageProblem, round_: int, computations: Any, workers: torch.Tensor) -> Any:
        asked.append(len(workers))
        return draw(self, round_, computations, workers)

    monkeypatch.setattr(ImageProblem, "draw", counted)
    little = list(simulate(spec))
    fewest = min(asked)
    entry = REGISTRIES["attacks"].entries()[attack]
    build = entry.factory
    monkeypatch.setitem(
        entry.__dict__, "factory", lambda *given: build(*given)._replace(reads_own=True)
    )
    asked.clear()
    everything = list(simulate(spec))
    assert min(asked) == 17
    assert (fewest < 17) == (cell.get("attack_entry") != "message" or cell["method"] != "momentum")
    for ours, theirs in zip(little, everything, strict=True):
        if isinstance(ours, RoundsDone):
            assert [r.gradient_norm for r in ours.rounds] == pytest.approx(
                [r.gradient_norm for r in theirs.rounds], rel=1e-4
            )
        if isinstance(ours, Evaluated):
            assert ours.test_loss == pytest.approx(theirs.test_loss, rel=1e-4)
            if (
                ours.budget and cell.get("clock") != "computation"
            ):  # there a worker that was honest in part of a round counts in part
                assert ours.train_loss == pytest.approx(theirs.train_loss, rel=1e-4)
