"""Fields without effect: runs that differ in them give equal numbers, and have one adversary."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dynabro_cli import RunSpec
from dynabro_cli.components.methods._api import MethodSetting, forgets
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.events import Started
from dynabro_cli.experiment.effect import adversary_of, aligned
from dynabro_cli.experiment.resolve import Run, resolve
from dynabro_cli.simulation.setup import simulate

pytestmark = pytest.mark.usefixtures("same_threads_after")

REQUIRED = {"shift": "shift:lambda=1", "momentum-tailored": "momentum-tailored:lambda=1,beta=0.9"}
DYNABRO = ("dynabro:jmax=2", "dynabro:jmax=2,filter=adaptive,clip=1")
FORGETFUL = [
    *DYNABRO,
    *(
        name
        for name, entry in REGISTRIES["methods"].entries().items()
        if name != "dynabro" and forgets(entry.factory(entry.parameters(), MethodSetting(7, 100)))
    ),
]
MEMORY = ("momentum", "nsgdm", "demoa", "mu2-sgd")


def made(**given: Any) -> Run:
    usual = {
        "task": "quadratic",
        "workers": 7,
        "byzantine": 2,
        "budget": 10,
        "switching": "periodic:K=2",
        "seed": 1,
    }
    return resolve(RunSpec(**(usual | {"learning_rate": 0.05, "eval_every": 5} | given)))


def events(run: Run) -> list[str]:
    """Every number that a run yields, to the last bit."""
    torch.set_num_threads(1)
    return [repr(event) for event in simulate(run.spec) if not isinstance(event, Started)]


def test_methods_that_forget_are_known() -> None:
    assert sorted(FORGETFUL) == sorted((*DYNABRO, "byzantine-sgd", "marina-pp", "safeguard", "sgd"))


@pytest.mark.thorough
@pytest.mark.parametrize("method", FORGETFUL)
def test_an_attack_on_workers_that_forget_is_the_same_at_each_entry(method: str) -> None:
    """The adversaries are equal, and so are all numbers; the other texts of the run are all that
    the attack allows.
    """
    longer = method in DYNABRO
    for name in REGISTRIES["attacks"].entries():
        run = made(method=method, attack=REQUIRED.get(name, name)) if name != "label-flip" else None
        others = [] if run is None else list(run.equivalents())
        at_round = [other for other in others if other.spec.clock == "round"]
        # an attack on each computation of a longer round is another
        same = [] if run is None else adversary_of(run.fields).entries
        entries = run.parts.attack.entries if run is not None else ()
        assert set(entries) - set(same) == ({"computation"} & set(entries) if longer else set())
        known = max(1, len(same))
        assert len(at_round) == known * (2 if name == "sf" else 1) - 1
        expected = events(run) if run is not None and others else []
        for other in at_round:
            assert events(other) == expected, (name, other.spec.attack_entry)
            assert adversary_of(other.fields) == adversary_of(run.fields)  # type: ignore[union-attr]


@pytest.mark.thorough
@pytest.mark.parametrize("method", MEMORY)
def test_a_memory_makes_the_entry_matter(method: str) -> None:
    runs = [made(method=method, attack_entry=entry) for entry in ("gradient", "message", "state")]
    each = made(method=method, attack_entry="computation")
    # the sign flip has no state, so that it is the same at each of several computations
    assert events(each) == events(runs[0])
    assert (adversary_of(each.fields) == adversary_of(runs[0].fields)) == (method != "mu2-sgd")
    assert (
        len({tuple(events(run)) for run in runs})
        == len({adversary_of(run.fields) for run in runs})
        == 3
    )
    # at the gradient, both negate it
    both = [made(method=method, attack=text) for text in ("sf", "sf:negates=gradient")]
    assert events(both[0]) == events(both[1])
    assert adversary_of(both[0].fields) == adversary_of(both[1].fields)
    none = [
        made(method=method, attack="none", attack_entry=entry)
        for entry in ("gradient", "message", "state")
    ]
    assert (
        len({tuple(events(run)) for run in none})
        == len({adversary_of(run.fields) for run in none})
        == 1
    )


@pytest.mark.parametrize(
    ("method", "same"), [("sgd", True), ("momentum", True), ("dynabro:jmax=2", False)]
)
def test_a_clock_has_no_effect_on_rounds_of_one_computation(method: str, same: bool) -> None:
    runs = [made(method=method, clock=clock) for clock in ("round", "computation")]
    assert (
        (events(runs[0]) == events(runs[1]))
        == (adversary_of(runs[0].fields) == adversary_of(runs[1].fields))
        == same
    )


def test_an_attack_within_a_round_has_an_entry() -> None:
    runs = [
        made(method="dynabro:jmax=2", clock="computation", attack_entry=entry)
        for entry in ("gradient", "message")
    ]
    assert events(runs[0]) != events(runs[1])
    assert adversary_of(runs[0].fields) != adversary_of(runs[1].fields)


@pytest.mark.parametrize("clock", ["round", "computation"])
@pytest.mark.parametrize("switching", ["static", "periodic:K=2"])
def test_an_attack_on_each_computation_is_another(switching: str, clock: str) -> None:
    runs = [
        made(
            method="dynabro:jmax=2",
            attack="alie",
            attack_entry=entry,
            clock=clock,
            switching=switching,
        )
        for entry in ("gradient", "computation")
    ]
    assert events(runs[0]) != events(runs[1])
    assert adversary_of(runs[0].fields) != adversary_of(runs[1].fields)


def test_a_component_that_is_not_known_is_taken_as_stored() -> None:
    run = made(method="sgd", attack="sf:negates=gradient", attack_entry="state").fields
    assert adversary_of(run).attack == "sf"
    for field in ("method", "attack"):
        stored = adversary_of({**run, field: "of-a-plugin:x=1"})
        assert (stored.entry, stored.clock, stored.any_entry, stored.any_clock) == (
            "state",
            "round",
            False,
            False,
        )


def placed(*runs: dict[str, str]) -> list[tuple[int, str, str, str]]:
    found = aligned([made(**run).fields for run in runs])
    return [
        (place, shown["attack"], shown["attack_entry"], shown["reading"]) for place, shown in found
    ]


def test_a_run_without_a_memory_is_beside_the_runs_that_met_its_adversary() -> None:
    poisoned = {"method": "momentum", "attack": "sf:negates=gradient", "attack_entry": "state"}
    sgd, again = {"method": "sgd"}, {"method": "sgd", "attack_entry": "message"}
    assert placed(sgd, poisoned) == [
        (0, "sf:negates=gradient", "state", ""),
        (1, "sf:negates=gradient", "state", ""),
    ]
    assert placed(sgd, again) == [(0, "sf", "gradient", "")]  # the same numbers count once
    assert placed({"method": "sgd", "attack": "ipm"}, poisoned)[0][1:3] == ("ipm", "gradient")
    both = placed(sgd, poisoned, {"method": "momentum"})
    at = ("attack enters at the state, negates=gradient", "attack enters at the gradient")
    assert [(place, reading) for place, *_, reading in both] == [
        (0, at[0]),
        (0, at[1]),
        (1, at[0]),
        (2, at[1]),
    ]


def test_runs_are_beside_an_attack_on_each_computation() -> None:
    """A round of one computation has no other; DynaBRO's rounds have. Momentum forgets nothing."""
    each = {"method": "dynabro:jmax=2", "attack": "alie", "attack_entry": "computation"}
    sgd, momentum = ({"method": name, "attack": "alie"} for name in ("sgd", "momentum"))
    assert placed(sgd, momentum, each) == [(place, "alie", "computation", "") for place in range(3)]
    levels = {**each, "attack_entry": "gradient"}
    at = ("attack enters at each computation", "attack enters at the gradient")
    assert [(place, reading) for place, *_, reading in placed(sgd, momentum, each, levels)] == [
        (0, at[0]),
        (0, at[1]),
        (1, at[0]),
        (1, at[1]),
        (2, at[0]),
        (3, at[1]),
    ]
    kept = {**momentum, "attack_entry": "state"}
    assert [place for place, *_ in placed(sgd, kept, each)] == [0, 0, 1, 2]
