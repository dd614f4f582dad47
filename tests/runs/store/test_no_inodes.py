"""A disk on which no further file can be made: SQLite only says that it cannot open a file."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from dynabro_cli.core.errors import CannotWriteError, StorageError
from dynabro_cli.runs.store.care.outputs import CSV, Output
from dynabro_cli.runs.store.open import translation
from dynabro_cli.runs.store.open.translation import translate

ROOT = Path(__file__).parents[3]
ON_A_SMALL_DISK = """
mount -t tmpfs -o size=64m,nr_inodes=40 none "$1" && cd "$1" || exit 200
"$2" -m dynabro_cli $RUN > /dev/null && rm -rf results.db.d
i=0; while touch f$i 2> /dev/null; do i=$((i + 1)); done
"$2" -m dynabro_cli $3
"""
"""Fills a file system with empty files beside a database, then calls the command."""
RUN = "run --task quadratic --budget 20 --workers 5 --byzantine 1 --method sgd --eval-every 10"


def cannot_open() -> sqlite3.OperationalError:
    return sqlite3.OperationalError("unable to open database file")


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, StorageError),
        (errno.EDQUOT, StorageError),
        (errno.EACCES, CannotWriteError),
        (errno.EROFS, CannotWriteError),
        (None, CannotWriteError),
    ],
)
def test_the_system_says_why_a_file_cannot_be_opened(
    number: int | None, kind: type[Exception], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def temporary(dir: Path) -> Any:  # noqa: A002
        assert dir == tmp_path
        if number is not None:
            raise OSError(number, os.strerror(number))
        return open(os.devnull, "rb")

    monkeypatch.setattr(translation.tempfile, "TemporaryFile", temporary)
    wrapped = OperationalError("SELECT 1", None, cannot_open())
    for error in (cannot_open(), wrapped):
        translated = translate(error, str(tmp_path / "results.db"))
        assert type(translated) is kind
        assert (number is None) or (os.strerror(number) in str(translated)) is (
            kind is StorageError
        )
    with pytest.raises(kind), Output(tmp_path / "x.csv", CSV, "results.db").errors():
        raise cannot_open()


@pytest.mark.parametrize(
    "command",
    [
        f"{RUN} --seed 1",
        "db backup copy.db",
        "db thin thin.db --every 2",
        "db check",
        "export rounds out.csv",
        "runs",
        f"{RUN} --db new.db",
    ],
)
@pytest.mark.thorough
def test_a_full_table_of_files_is_a_full_disk(command: str, tmp_path: Path) -> None:
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("unshare is not allowed")
    script = ["sh", "-c", ON_A_SMALL_DISK, "sh", str(tmp_path), sys.executable, command]
    environment = os.environ | {"RUN": RUN, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*unshare, *script], capture_output=True, text=True, env=environment)
    if done.returncode == 200:
        pytest.skip("mount is not allowed")
    assert done.returncode == 74, done.stderr
    (line,) = done.stderr.splitlines()[-1:]
    assert line.startswith("dynabro: ")
    assert "disk is full, or has no inode (No space left on device)" in line
    assert "Traceback" not in done.stderr
