"""Two commands that see neither each other's processes nor ``/proc``: one makes the run, the other
waits for it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import empty_database
from tests.runs.store.made import read

SWEEP = """name: long
base: {task: quadratic, method: sgd, aggregator: mean, workers: 3, byzantine: 0, budget: 20000,
  eval_every: 10000}
"""
COMMAND = "from dynabro_cli.cli.app import main; main()"
REPLACED = f"""
import os
from dynabro_cli.runs.store import ownership
ownership._boot = lambda: None
known = ownership._process
ownership._process = lambda pid: known(pid) if pid == os.getpid() else None
{COMMAND}
"""
HIDDEN = 'mount -t tmpfs none /proc && for i in $(seq $0); do /bin/true; done && "$@"; exit $?'
"""A shell of a new name space. Its number of processes so far makes the number of the command."""


def programs(kind: str) -> list[list[str]]:
    """The beginnings of two commands that do not see each other."""
    if kind == "replaced":
        return [[sys.executable, "-c", REPLACED]] * 2
    unshare = ["unshare", "--pid", "--mount", "--fork", "--kill-child", "sh", "-c", HIDDEN]
    if subprocess.run([*unshare, "1", "true"], capture_output=True, check=False).returncode:
        pytest.skip("name spaces are not allowed here")
    return [[*unshare, str(before), sys.executable, "-c", COMMAND] for before in (300, 1)]


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "results.db")
    else:
        with empty_database() as url:
            yield url


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["name spaces", "replaced"])
def test_of_two_commands_that_do_not_see_each_other_one_waits(
    kind: str, database: str, tmp_path: Path
) -> None:
    (tmp_path / "long.yaml").write_text(SWEEP)
    words = ["sweep", "long.yaml", "--jobs", "1", "--db", database]
    processes: list[subprocess.Popen[str]] = []
    owners: set[str] = set()

    def owner() -> str | None:
        try:
            ((owner, rounds),) = read(database, "SELECT owner, rounds FROM runs")
        except Exception:  # there is no table, or no row yet
            return None
        owners.update([owner] if owner else [])
        return owner if rounds else None

    for program in programs(kind):
        command = [*program, *words]
        processes.append(subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True))
        while owner() is None and processes[0].poll() is None:
            time.sleep(0.1)
    while len(owners) == 1 and None in [process.poll() for process in processes]:
        owner()
        time.sleep(0.05)
    if len(owners) > 1:  # they would take the run from each other for ever
        for process in processes:
            process.kill()
    said = [process.communicate()[1] for process in processes]
    assert len(owners) == 1, owners
    assert [process.returncode for process in processes] == [0, 0], said
    assert "waiting for 1 run in progress elsewhere" in said[1], said
    assert read(database, "SELECT status, COUNT(*) FROM runs GROUP BY status") == [("finished", 1)]
    assert read(database, "SELECT COUNT(*), COUNT(DISTINCT round) FROM rounds") == [
        (20_000, 20_000)
    ]
