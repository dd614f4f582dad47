"""``dynabro diff``: in what two stored runs differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dynabro_cli import RunSpec, simulate
from dynabro_cli.core.registration import digests
from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.write.recorder import Recorder
from tests.cli.conftest import Dynabro
from tests.runs.store.made import change, read

DIGITS: dict[str, Any] = {
    "task": "digits",
    "model": "logistic",
    "budget": 20,
    "eval_every": 10,
    "workers": 5,
    "byzantine": 1,
}


def stored(path: Path, *specs: dict[str, Any]) -> None:
    recorder = Recorder(open_for_writing(str(path)))
    for spec in specs:
        for event in simulate(RunSpec(**DIGITS | spec), device="cpu"):
            recorder.record(event)


def test_what_differs_is_shown_and_nothing_else(dynabro: Dynabro, folder: Path) -> None:
    stored(
        folder / "results.db",
        {"method": "momentum:beta=0.9"},
        {"method": "momentum:beta=0.8", "aggregator": "nnm+cwtm"},
    )
    found = {
        (row["part"], row["name"]): (row["a"], row["b"])
        for row in json.loads(dynabro("diff", "1", "2", "--json").out)
    }
    fields = {name: values for (part, name), values in found.items() if part == "fields"}
    assert fields.pop("method.beta") == (0.9, 0.8)
    assert fields.pop("pre_aggregators.1") == (None, "nnm")
    assert set(fields) <= {"pre_aggregators.1.f"}
    assert {name for part, name in found if part == "code"} == {"pre_aggregators/nnm"}
    assert ("curves", "gradient_norm: first at budget 1") in found  # 0.1 g and 0.2 g
    assert ("curves", "test_accuracy: first at budget 0") not in found  # the same model
    outcome = dynabro("diff", "1", "2")
    assert (outcome.code, outcome.err.splitlines()[-1]) == (0, "equal: versions, machine")
    assert "method.beta" in outcome.out


def test_values_that_a_table_would_round_are_written_in_full(
    dynabro: Dynabro, folder: Path
) -> None:
    stored(folder / "results.db", {"seed": 1}, {"seed": 2})
    for table in ("evaluations", "rounds"):
        change(folder / "results.db", f"DELETE FROM {table} WHERE run_id = 2")
    copied = (
        "SELECT 2, round, budget, samples, test_accuracy, 1.00000001 * test_loss FROM evaluations"
    )
    change(
        folder / "results.db",
        "INSERT INTO evaluations (run_id, round, budget, samples, test_accuracy, test_loss) "
        f"{copied}",
    )
    out = dynabro("diff", "1", "2").out
    (line,) = [line for line in out.splitlines() if "test_loss: first" in line]
    first, second = map(float, line.split()[-2:])
    assert second == first * 1.00000001
    assert "test_accuracy" not in out
    assert "gradient_norm: values" in out


def test_the_same_run_and_no_run(dynabro: Dynabro, folder: Path) -> None:
    stored(folder / "results.db", {})
    assert dynabro("diff", "1", "1").out == "no difference in any part\n"
    assert json.loads(dynabro("diff", "1", "1", "--json").out) == []
    outcome = dynabro("diff", "1", "7")
    assert (outcome.code, outcome.problems[0][:21]) == (66, "there is no run '7'. ")


def test_vector_instructions_differ_or_are_unknown(dynabro: Dynabro, folder: Path) -> None:
    stored(folder / "results.db", {"seed": 1})
    stored(folder / "results.db", {"seed": 1, "budget": 10})
    change(
        folder / "results.db",
        "INSERT INTO environments (id, versions) SELECT 'other', "
        "json_set(versions, '$.cpu_capability', 'Z80', '$.cpu', 'Z80 B') FROM environments",
    )
    change(folder / "results.db", "UPDATE runs SET environment_id = 'other' WHERE id = 2")
    found = json.loads(dynabro("diff", "1", "2", "--json").out)
    ((cpu, name), (capability, other)) = [
        (row["name"], row["b"]) for row in found if row["part"] == "versions"
    ]
    assert (cpu, name, capability, other) == ("cpu", "Z80 B", "cpu_capability", "Z80")
    change(
        folder / "results.db",
        "UPDATE environments SET versions = "
        "json_remove(versions, '$.cpu_capability', '$.cpu') WHERE id = 'other'",
    )
    found = json.loads(dynabro("diff", "1", "2", "--json").out)
    assert "versions" not in {row["part"] for row in found}
    assert (
        "cpu_capability: not stored for both runs; the vector instructions may differ"
        in dynabro("diff", "1", "2").err.splitlines()
    )


def test_code_that_gives_the_same_numbers_does_not_differ(
    dynabro: Dynabro, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(folder / "results.db", {"seed": 1}, {"seed": 2})
    table = {
        name: [digest, "1" * digests.DIGITS]
        for name, digest in json.loads(
            read(folder / "results.db", "SELECT code_digests FROM runs WHERE id = 1")[0][0]
        ).items()
        if not name.startswith(digests.DATA)
    }
    monkeypatch.setattr(digests, "_same_code", lambda: table)
    for digit, parts in (("1", set()), ("2", {"aggregators/cwtm"})):
        text = json.dumps({"aggregators/cwtm": digit * digests.DIGITS})
        change(
            folder / "results.db",
            "UPDATE runs SET code_digests = json_patch(code_digests, ?) WHERE id = 2",
            text,
        )
        rows = json.loads(dynabro("diff", "1", "2", "--json").out)
        assert {row["name"] for row in rows if row["part"] == "code"} == parts
