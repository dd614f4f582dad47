"""``plots/restamp.py`` stores new digests of the code only if stored runs, made again, have the
same numbers.
"""

from __future__ import annotations

import runpy
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Dynabro

SCRIPT = Path(__file__).parents[2] / "plots" / "restamp.py"


def query(sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect("results.db")) as connection, connection:
        return connection.execute(sql).fetchall()


@pytest.mark.thorough
def test_digests_are_written_if_all_numbers_are_equal(
    dynabro: Dynabro, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        dynabro("run", "--model", "mlp:hidden=8", "--budget", "20", "--eval-every", "10").code == 0
    )
    digests = query("SELECT code_digests FROM runs")
    query("UPDATE runs SET code_digests = NULL")
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "results.db"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert query("SELECT code_digests FROM runs") == digests != [(None,)]
    assert "equal\n1 of 1 runs have the digests" in capsys.readouterr().out

    query("UPDATE runs SET code_digests = NULL")
    query("UPDATE evaluations SET test_loss = test_loss * 1.0000001 WHERE round > 0")
    with pytest.raises(SystemExit, match="1 runs have other numbers; no digest was changed"):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert query("SELECT code_digests FROM runs") == [(None,)]
    assert "other numbers\n" in capsys.readouterr().out
    query("UPDATE environments SET versions = json_remove(versions, '$.cpu_capability')")
    with pytest.raises(SystemExit, match="1 runs have other numbers; no digest was changed"):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert "other numbers (vector instructions: unknown then, " in capsys.readouterr().out
    query("UPDATE environments SET versions = json_set(versions, '$.cpu_capability', 'Z80')")
    with pytest.raises(
        SystemExit, match=r"no run was made again with .*, so no digest was changed"
    ):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "results.db", "--longest", "0"])
    with pytest.raises(
        SystemExit, match=r"no run was made again with .*, so no digest was changed"
    ):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert query("SELECT code_digests FROM runs") == [(None,)]
    monkeypatch.setattr(
        sys, "argv", [str(SCRIPT), "results.db", "--against", str(SCRIPT.parents[1])]
    )
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert query("SELECT code_digests FROM runs") == digests


@pytest.mark.thorough
def test_a_run_that_diverged_is_equal(
    dynabro: Dynabro, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its last loss is NaN, and NULL in the database."""
    assert (
        dynabro("run", "--model", "mlp:hidden=8", "--budget", "200", "--learning-rate", "1e9").code
        == 0
    )
    assert query("SELECT status, final_loss FROM runs") == [("diverged", None)]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "results.db"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert "equal\n1 of 1 runs have the digests" in capsys.readouterr().out
