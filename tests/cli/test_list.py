"""``dynabro list``."""

from __future__ import annotations

import json
import re

import pytest

from dynabro_cli.answers.figures._api import GRIDS, RECORDS
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.experiment.grid.sweep_lookup import load_sweep, shipped
from tests.cli.conftest import Dynabro


def test_everything_is_listed(dynabro: Dynabro) -> None:
    outcome = dynabro("list")
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    places = [
        lines.index(f"{kind} ({len(registry.entries())})") for kind, registry in REGISTRIES.items()
    ]
    assert places == sorted(places)
    for (kind, registry), start, end in zip(
        REGISTRIES.items(), places, [*places[1:], len(lines)], strict=True
    ):
        for entry in registry.entries().values():
            (line,) = [
                line
                for line in lines[start:end]
                if line.split()[:1] and line.split()[0].split(":")[0] == entry.name
            ]
            assert entry.summary in line, kind
            assert all(info.key in line.split()[0] for info in entry.infos)


@pytest.mark.parametrize("kind", REGISTRIES)
def test_one_kind(kind: str, dynabro: Dynabro) -> None:
    outcome = dynabro("list", kind)
    assert outcome.code == 0
    assert all(name in outcome.out for name in REGISTRIES[kind].entries())
    assert not {line.strip() for line in outcome.out.splitlines()} & (set(REGISTRIES) - {kind})


@pytest.mark.parametrize("kind", [*REGISTRIES, "sweeps", "searches", "figures"])
def test_a_narrow_terminal(kind: str, dynabro: Dynabro, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = json.loads(dynabro("list", kind, "--json").out)
    monkeypatch.setenv("COLUMNS", "80")
    out = dynabro("list", kind).out
    assert max(map(len, out.splitlines())) <= 80
    text = "".join(out.split())
    for part in parts:
        words = re.split(r"(?<=-)(?=\w)|\s+", part.get("summary") or part["description"])
        # the whole meaning, or a part that ends with a word
        cut = ["".join(words), *("".join(words[:count]) + "..." for count in range(4, len(words)))]
        assert any(meaning in text for meaning in cut), part["name"]
        assert re.search(rf"^  {re.escape(part['name'])}\b", out, re.MULTILINE)


@pytest.mark.parametrize("arguments", [(), ("attacks",)])
def test_json(arguments: tuple[str, ...], dynabro: Dynabro) -> None:
    found = json.loads(dynabro("list", *arguments, "--json").out)
    kinds = arguments or tuple(REGISTRIES)
    assert [(item["kind"], item["name"]) for item in found] == [
        (kind, name) for kind in kinds for name in REGISTRIES[kind].entries()
    ]
    for item in found:
        entry = REGISTRIES[item["kind"]].entry(item["name"])
        assert (item["summary"], item["reference"]) == (entry.summary, entry.reference)
        assert set(item["parameters"]) == {info.key for info in entry.infos}
    ipm = next(item for item in found if item["name"] == "ipm")
    assert ipm["parameters"] == {"epsilon": "0.1"}


@pytest.mark.thorough
def test_sweeps(dynabro: Dynabro) -> None:
    outcome = dynabro("list", "sweeps")
    assert (outcome.code, outcome.err) == (0, "")
    title, *lines = outcome.out.splitlines()
    assert title == f"sweeps ({len(shipped())})"
    assert [line.split()[0] for line in lines if line.startswith("  ")] == list(shipped())
    (demo,) = [line for line in lines if line.startswith("  demo ")]
    assert demo.split(maxsplit=3)[1:3] == ["6", "runs"]
    assert load_sweep("demo").description in demo
    found = json.loads(dynabro("list", "sweeps", "--json").out)
    assert [item["name"] for item in found] == list(shipped())
    assert next(item for item in found if item["name"] == "demo")["runs"] == 6


def test_an_unknown_kind(dynabro: Dynabro) -> None:
    outcome = dynabro("list", "agregators")
    assert (outcome.code, outcome.out) == (2, "")
    (line,) = outcome.problems
    assert line.startswith(
        "unknown kind 'agregators' (did you mean 'aggregators'?); legal: tasks, "
    )
    assert line.endswith(", sweeps, searches, figures")


def test_figures(dynabro: Dynabro) -> None:
    outcome = dynabro("list", "figures")
    assert (outcome.code, outcome.err) == (0, "")
    lines = [line.split()[0] for line in outcome.out.splitlines() if line.startswith("  ")]
    assert lines == [
        *sorted(GRIDS),
        "curves",
        "final",
        "heatmap",
        "histogram",
        "matrix",
        "timeline",
        *sorted(RECORDS),
    ]
    found = {item["name"]: item for item in json.loads(dynabro("list", "figures", "--json").out)}
    assert set(found) == set(lines)
    assert found["mnist-sf-cwtm"]["sweep"] == "mnist-sf-cwtm"
    assert found["mnist-sf-cwtm"]["reference"] == "DynaBRO (ICML 2024), Figure 1"
    assert found["digits-periodic-curves"]["sweep"] == "digits-periodic"
    assert found["heatmap"]["sweep"] is None
