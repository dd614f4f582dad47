"""``dynabro show``."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from dynabro_cli.components.bibtex import bibtex
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.registration import format_value
from dynabro_cli.runs.store.tables import metadata
from tests.cli.conftest import Dynabro
from tests.runs.store.made import change, read

LARGEST = [
    f"{kind}/{max(registry.entries().values(), key=lambda entry: len(entry.infos)).name}"
    for kind, registry in REGISTRIES.items()
]
"""The component with the most parameters of each kind; all are shown in the same way."""


@pytest.mark.parametrize("what", LARGEST)
def test_a_component_of_every_kind_is_shown(what: str, dynabro: Dynabro) -> None:
    kind, name = what.split("/")
    entry = REGISTRIES[kind].entry(name)
    outcome = dynabro("show", what)
    assert (outcome.code, outcome.err) == (0, "")
    words = " ".join(outcome.out.split())  # lines are as wide as the terminal
    assert " ".join(entry.doc.split()) in words
    assert outcome.out.startswith(what)
    papers = " ".join(" ".join(bibtex(what)).split())
    assert words.endswith(f"Reference: {' '.join(entry.reference.split())} {papers}".strip())
    rows = [line.split() for line in outcome.out.splitlines()]
    for info in entry.infos:
        default = "required" if info.required else format_value(info.default)
        assert any(row[:2] == [info.key, default] for row in rows)
        assert info.limits["help"] in outcome.out

    shown = json.loads(dynabro("show", what, "--json").out)
    assert (shown["kind"], shown["name"], shown["doc"], shown["reference"]) == (
        kind,
        name,
        entry.doc,
        entry.reference,
    )
    assert [item["parameter"] for item in shown["parameters"]] == [info.key for info in entry.infos]


@pytest.mark.parametrize(("name", "entries"), [("nnm", 1), ("alie", 2), ("nan", 0)])
def test_the_papers_of_a_component_are_shown(dynabro: Dynabro, name: str, entries: int) -> None:
    assert dynabro("show", name).out.count("\n@") == entries
    assert len(json.loads(dynabro("show", name, "--json").out)["bibtex"]) == entries


def test_a_run_by_id_and_by_key(dynabro: Dynabro, results: Path) -> None:
    (key,) = read(results, "SELECT run_key FROM runs WHERE id = 5")[0]
    by_id, by_key = dynabro("show", "runs/5", "--all"), dynabro("show", f"runs/{key[:12]}", "--all")
    assert by_id == by_key
    assert (by_id.code, by_id.err) == (0, "")
    shown = dict(
        line.split(maxsplit=1)
        for line in by_id.out.split("\ncolumn ")[1].split("\n\n")[0].splitlines()[2:]
    )
    parts = [name for name in shown if "." in name]
    columns = [column.name for column in metadata.tables["runs"].columns]
    assert [name for name in shown if name not in parts] == [
        name for name in columns if name in shown
    ]
    assert {"spec", "versions"} >= set(columns) - set(shown) - {"code_digests"}
    assert {"method.jmax", "aggregator.f"} <= set(parts)
    assert (
        max(len(line) for line in by_id.out.splitlines() if not line.startswith("repeat: ")) < 120
    )
    assert (shown["run_key"].strip(), shown["method"].strip(), shown["status"].strip()) == (
        key,
        "dynabro",
        "finished",
    )

    histogram = [line.split() for line in by_id.out.split("by rounds:\n")[1].splitlines()]
    counts = read(
        results,
        "SELECT byzantine, rounds FROM byzantine_histogram WHERE run_id = 5 ORDER BY byzantine",
    )
    assert [(int(byzantine), int(rounds)) for byzantine, rounds, _ in histogram] == counts
    assert max(len(bar) for *_, bar in histogram) == 40


def test_a_run_starts_with_its_scores(dynabro: Dynabro, results: Path, folder: Path) -> None:
    """The cell, the scores, a line of bars, and a command that has the same key; hints name the
    database.
    """
    other = results.rename(folder / "other.db")
    first, _, scores, bars, spent, *rest = dynabro("show", "1", "--db", "other.db").out.splitlines()
    (accuracy, budget) = read(other, "SELECT final_accuracy, budget FROM runs WHERE id = 1")[0]
    assert first.startswith("run 1: digits, sgd, cwtm, sf, periodic:K=4, seed ")
    assert scores.startswith(f"finished: accuracy {accuracy:.4g}, loss ")
    evaluations = read(other, "SELECT COUNT(*) FROM evaluations WHERE run_id = 1")[0][0]
    assert len(bars.split("  ")[0]) == evaluations
    assert spent.startswith(f"{budget} of {budget} gradient computations")
    assert rest[-1].endswith("dynabro show 1 --all --db other.db")
    (command,) = (line.removeprefix("repeat: ") for line in rest if line.startswith("repeat: "))
    words = shlex.split(command)[1:]
    assert words[-2:] == ["--db", "other.db"]
    again = dynabro(*words, "--quiet")
    assert "already" in again.out + again.err


def test_a_run_as_json(dynabro: Dynabro, results: Path) -> None:
    shown = json.loads(dynabro("show", "runs/7", "--json").out)
    counts = read(results, "SELECT byzantine, rounds FROM byzantine_histogram WHERE run_id = 7")
    assert shown.pop("byzantine_histogram") == {
        str(byzantine): rounds for byzantine, rounds in counts
    }
    recovery = read(
        results,
        "SELECT switches_seen, recoveries, dip, worst_window, reason FROM recovery WHERE "
        "run_id = 7",
    )
    told = shown.pop("recovery")
    assert [
        tuple(
            told[name] for name in ("switches_seen", "recoveries", "dip", "worst_window", "reason")
        )
    ] == recovery
    assert shown["spec"]["attack"].items() >= {"name": "shift", "lambda": 1.0}.items()
    assert set(shown["versions"]) >= {"dynabro", "python", "torch", "threads"}
    names = [column.name for column in metadata.tables["runs"].columns]
    expected = dict(zip(names, read(results, "SELECT * FROM runs WHERE id = 7")[0], strict=True))
    assert shown["code_digests"] == json.loads(expected["code_digests"])
    parsed = dict.fromkeys(("spec", "versions", "code_digests"))
    assert shown | parsed == expected | parsed


def test_a_run_whose_workers_have_samples_of_their_own(dynabro: Dynabro, folder: Path) -> None:
    command = (
        "run --task digits --model logistic --method sgd --workers 5 --byzantine 1 "
        "--budget 2 --data sorted --quiet"
    )
    assert dynabro(*command.split()).code == 0
    rows = read(
        folder / "results.db", "SELECT worker, label, count FROM worker_labels ORDER BY 1, 2"
    )
    told = json.loads(dynabro("show", "runs/1", "--json").out)["worker_labels"]
    assert [tuple(item.values()) for item in told] == rows
    title, *table = (
        dynabro("show", "runs/1", "--all")
        .out.split("Training samples, by worker and label:\n")[1]
        .splitlines()
    )
    assert title.split() == ["worker", *map(str, range(10))]
    cells = {(worker, label): count for worker, label, count in rows}
    lines = [[int(cell) for cell in line.split()] for line in table if line.split()[0].isdigit()]
    assert lines == [
        [worker, *(cells.get((worker, label), 0) for label in range(10))] for worker in range(5)
    ]
    assert [sum(line[1:]) for line in lines] == [288, 288, 287, 287, 287]


def test_a_run_without_rounds(dynabro: Dynabro, results: Path) -> None:
    change(results, "DELETE FROM rounds WHERE run_id = 1")
    outcome = dynabro("show", "runs/1", "--all")
    assert dynabro("show", "1", "--all") == outcome
    assert outcome.code == 0
    assert outcome.out.rstrip().endswith("by rounds:")


@pytest.mark.parametrize("name", ["77", "zz", "9" * 30, "²"])
def test_a_run_that_is_not_there(name: str, dynabro: Dynabro, results: Path) -> None:
    outcome = dynabro("show", f"runs/{name}")
    assert (outcome.code, outcome.out) == (66, "")
    assert outcome.problems == [
        f"there is no run {name!r}. Try: dynabro runs, which lists ids and keys"
    ]


def test_a_database_that_is_not_there(dynabro: Dynabro) -> None:
    outcome = dynabro("show", "runs/1")
    assert (outcome.code, outcome.out) == (66, "")
    assert outcome.problems[0].startswith("there is no database results.db")


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        (
            "cwmt",
            (
                "cannot show 'cwmt': neither a component nor a run (did you mean "
                "'aggregators/cwtm'?). Try: dynabro list"
            ),
        ),
        (
            "agregators/cwtm",
            "cannot show 'agregators/cwtm' (did you mean 'aggregators'?). Try: KIND/NAME",
        ),
        ("aggregators/", "Try: KIND/NAME"),
        ("runs/", "Try: KIND/NAME"),
        ("", "Try: KIND/NAME"),
        ("/", "Try: KIND/NAME"),
        ("aggregators/cwmt", "unknown aggregator 'cwmt' (did you mean 'cwtm'?); legal: "),
        ("aggregators/cwtm/f", "unknown aggregator 'cwtm/f'"),
    ],
)
def test_nonsense(what: str, problem: str, dynabro: Dynabro) -> None:
    outcome = dynabro("show", what)
    assert (outcome.code, outcome.out) == (2, "")
    (line,) = outcome.problems
    assert problem in line


def test_paragraphs_are_as_wide_as_the_terminal(
    dynabro: Dynabro, monkeypatch: pytest.MonkeyPatch
) -> None:
    for width in (80, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        longest = max(map(len, dynabro("show", "caf").out.splitlines()))
        assert 0.8 * width < longest <= width
