"""Read the logs of runs, while they are written or afterwards."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from sqlalchemy import select

from dynabro_cli.errors import NotFoundError
from dynabro_cli.store.claims import RERUN_SUFFIX
from dynabro_cli.store.engine import open_read_only
from dynabro_cli.store.ownership import database_time, presumed_dead
from dynabro_cli.store.queries import find_run
from dynabro_cli.store.side_files import SideFiles
from dynabro_cli.store.tables import runs
from dynabro_cli.store.translation import translated_errors

BLOCK = 1 << 16

LogState = Literal["running", "ended", "dead"]


@dataclass(frozen=True)
class Log:
    """The log of a stored run: its file, and the run's id and key."""

    run_id: int
    run_key: str
    path: Path


def find_log(database: str, name: str) -> Log:
    """Return the log of the run whose id is ``name``, or whose key begins with it.

    Raises:
        NotFoundError: There is no such run, or its log cannot be read.
        DynabroError: The database cannot be read.
    """
    engine = open_read_only(database)
    row = find_run(engine, name.removeprefix("runs/"))
    path = SideFiles.of(engine.url).log(row["run_key"].removesuffix(RERUN_SUFFIX))
    if not os.access(path, os.R_OK) or not path.is_file():
        what = "cannot be read" if path.exists() else "is not there"
        where = "here" if row["host"] == platform.node() else f"on {row['host']}"
        raise NotFoundError(f"run {row['id']} ran {where}, and its log {path} {what}. Try: DYNABRO_STATE=FOLDER")
    return Log(row["id"], row["run_key"], path)


def progress(database: str, log: Log, *, patience: float | None = None) -> LogState:
    """Return the progress of a log's run: in progress, ended, or left behind by a process that is presumed dead.

    Raises:
        DynabroError: The database cannot be read.
    """
    engine = open_read_only(database, patience=patience)
    with translated_errors(engine.url), engine.connect() as connection:
        row = connection.execute(select(runs).where(runs.c.run_key == log.run_key)).mappings().first()
        if row is None or row["status"] != "running":
            return "ended"
        return "dead" if presumed_dead(row, database_time(connection)) else "running"


def follow(log: Log, tail: int | None, again: Callable[[], bool]) -> Iterator[bytes]:
    """Yield the content of a log, then what is appended to it, until ``again`` returns False.

    Args:
        log: The log.
        tail: Number of last lines to start with; None for all lines.
        again: Called at each end of the file; returns True to look again, and may wait before it returns. Text that was
            appended before it returned False is still read.

    Raises:
        NotFoundError: The file cannot be read.
    """
    try:
        with log.path.open("rb") as file:
            file.seek(0 if tail is None else _beginning(file, tail))
            last = False
            while True:
                while block := file.read(BLOCK):
                    yield block
                if last:
                    return
                last = not again()
    except OSError as error:
        raise NotFoundError(f"{log.path} cannot be read ({error.strerror})") from error


def _beginning(file: BinaryIO, lines: int) -> int:
    """Return where the last ``lines`` lines begin; the last of them may be incomplete."""
    place = end = file.seek(0, os.SEEK_END)
    if lines == 0:
        return end
    left = lines
    while place > 0:
        size = min(BLOCK, place)
        place = file.seek(place - size)
        block = file.read(size)
        if place + size == end and block.endswith(b"\n"):
            left += 1
        while (found := block.rfind(b"\n")) >= 0:
            left -= 1
            if left == 0:
                return place + found + 1
            block = block[:found]
    return 0
