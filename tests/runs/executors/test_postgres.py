"""Two schedulers with one PostgreSQL database: each run is made once, and stored once, also while
the server is restarted.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from dynabro_cli.runs.store.open import engine as engine_module
from dynabro_cli.runs.store.open.engine import open_for_writing, snapshot
from dynabro_cli.runs.store.open.schema import Schema
from dynabro_cli.runs.store.write import row_digests
from dynabro_cli.runs.store.write.standing import read_standing
from tests.postgres import cut_connections, own_server, turn_taken
from tests.runs.store.made import read

ROOT = Path(__file__).parents[3]
SEEDS = 8


def two_schedulers(
    database: str, folder: Path, seeds: int, jobs: int = 1
) -> list[subprocess.Popen[str]]:
    """Start two programs that make the same runs; they begin together."""
    command = [
        sys.executable,
        str(ROOT / "tests/runs/executors/program.py"),
        database,
        str(jobs),
        str(seeds),
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "FAULTS": str(folder)}
    environment.pop("DYNABRO_BUSY_SECONDS", None)
    pipe = subprocess.PIPE
    with turn_taken(database, waiting=2):
        return [
            subprocess.Popen(
                command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True
            )
            for _ in range(2)
        ]


def compare(
    database: str, folder: Path, seeds: int, both: list[subprocess.Popen[str]]
) -> list[str]:
    """Check that each run was made once and stored once; return what the programs said on standard
    error.
    """
    answers = [program.communicate(timeout=200) for program in both]
    assert [program.returncode for program in both] == [0, 0], [
        (out[-500:], err[-2000:]) for out, err in answers
    ]
    ours, theirs = (out.splitlines()[-1].split() for out, _ in answers)
    assert len(ours) == len(theirs) == seeds
    assert all((one, other).count("finished") == 1 for one, other in zip(ours, theirs, strict=True))
    claimed = [
        line for line in (folder / "notes").read_text().splitlines() if line.startswith("claimed ")
    ]
    assert sorted(claimed) == sorted(f"claimed {seed}" for seed in range(seeds))
    assert read(database, "SELECT seed, status, rounds FROM runs ORDER BY seed") == [
        (seed, "finished", 20) for seed in range(seeds)
    ]
    assert read(database, "SELECT COUNT(*), COUNT(DISTINCT run_id) FROM rounds") == [
        (seeds * 20, seeds)
    ]
    return [err for _, err in answers]


@pytest.mark.thorough
def test_two_at_once_make_each_run_once(postgres: str, tmp_path: Path) -> None:
    compare(postgres, tmp_path, SEEDS, two_schedulers(postgres, tmp_path, SEEDS))


@pytest.mark.thorough
def test_restarts_of_the_server_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = 80
    monkeypatch.setenv("DYNABRO_STATE", str(tmp_path / "state"))
    with own_server() as server:
        outages = (
            lambda: server.restart("fast"),
            lambda: cut_connections(server.url, server.url),
            lambda: server.restart("immediate", pause=1.5),
        )
        both = two_schedulers(server.url, tmp_path, seeds, jobs=2)
        hit = 0
        while hit < 2 * len(outages) and all(program.poll() is None for program in both):
            time.sleep(0.5)
            if (tmp_path / "notes").exists() and (tmp_path / "notes").read_text().count(
                "claimed "
            ) > 5 * hit:
                outages[hit % len(outages)]()
                hit += 1
        told = compare(server.url, tmp_path, seeds, both)
        assert hit >= 3
        assert any(
            "cannot be reached; waiting for its server" in err and "is back after" in err
            for err in told
        ), told
        with snapshot(server.url) as connection:
            assert row_digests.digest_problems(connection) == {}


def test_an_outage_at_the_start_is_waited_for(
    postgres_with_tables: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state of the runs is read, and the database opened, though the server ends the first
    connection of each.
    """
    url, to_cut = postgres_with_tables, [True]
    real = engine_module.schema_of

    def cutting(connection: Connection) -> Schema:
        if to_cut:
            to_cut.pop()
            cut_connections(url)
        return real(connection)

    monkeypatch.setattr(engine_module, "schema_of", cutting)
    assert read_standing(url, "own", "none").end_of("k" * 64) is None
    assert not to_cut
    to_cut.append(True)
    with open_for_writing(url).connect() as connection:
        assert connection.execute(text("SELECT COUNT(*) FROM runs")).scalar_one() == 0
    assert not to_cut
