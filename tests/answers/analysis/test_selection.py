"""``selection``: worked by hand, against every way to take the wrong number; and what is written is
what was chosen.
"""

from __future__ import annotations

import pytest
import yaml

from dynabro_cli.answers.analysis.selection import EndScore, as_sweep, choose
from dynabro_cli.cli.make.select import edges
from dynabro_cli.core.errors import SpecError
from dynabro_cli.experiment.grid.plan import PlannedRuns, plan
from dynabro_cli.experiment.grid.sweep_file import parse_sweep
from tests.tables import each_row

TEXT = """
name: grid
base: {task: digits, model: logistic, validation: 0.1}
grid:
  method: [sgd, "momentum:beta=0.99"]
  learning_rate: [0.1, 0.01]
  attack: [sf, ipm]
seeds: [3, 4]
"""

# Validation accuracy at the end: (method, learning rate, attack) -> seeds 3 and 4.
TABLE = {
    ("sgd", 0.1, "sf"): (0.9, 0.9),
    ("sgd", 0.1, "ipm"): (0.1, 0.5),  # mean 0.3: the worst of 0.1
    ("sgd", 0.01, "sf"): (0.4, 0.6),  # mean 0.5: the worst of 0.01, and better than 0.3
    ("sgd", 0.01, "ipm"): (0.5, 0.7),
    # mean 0.75: the worst of 0.1, and better than 0.7
    ("momentum:beta=0.99", 0.1, "sf"): (0.7, 0.8),
    ("momentum:beta=0.99", 0.1, "ipm"): (0.8, 0.8),
    ("momentum:beta=0.99", 0.01, "sf"): (0.95, 0.95),
    ("momentum:beta=0.99", 0.01, "ipm"): (0.5, 0.9),  # mean 0.7
}


def planned(text: str = TEXT) -> PlannedRuns:
    return plan(parse_sweep(text, "grid.yaml"))


def scores_of(own: PlannedRuns, diverged: tuple[object, ...] = ()) -> dict[str, EndScore]:
    found = {}
    for run in own.runs:
        spec = run.spec
        place = (spec.method, spec.learning_rate, spec.attack)
        found[run.key] = EndScore(
            "diverged" if place == diverged else "finished", TABLE[place][spec.seed - 3]
        )
    return found


def test_golden() -> None:
    """The best values on average would be 0.1 for sgd (0.6 against 0.55) and 0.01 for momentum
    (0.825 against 0.775).
    """
    own = planned()
    sgd, momentum = choose(own, scores_of(own, ("sgd", 0.01, "sf")), ["learning_rate"], ["attack"])
    assert (sgd.configuration, momentum.configuration) == (
        {"method": "sgd"},
        {"method": "momentum:beta=0.99"},
    )
    assert (sgd.best.values, sgd.best.worst, sgd.best.mean) == (
        {"learning_rate": 0.01},
        {"attack": "sf"},
        pytest.approx(0.5),
    )
    assert sgd.best.std == pytest.approx(0.02**0.5)  # of 0.4 and 0.6
    assert (sgd.best.seeds, sgd.best.diverged) == (2, 2)
    assert [candidate.mean for candidate in sgd.candidates] == pytest.approx([0.5, 0.3])
    assert (momentum.best.values, momentum.best.worst) == ({"learning_rate": 0.1}, {"attack": "sf"})
    assert [candidate.mean for candidate in momentum.candidates] == pytest.approx([0.75, 0.7])
    assert (momentum.best.diverged, len(momentum.best.runs)) == (0, 4)


def test_several_fields_may_be_chosen() -> None:
    own = planned()
    (only,) = choose(own, scores_of(own), ["learning_rate", "method"], ["attack"])
    assert only.configuration == {}
    assert only.best.values == {"learning_rate": 0.1, "method": "momentum:beta=0.99"}
    assert [candidate.mean for candidate in only.candidates] == pytest.approx([0.75, 0.7, 0.5, 0.3])


def test_an_adversary_may_choose_more_than_the_attack() -> None:
    own = planned()
    (only,) = choose(own, scores_of(own), ["learning_rate"], ["attack", "method"])
    assert only.best.values == {"learning_rate": 0.01}
    assert only.best.worst == {"attack": "sf", "method": "sgd"}
    assert [candidate.mean for candidate in only.candidates] == pytest.approx([0.5, 0.3])


def test_of_equals_the_first_of_the_sweep_is_chosen() -> None:
    own = planned()
    scores = {run.key: EndScore("finished", 0.5) for run in own.runs}
    assert [
        choice.best.values for choice in choose(own, scores, ["learning_rate"], ["attack"])
    ] == [{"learning_rate": 0.1}] * 2


def test_one_seed_has_no_deviation() -> None:
    own = planned(TEXT.replace("[3, 4]", "3"))
    assert {
        choice.best.std for choice in choose(own, scores_of(own), ["learning_rate"], ["attack"])
    } == {None}


@each_row(
    ("over", "worst", "problems"),
    [
        (
            ["learning_rat"],
            ["attack"],
            [
                (
                    "over=learning_rat is not legal (did you mean 'learning_rate'?); it must be a "
                    "field that "
                )
            ],
        ),
        (
            ["batch_size"],
            ["attack"],
            [
                (
                    "over=batch_size is not legal; it must be a field that the grid varies: "
                    "method, learning_rate"
                )
            ],
        ),
        (["seed"], ["attack"], ["over=seed is not legal"]),
        (["attack"], ["attack"], ["over=attack is not legal"]),
        (
            ["method"],
            ["atack", "seed"],
            ["worst=atack is not a field (did you mean 'attack'?)", "worst=seed is not a field"],
        ),
    ],
)
def test_illegal_fields(over: list[str], worst: list[str], problems: list[str]) -> None:
    own = planned()
    with pytest.raises(SpecError) as caught:
        choose(own, scores_of(own), over, worst)
    assert len(caught.value.problems) == len(problems)
    assert all(
        line.startswith(problem)
        for line, problem in zip(caught.value.problems, problems, strict=True)
    )


def test_candidates_that_were_not_tried_against_the_same_are_not_compared() -> None:
    own = planned(TEXT + "exclude: [{method: sgd, learning_rate: 0.1, attack: ipm}]\n")
    with pytest.raises(
        SpecError,
        match="the candidates of method=sgd are not tried against the same attacks and seeds",
    ):
        choose(own, scores_of(own), ["learning_rate"], ["attack"])


def test_what_is_written_is_what_was_chosen() -> None:
    """Runs use the whole training set, or keep their held-out share if it is set."""
    text = TEXT.replace(
        "learning_rate: [0.1, 0.01]",
        "rate: [{learning_rate: 0.1, lr_drop: none}, {learning_rate: 0.01}]",
    )
    text = text.replace(
        "{task: digits,", "{task: digits, workers: 11, aggregator: 'krum:f=2,neighbours=m-f-1',"
    )
    own = planned(text)
    choices = choose(own, scores_of(own), ["learning_rate", "lr_drop"], ["attack"])
    written = as_sweep(own, choices)
    chosen = {run.key for choice in choices for run in choice.best.runs}
    again = planned(written)
    assert again.sweep.name == "grid-selected"
    assert {run.spec.validation for run in again.runs} == {0.0}
    assert {
        run.key for run in planned(written.replace("validation: 0.0\n", "validation: 0.1\n")).runs
    } == chosen
    assert len(again.runs) == len(chosen) == 8
    document = yaml.safe_load(written)
    assert document["base"]["workers"] == 11
    assert {point["learning_rate"] for point in document["grid"]["chosen"]} <= {0.1, 0.01}


RULES = ", ".join([*(f'"centered-clipping:tau={tau},L=2"' for tau in (0.3, 1, 3)), "cwtm"])


def test_a_parameter_and_the_rate_are_chosen_together() -> None:
    """Each of two rules with a radius has three candidates per rate, cwtm without one has one."""
    text = TEXT.replace('method: [sgd, "momentum:beta=0.99"]', f"aggregator: [{RULES}]")
    own = planned(text)
    scores = {}
    for run in own.runs:
        tau = dict(run.aggregator.mapping).get("tau")
        best = tau == 3 and run.spec.learning_rate == 0.01
        worst = run.spec.attack == "ipm"
        scores[run.key] = EndScore("finished", 0.5 + 0.4 * best - 0.1 * worst)
    clipping, cwtm = choose(own, scores, ["aggregator.tau", "learning_rate"], ["attack"])
    assert clipping.configuration == {"aggregator": "centered-clipping:L=2"}
    assert clipping.best.values == {"aggregator.tau": 3.0, "learning_rate": 0.01}
    assert clipping.best.mean == pytest.approx(0.8)
    assert len(clipping.candidates) == 6
    assert cwtm.configuration == {"aggregator": "cwtm"}
    assert [candidate.values["aggregator.tau"] for candidate in cwtm.candidates] == [None, None]
    assert edges([clipping, cwtm])  # numbers and None are not compared
    assert "centered-clipping:tau=3,L=2" in as_sweep(own, [clipping])


def test_a_parameter_may_be_the_adversarys() -> None:
    own = planned(TEXT.replace("attack: [sf, ipm]", 'attack: ["ipm:epsilon=1", "ipm:epsilon=2"]'))
    scores = {
        run.key: EndScore("finished", 0.9 / dict(run.attack.mapping)["epsilon"]) for run in own.runs
    }
    for choice in choose(own, scores, ["learning_rate"], ["attack.epsilon"]):
        assert choice.configuration["attack"] == "ipm"
        assert choice.best.worst == {"attack.epsilon": 2.0}
        assert choice.best.mean == pytest.approx(0.45)


@each_row("name", ["aggregator.tau", "method.momentum", "learning_rate.x", "method."])
def test_a_parameter_that_does_not_vary(name: str) -> None:
    own = planned()
    with pytest.raises(SpecError, match=rf"^over={name} is not legal"):
        choose(own, scores_of(own), [name], ["attack"])
