"""``dynabro export``."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from dynabro_cli import load
from dynabro_cli.answers import exports
from tests.cli.conftest import Dynabro
from tests.runs.store.made import change, read

COMPONENTS = "task, method, aggregator, attack, switching, seed"
EQUIVALENTS = {
    "curves": (
        f"SELECT run_id, {COMPONENTS}, round, e.budget, samples, test_accuracy, test_loss, "
        "train_loss, gap, "
        "precision, participation, data, validation_accuracy, validation_loss "
        "FROM evaluations e JOIN runs ON runs.id = run_id {} ORDER BY run_id, round"
    ),
    "final": "SELECT * FROM final_accuracy {}",
    "rounds": (
        f"SELECT run_id, {COMPONENTS}, round, r.budget, level, cost, r.byzantine, switched, "
        "dynamic, accepted, "
        "r.learning_rate, gradient_norm, aggregation_error, precision, participation, "
        "acceptance, data "
        "FROM rounds r JOIN runs ON runs.id = run_id {} ORDER BY run_id, round"
    ),
}


def as_text(value: Any) -> str:
    return "" if value is None else str(value)


def names(path: Path, what: str) -> list[str]:
    if what == "final":
        return [
            name for (name,) in read(path, "SELECT name FROM pragma_table_info('final_accuracy')")
        ]
    listed = EQUIVALENTS[what].removeprefix("SELECT ").split(" FROM ")[0].split(", ")
    return [name.split(".")[-1] for name in listed]


@pytest.mark.parametrize("where", ["", "task = 'digits' OR method LIKE 'momentum%'"])
@pytest.mark.parametrize("what", EQUIVALENTS)
def test_the_file_equals_sql(what: str, where: str, dynabro: Dynabro, results: Path) -> None:
    expected = read(results, EQUIVALENTS[what].format(f"WHERE {where}" if where else ""))
    assert expected
    outcome = dynabro("export", what, "--csv", "out.csv", *(("--where", where) if where else ()))
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err == f"{len(expected)} rows of {what} written to out.csv\n"
    with Path("out.csv").open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert len(set(header)) == len(header)
    places = [header.index(name) for name in names(results, what)]
    assert [[row[place] for place in places] for row in rows] == [
        [as_text(value) for value in row] for row in expected
    ]


CHAINS = ("none", "nnm", "bucketing:s=2+nnm")


@pytest.mark.thorough
def test_every_table_has_the_rule_with_its_chain(dynabro: Dynabro, results: Path) -> None:
    """Grouped by ``aggregator`` alone, these runs would be mixed."""
    for place, chain in enumerate(CHAINS):
        change(results, f"UPDATE runs SET pre_aggregators = '{chain}' WHERE id % 3 = {place}")
    rules = {
        number: aggregator if chain == "none" else f"{chain}+{aggregator}"
        for number, chain, aggregator in read(
            results, "SELECT id, pre_aggregators, aggregator FROM runs"
        )
    }
    assert set(rules.values()) == {"cwtm", "nnm+cwtm", "bucketing:s=2+nnm+cwtm", "nnm+cwmed"}
    for what in ("curves", "rounds"):
        table = pd.read_csv(io.StringIO(dynabro("export", what, "--csv", "-").out))
        assert dict(zip(table["run_id"], table["rule"], strict=True)) == rules
    for words in (
        ("export", "final", "--csv", "-"),
        ("query", "SELECT * FROM final_accuracy", "--csv"),
    ):
        assert set(pd.read_csv(io.StringIO(dynabro(*words).out))["rule"]) == set(rules.values())
    for words in ((), ("--columns", "id,rule")):
        listed = pd.read_csv(io.StringIO(dynabro("runs", "--csv", *words).out))
        assert dict(zip(listed["id"], listed["rule"], strict=True)) == rules
    frame = load(results).runs
    assert dict(zip(frame["id"], frame["rule"], strict=True)) == rules
    assert [run.run.fields["rule"] for run in exports._runs("results.db", None, None)] == list(
        rules.values()
    )
    assert dynabro("plot", "final").code == 0
    drawn = pd.read_csv("plots/final.runs.csv").merge(frame, on="run_key")
    assert list(drawn["rule_x"]) == list(drawn["rule_y"])


def test_numbers_come_back_exactly(dynabro: Dynabro, results: Path) -> None:
    dynabro("export", "curves", "--csv", "out.csv")
    with Path("out.csv").open(newline="", encoding="utf-8") as file:
        exported = [float(row["test_loss"]) for row in csv.DictReader(file) if row["test_loss"]]
    losses = read(
        results,
        "SELECT test_loss FROM evaluations WHERE test_loss IS NOT NULL ORDER BY run_id, round",
    )
    assert exported == [loss for (loss,) in losses]
    assert len(losses) > 20


def test_standard_output(dynabro: Dynabro, results: Path) -> None:
    outcome = dynabro("export", "final", "--csv", "-")
    assert outcome.code == 0
    assert (
        len(list(csv.reader(io.StringIO(outcome.out))))
        == 1 + read(results, "SELECT COUNT(*) FROM final_accuracy")[0][0]
    )
    assert not Path("-").exists()


def test_an_older_file_is_replaced(dynabro: Dynabro, results: Path) -> None:
    Path("out.csv").write_text("x" * 100_000)
    dynabro("export", "final", "--csv", "out.csv")
    assert Path("out.csv").read_text().startswith("task,model,method,")


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (
            ("curve", "--csv", "out.csv"),
            2,
            (
                "cannot export 'curve' (did you mean 'curves'?); legal: curves, final, rounds. "
                "For a row of each run: dynabro query --csv 'SELECT * FROM runs'"
            ),
        ),
        (
            ("curves", "--csv", "missing/out.csv"),
            73,
            "missing/out.csv cannot be written (No such file or directory)",
        ),
        (("curves", "--csv", "."), 73, ". is not a regular file. Try: another file"),
        (("curves", "--csv", "out.csv", "--where", "nosuch = 1"), 2, "SQL: no such column: nosuch"),
        (
            ("curves", "--csv", "out.csv", "--db", "missing.db"),
            66,
            "there is no database missing.db",
        ),
    ],
)
def test_what_is_wrong_is_a_line(
    arguments: tuple[str, ...], code: int, problem: str, dynabro: Dynabro, results: Path
) -> None:
    outcome = dynabro("export", *arguments)
    assert (outcome.code, outcome.out) == (code, "")
    (line,) = outcome.problems
    assert problem in line
    assert not Path("out.csv").exists()
