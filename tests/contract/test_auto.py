"""Promise of every parameter with ``auto``: the numbers are the same as with the value that
``auto`` resolves to.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from dynabro_cli.components import Component, ParameterInfo
from dynabro_cli.errors import SpecError
from dynabro_cli.events import Evaluated, Event, RoundsDone
from dynabro_cli.experiment.resolve import REGISTRIES, Run, resolve
from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.simulation.setup import simulate_run

ONLY_THE_RUN_TELLS = {
    *(("methods", name, "noise_bound") for name in ("dynabro", "byzantine-sgd", "safeguard")),
    *(("methods", "byzantine-sgd", key) for key in ("D", "threshold_A", "threshold_B")),
    *(("methods", "safeguard", key) for key in ("threshold0", "threshold1")),
}
NOTHING = {
    ("tasks", "quadratic", "radius"),
    ("switching", "on-level", "K"),
    ("methods", "dynabro", "clip"),
}
NOTHING |= {
    ("methods", "mu2-sgd", "beta"),
    ("methods", "mu2-sgd", "gamma"),
    ("tasks", "image-folder", "size"),
}
"""Parameters for which auto means nothing, or a number that changes from round to round; no value
can replace it.
"""

FIELDS = {
    "tasks": "task",
    "models": "model",
    "methods": "method",
    "aggregators": "aggregator",
    "pre_aggregators": "pre_aggregators",
    "attacks": "attack",
    "switching": "switching",
    "partitions": "data",
}

# Settings in which components are tried; required parameters are 1.
BRIEF: dict[str, Any] = {
    "task": "quadratic",
    "workers": 9,
    "byzantine": 3,
    "budget": 20,
    "eval_every": 10,
}
SETTINGS: list[dict[str, Any]] = [
    BRIEF | {"method": "momentum"},
    BRIEF | {"method": "dynabro:filter=option2,noise_bound=1", "workers": 8},
    BRIEF | {"method": "dynabro", "byzantine": 0},
]

OPTIONAL = [
    (kind, entry.name, info.key)
    for kind, registry in REGISTRIES.items()
    for entry in registry.entries().values()
    for info in entry.infos
    if info.optional
]
KNOWN = [place for place in OPTIONAL if place not in ONLY_THE_RUN_TELLS | NOTHING]


TRACE = os.path.relpath(Path(__file__).with_name("trace.csv"))
REQUIRED = {("switching", "trace", "file"): TRACE}
"""Values of parameters that are not just any word."""


def least(kind: str, name: str, info: ParameterInfo) -> str:
    """A value of a parameter that has no default."""
    return f"{info.key}={REQUIRED.get((kind, name, info.key), 'x' if info.type is str else 1)}"


def needed(kind: str, name: str, *also: str) -> str:
    """The component with its required parameters."""
    infos = REGISTRIES[kind].entry(name).infos
    given = [least(kind, name, info) for info in infos if info.required]
    return f"{name}:{','.join([*given, *also])}".rstrip(":")


def part_of(run: Run, kind: str) -> Component[Any]:
    found = getattr(run, FIELDS[kind])
    return found[0] if kind == "pre_aggregators" else found


def with_value(place: tuple[str, str, str], run: Run, value: Any) -> Component[Any]:
    """The run's component with the parameter at ``value``."""
    part = part_of(run, place[0])
    return dataclasses.replace(
        part, parameters=dataclasses.replace(part.parameters, **{info_of(place).field: value})
    )


def info_of(place: tuple[str, str, str]) -> ParameterInfo:
    kind, name, key = place
    return next(info for info in REGISTRIES[kind].entry(name).infos if info.key == key)


def explicit_values(
    place: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> list[tuple[Run, Any]]:
    """The settings in which auto resolves to a value: a run with auto, and the value."""
    kind, name, key = place
    auto, seen, canonical = info_of(place).auto, list[Any](), Component.canonical
    assert auto is not None, f"{name}: say with auto= what {key}=auto comes to, or list it here"

    def spy(component: Component[Any], setting: Any) -> Component[Any]:
        if component.entry is REGISTRIES[kind].entry(name):
            seen.append(auto(component.parameters, setting))
        return canonical(component, setting)

    monkeypatch.setattr(Component, "canonical", spy)
    found = []
    for setting in SETTINGS:
        if kind == "tasks" and setting["task"] != name:
            continue
        seen.clear()
        try:
            run = resolve(RunSpec(**setting | {FIELDS[kind]: needed(kind, name, f"{key}=auto")}))
        except SpecError:
            continue
        if seen and seen[-1] is not None:
            found.append((run, seen[-1]))
    return found


def numbers(run: Run) -> list[Event]:
    return [
        event
        for event in simulate_run(run, threads=1)
        if isinstance(event, (Evaluated, RoundsDone))
    ]


@pytest.mark.parametrize("place", OPTIONAL, ids=":".join)
def test_auto_is_declared(place: tuple[str, str, str]) -> None:
    assert (info_of(place).auto is not None) == (place in KNOWN)


@pytest.mark.thorough
@pytest.mark.parametrize("place", KNOWN, ids=":".join)
def test_auto_is_the_value_that_it_comes_to(
    place: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, name, _ = place
    found = explicit_values(place, monkeypatch)
    assert found, "no setting of these tells what auto comes to"
    run, value = found[0]
    made = []
    for choice in (None, value):
        part = with_value(place, run, choice)
        parts: dict[str, Any] = {FIELDS[kind]: (part,) if kind == "pre_aggregators" else part}
        made.append(numbers(dataclasses.replace(run, **parts)))
    assert made[0] == made[1], (name, value)


@pytest.mark.parametrize("place", KNOWN, ids=":".join)
def test_auto_and_its_value_are_one_run(
    place: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, name, _ = place
    for run, value in explicit_values(place, monkeypatch):
        changed: dict[str, Any] = {FIELDS[kind]: with_value(place, run, value).text}
        assert resolve(dataclasses.replace(run.spec, **changed)) == run, (name, value)
