"""Files that something else has damaged: the database, and checkpoints."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from dynabro_cli.runs.store.write.side_files import MAGIC
from tests.faults.oracle import DYNABRO, MOMENTUM, Content, Place, check_whole, key_of, read, run
from tests.faults.test_kill import completed

PAGE = 4096


def truncate(path: Path, start: float) -> None:
    """Cut a file off."""
    os.truncate(path, int(path.stat().st_size * start) // PAGE * PAGE + PAGE // 2)


def overwrite(path: Path, start: float) -> None:
    """Write noise into a file."""
    with path.open("r+b") as file:
        file.seek(int(path.stat().st_size * start) // PAGE * PAGE)
        file.write(bytes(range(255, -1, -1)) * (4 * PAGE // 256))


@pytest.mark.parametrize(
    "damage", [pytest.param(how, marks=pytest.mark.slow) for how in (truncate, overwrite)]
)
def test_a_damaged_database_is_told_and_left_alone(
    damage: Any, clean: Content, place: Place
) -> None:
    completed(place, run(MOMENTUM))
    copy = place.folder / "copy.db"
    with closing(sqlite3.connect(place.db)) as connection:
        connection.execute("VACUUM INTO ?", (str(copy),))
    for start in (0, 0.5, 0.9) if damage is truncate else (0, PAGE / place.db.stat().st_size):
        shutil.copy(copy, place.db)
        damage(place.db, start)
        before = place.db.read_bytes()
        for words in (
            (("runs",), run(DYNABRO)) if start == 0.5 or damage is overwrite else (("runs",),)
        ):
            ended = place.do(*words)
            # `run` says first what it is about to make
            assert (ended.code, len(ended.err.splitlines())) == (65, 1 + (words[0] == "run")), (
                start,
                ended,
            )
            assert ended.err.splitlines()[-1].startswith("dynabro: ")
            assert place.db.read_bytes() == before
    shutil.copy(copy, place.db)
    completed(place, run(DYNABRO))
    check_whole(place, clean, [key_of(clean, cell) for cell in (MOMENTUM, DYNABRO)])


class Malicious:
    """An object that runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> Any:
        return os.system, (self._command,)


def damaged(path: Path, how: str, proof: Path) -> None:
    """Damage a checkpoint."""
    content = path.read_bytes()
    if how == "deleted":
        path.unlink()
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "overwritten":
        path.write_bytes(content[:1000] + b"noise" + content[1005:])
    elif how in ("malicious", "malicious and sealed"):
        file = io.BytesIO()
        torch.save({"made_by": Malicious(f"touch '{proof}'")}, file)
        data = file.getvalue()
        path.write_bytes(
            MAGIC + hashlib.sha256(data).digest() + data if how.endswith("sealed") else data
        )


@pytest.mark.parametrize(
    "how",
    [
        "malicious and sealed",
        *(
            pytest.param(how, marks=pytest.mark.slow)
            for how in ("deleted", "empty", "truncated", "overwritten", "malicious")
        ),
    ],
)
def test_a_damaged_checkpoint_is_not_gone_on_from(how: str, clean: Content, place: Place) -> None:
    ended = place.do(*run(DYNABRO), DYNABRO_FAILPOINT="after-commit:4=KILL")
    assert ended.code == -signal.SIGKILL, ended
    ((name,),) = read(place.db, "SELECT checkpoint FROM runs")
    (path,) = [path for path in place.checkpoints() if path.name == name]
    proof = place.folder / "proof"
    damaged(path, how, proof)
    completed(place, run(DYNABRO))
    assert not proof.exists()
    assert "resuming after round" not in place.logs()
    check_whole(place, clean, [key_of(clean, DYNABRO)])
    assert place.checkpoints() == []
