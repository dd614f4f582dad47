"""``dynabro sweep --shard``: what is planned, what is said, and that the merged parts are the
whole.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dynabro_cli.experiment.resolve import Run
from dynabro_cli.runs.executors._api import Options
from tests.cli.conftest import Dynabro
from tests.cli.test_app import call, environment
from tests.cli.test_sweep import asked, small
from tests.runs.store.made import read

__all__ = ["asked", "small"]

RECIPES = (Path(__file__).parents[2] / "sweeps" / "README.md").read_text(encoding="utf-8")
OWN = {
    "id",
    "started_at",
    "finished_at",
    "heartbeat_at",
    "heartbeat_clock",
    "wall_seconds",
    "pid",
    "owner",
    "host",
    "rows_digest",
}
"""Columns of runs that differ between two executions of the same run."""


def planned(dynabro: Dynabro, *arguments: str) -> dict[str, Any]:
    outcome = dynabro("sweep", "small.yaml", "--dry-run", "--json", *arguments)
    assert outcome.code == 0, outcome.err
    found: dict[str, Any] = json.loads(outcome.out)
    return found


def test_a_dry_run_counts_the_runs_of_the_shard(dynabro: Dynabro, small: str) -> None:
    parts = [planned(dynabro, "--shard", f"{number}/3") for number in (1, 2, 3)]
    assert [part["shard"] for part in parts] == ["1/3", "2/3", "3/3"]
    assert [part["whole"] for part in parts] == [4, 4, 4]
    assert sum(part["to_do"] for part in parts) == sum(part["planned"] for part in parts) == 4
    assert sum(part["bytes"] for part in parts) == pytest.approx(planned(dynabro)["bytes"], abs=3)
    lines = dynabro("sweep", small, "--dry-run", "--shard", "1/3").out.splitlines()
    assert lines[1] == f"4 runs planned, {parts[0]['planned']} of them in shard 1/3"
    assert "shard" not in planned(dynabro)


def test_the_executor_gets_the_runs_of_the_shard(
    dynabro: Dynabro, small: str, asked: list[tuple[Sequence[Run], Options]]
) -> None:
    for number in (1, 2):
        outcome = dynabro("sweep", small, "--shard", f"{number}/2")
        assert outcome.out.startswith(f"small {number}/2: "), outcome.err
    assert dynabro("sweep", small).code == 0
    parts, whole = (
        [[run.key for run in runs] for runs, _ in asked[:-1]],
        [run.key for run in asked[-1][0]],
    )
    assert sorted(key for part in parts for key in part) == sorted(whole)
    assert [(options.sweep, options.sweep_row) for _, options in asked[-2:]] == [
        ("small", "small 2/2"),
        ("small", "small"),
    ]


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_a_shard_that_does_not_exist(
    dry: tuple[str, ...], dynabro: Dynabro, small: str, folder: Path
) -> None:
    outcome = dynabro("sweep", small, "--shard", "5/4", *dry)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.problems == [
        "shard=5/4: it must be NUMBER/COUNT, counted from 1. Try: --shard 1/4"
    ]
    assert not (folder / "results.db").exists()


def test_an_empty_shard_does_nothing(dynabro: Dynabro, small: str, folder: Path) -> None:
    empty = next(n for n in range(1, 9) if not planned(dynabro, "--shard", f"{n}/8")["planned"])
    outcome = dynabro("sweep", small, "--shard", f"{empty}/8", "--rerun")
    assert (outcome.code, outcome.err) == (0, "")
    assert re.fullmatch(
        rf"small {empty}/8: 0 runs in results\.db: nothing to do; took \d.*s\n", outcome.out
    )
    assert not (folder / "results.db").exists()


def rows(database: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Everything that a sweep stores, without numbers of runs, clocks and processes."""
    with closing(sqlite3.connect(database)) as connection:
        columns = [
            row[1] for row in connection.execute("PRAGMA table_info(runs)") if row[1] not in OWN
        ]
    found = {"runs": read(database, f"SELECT {', '.join(columns)} FROM runs ORDER BY run_key")}
    for table, order in {"rounds": "round", "evaluations": "round", "recovery": "dip"}.items():
        sql = (
            f"SELECT run_key, t.* FROM {table} AS t JOIN runs ON runs.id = run_id ORDER BY "
            f"run_key, t.{order}"
        )
        found[table] = [(row[0], *row[2:]) for row in read(database, sql)]
    return found


@pytest.mark.slow
def test_four_shards_merged_are_the_whole(small: str, folder: Path) -> None:
    """Four real processes at once, each with a separate database."""
    command = [
        sys.executable,
        "-m",
        "dynabro_cli",
        "sweep",
        small,
        "--set",
        "seeds=0..4",
        "--jobs",
        "1",
        "--threads",
        "1",
    ]
    parts = [
        subprocess.Popen(
            [*command, "--quiet", "--shard", f"{n}/4", "--db", f"part-{n}.db"],
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
        )
        for n in range(1, 5)
    ]
    told = [part.communicate(timeout=200)[0].decode() for part in parts]
    assert [part.returncode for part in parts] == [0, 0, 0, 0]
    counts = [int(re.match(r"small \d/4: (\d+) runs", text)[1]) for text in told]  # type: ignore[index]
    assert sum(counts) == 10
    files = sorted(folder.glob("part-*.db"))
    assert len(files) == sum(count > 0 for count in counts) > 1
    for part in files:
        done = call(
            "db", "merge", part.name, "--db", "merged.db", folder=folder, capture_output=True
        )
        assert done.returncode == 0, done.stderr
    assert (
        subprocess.run(
            [*command, "--quiet", "--db", "whole.db"], cwd=folder, env=environment(), check=False
        ).returncode
        == 0
    )
    merged, whole = rows(folder / "merged.db"), rows(folder / "whole.db")
    assert merged == whole
    assert [len(whole[name]) for name in ("runs", "rounds")] == [10, 200]
    done = call("db", "check", "--db", "merged.db", folder=folder, capture_output=True)
    assert done.returncode == 0, done.stdout
    done = call(
        "sweep",
        small,
        "--set",
        "seeds=0..4",
        "--dry-run",
        "--db",
        "merged.db",
        folder=folder,
        capture_output=True,
    )
    assert "10 stored in merged.db, 0 to do" in done.stdout
    done = call("status", "--db", files[0].name, folder=folder, capture_output=True)
    first = files[0].name[5]
    assert f"last sweep: small {first}/4, finished " in done.stdout
    assert f"{counts[int(first) - 1]} runs: {counts[int(first) - 1]} finished" in done.stdout
    assert read(files[0], "SELECT DISTINCT sweep FROM runs") == [("small",)]


@pytest.mark.thorough
def test_the_script_of_the_slurm_array(small: str, folder: Path) -> None:
    """The recipe of sweeps/README.md, run by bash in place of Slurm; a second job finds everything
    stored.
    """
    script = next(
        text
        for text in re.findall(r"^```bash\n(.*?)^```", RECIPES, re.DOTALL | re.MULTILINE)
        if "--array" in text
    )
    for old, new in {
        "source .venv/bin/activate\n": "",
        "mnist-sf-cwtm": f"{small} --jobs 1",
    }.items():
        assert old in script
        script = script.replace(old, new)
    (folder / "bin").mkdir()
    program = folder / "bin" / "dynabro"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m dynabro_cli "$@"\n')
    program.chmod(0o755)
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    for stored in (False, True):
        for task in ("1", "2"):
            slurm = {
                "SLURM_ARRAY_TASK_ID": task,
                "SLURM_ARRAY_TASK_COUNT": "2",
                "SLURM_ARRAY_JOB_ID": "7",
            }
            variables = {**environment(), **slurm, "PATH": path, "TMPDIR": str(folder)}
            done = subprocess.run(
                ["bash"],
                input=script,
                cwd=folder,
                env=variables,
                text=True,
                capture_output=True,
                check=False,
                timeout=200,
            )
            assert done.returncode == 0, done.stderr
            assert ("stored before" in done.stdout) == stored, done.stdout
    parts = sorted(path.name for path in (folder / "parts").glob("*.db"))
    assert parts == ["part-1.db", "part-2.db"]
    for part in parts:
        assert (
            call(
                "db", "merge", f"parts/{part}", "--db", "all.db", folder=folder, capture_output=True
            ).returncode
            == 0
        )
    assert read(folder / "all.db", "SELECT status, COUNT(*) FROM runs GROUP BY status") == [
        ("finished", 4)
    ]
    assert not list(folder.glob("tmp*"))
