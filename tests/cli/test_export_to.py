"""Runs for other tools, by the tools' own writers, and Parquet."""

from __future__ import annotations

import contextlib
import errno
import sqlite3
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from dynabro_cli.answers import exports
from dynabro_cli.runs.trackers import tensorboard
from tests.cli.conftest import Dynabro
from tests.runs.store.made import change, read


def test_a_run_has_its_fields_parameters_and_numbers(results: Path) -> None:
    change(
        results, "UPDATE runs SET tags = '[\"good\"]', note = 'mine', sweep = 'own' WHERE id = 1"
    )
    change(
        results,
        "INSERT INTO metrics (run_id, round, name, value) SELECT run_id, round, 'own', 0.5 "
        "FROM evaluations",
    )
    found = list(exports._runs("results.db", None, None))
    rows = read(
        results,
        "SELECT id, substr(run_key, 1, 10), final_accuracy FROM runs WHERE status IN "
        "('finished', 'diverged')",
    )
    assert [run.run.name for run in found] == [f"{number}-{key}" for number, key, _ in rows]
    assert [run.final.get("final_accuracy") for run in found] == [accuracy for *_, accuracy in rows]
    exported = found[0]
    first = exported.run
    assert (first.group, first.tags, first.note) == ("own", ["good"], "mine")
    assert {"task", "learning_rate", "seed"} <= set(first.fields)
    assert all(value is not None for value in first.fields.values())
    assert any("." in name for run in found for name in run.run.fields)
    stored = read(
        results, "SELECT budget, test_accuracy FROM evaluations WHERE run_id = 1 ORDER BY round"
    )
    assert [
        (budget, point.get("test_accuracy"), point["own"]) for budget, point in exported.points
    ] == [(budget, accuracy, 0.5) for budget, accuracy in stored]
    assert exported.ended >= first.started
    assert (
        len(list(exports._runs("results.db", "id = 1", None)))
        == len(list(exports._runs("results.db", None, ["own"])))
        == 1
    )


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (
            "--to tensorbord",
            2,
            (
                "to=tensorbord: not a tool (did you mean 'tensorboard'?). Try: tensorboard, "
                "mlflow, wandb-offline"
            ),
        ),
        ("", 2, "what is to be written? Try: dynabro export curves --csv FILE"),
        ("curves --to mlflow", 2, "what is to be written?"),
        ("curves --csv a.csv --parquet a.parquet", 2, "what is to be written?"),
        ("--to mlflow", 2, "to=mlflow: it needs the package mlflow. Try: pip install mlflow"),
    ],
)
def test_what_is_refused(
    words: str,
    code: int,
    problem: str,
    dynabro: Dynabro,
    results: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)  # as if it were not installed
    outcome = dynabro("export", *words.split())
    assert outcome.code == code
    assert outcome.problems[0].startswith(problem)
    assert sorted(path.name for path in Path().iterdir()) == ["results.db"]


@pytest.mark.parametrize(
    "to",
    [
        to if to == "tensorboard" else pytest.param(to, marks=pytest.mark.thorough)
        for to in exports.TARGETS
    ],
)
def test_each_tool_writes_its_files(to: str, dynabro: Dynabro, results: Path) -> None:
    outcome = dynabro("export", "--to", to, "--out", "out", "--where", "id <= 2")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err.endswith("2 runs written to out\n")
    assert any(path.is_file() for path in Path("out").rglob("*"))
    again = dynabro("export", "--to", to, "--out", "out")
    assert (again.code, again.problems[-1]) == (
        73,
        "out exists, and is not an empty folder. Try: another --out",
    )


def test_parquet_has_the_rows_of_csv(dynabro: Dynabro, results: Path) -> None:
    for what in ("curves", "final", "rounds"):
        assert dynabro("export", what, "--parquet", "a.parquet").code == 0
        assert dynabro("export", what, "--csv", "a.csv").code == 0
        assert len(pd.read_parquet("a.parquet")) == len(pd.read_csv("a.csv"))


def test_parquet_needs_its_package(
    dynabro: Dynabro, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    outcome = dynabro("export", "final", "--parquet", "a.parquet")
    assert (outcome.code, outcome.problems[0]) == (
        2,
        "a Parquet file needs the package pyarrow. Try: pip install pyarrow, or --csv FILE",
    )
    assert not Path("a.parquet").exists()


@pytest.mark.parametrize(
    "values",
    ["sweep = '/elsewhere'", "sweep = '..'", "sweep = 'a/../../b'", "run_key = '/../../../x'"],
)
def test_a_name_from_a_database_is_no_path(values: str, dynabro: Dynabro, results: Path) -> None:
    change(results, f"UPDATE runs SET {values} WHERE id = 1")
    outcome = dynabro("export", "--to", "tensorboard", "--out", "out", "--where", "id = 1")
    assert (outcome.code, len(outcome.problems)) == (65, 1)
    assert outcome.problems[0].startswith("run 1: its sweep ")
    assert not Path("out").exists()


def refused_by_thread() -> None:
    def write() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()


def refused_by_sqlite() -> None:
    raise RuntimeError("(sqlite3.OperationalError) database or disk is full\n[SQL: INSERT]")


def refused_by_tool() -> None:
    raise RuntimeError("Invalid experiment name")


@pytest.mark.parametrize(
    ("refuse", "code"), [(refused_by_thread, 74), (refused_by_sqlite, 74), (refused_by_tool, 73)]
)
@pytest.mark.parametrize("exists", [True, False])
def test_a_failed_export_leaves_nothing(
    refuse: Callable[[], None],
    code: int,
    exists: bool,
    dynabro: Dynabro,
    results: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def begin(run: object, place: str) -> None:
        Path(place, "half").write_text("half")
        refuse()

    pytest.importorskip("tensorboard")
    monkeypatch.setattr(tensorboard, "begin", begin)
    if exists:
        Path("out").mkdir()
    outcome = dynabro("export", "--to", "tensorboard", "--out", "out")
    assert (outcome.code, len(outcome.problems)) == (code, 1), outcome.err
    assert outcome.problems[0].startswith("out cannot be written (")
    written = [path for path in Path().iterdir() if not path.name.startswith("results.db")]
    assert written == ([Path("out")] if exists else [])
    assert not exists or list(Path("out").iterdir()) == []


METRICS = ("f1(macro)", "f1[macro]", "..", "", "a//b", "über", "x" * 300, "plain_1.2")


@pytest.mark.parametrize("to", [pytest.param("mlflow", marks=pytest.mark.thorough), "tensorboard"])
def test_metrics_of_any_name_are_written(to: str, dynabro: Dynabro, results: Path) -> None:
    pytest.importorskip(to)
    for name in METRICS:
        change(
            results,
            f"INSERT INTO metrics (run_id, round, name, value) SELECT run_id, round, '{name}', 0.5 "
            "FROM evaluations WHERE run_id = 1",
        )
    outcome = dynabro("export", "--to", to, "--out", "out", "--where", "id = 1")
    assert outcome.code == 0, outcome.err
    if to == "mlflow":
        assert "the metric 'f1(macro)' is written as 'f1_macro_'" in outcome.err
        assert "plain_1.2" not in outcome.err
        with contextlib.closing(sqlite3.connect("out/mlflow.db")) as connection:
            counts = dict(connection.execute("SELECT key, COUNT(*) FROM metrics GROUP BY key"))
            (place,) = connection.execute(
                "SELECT artifact_location FROM experiments WHERE name <> 'Default'"
            ).fetchone()
        assert place == Path("out/artifacts").resolve().as_uri()
        number = counts["plain_1.2"]
        assert number > 0
        ours = [key for key in counts if not key.startswith(("test_", "train_", "final_", "gap"))]
        assert [counts[key] for key in ours] == [number] * len(METRICS)
