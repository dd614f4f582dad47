"""``dynabro logs``: print a run's log, or where it is."""

from __future__ import annotations

import codecs
import io
import os
import platform
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from dynabro_cli.cli.options import Database, Plugins
from dynabro_cli.cli.terminal import is_terminal, say, show, write
from dynabro_cli.errors import NotFoundError


def logs(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run's id, or the beginning of its key.")
    ],
    tail: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Print the last N lines. [default: all]")
    ] = None,
    path: Annotated[
        bool, typer.Option("--path", help="Print the log's path, for other programs.")
    ] = False,
    db: Database = "results.db",
    plugin: Plugins = None,
) -> None:
    """Print the log of a run: its events with their times, and the output of its process.

    To follow a run in progress: tail -f "$(dynabro logs 1 --path)"

    Example: dynabro logs 1 --tail 20
    """
    file = _find(db, run)
    if path:
        say(str(file))
        return
    try:
        with file.open("rb") as lines:
            _print(lines if tail is None else deque(lines, tail))
    except OSError as error:
        raise NotFoundError(f"{file} cannot be read ({error.strerror})") from error


def _find(database: str, name: str) -> Path:
    """Return the log of the run whose id is ``name``, or whose key begins with it.

    Raises:
        NotFoundError: There is no such run, or its log cannot be read.
    """
    from dynabro_cli.store.open.engine import open_read_only
    from dynabro_cli.store.read.queries import find_run
    from dynabro_cli.store.side_files import SideFiles
    from dynabro_cli.store.tables import RERUN_SUFFIX

    engine = open_read_only(database)
    row = find_run(engine, name.removeprefix("runs/"))
    path = SideFiles.of(engine.url).log(row["run_key"].removesuffix(RERUN_SUFFIX))
    if not os.access(path, os.R_OK) or not path.is_file():
        what = "cannot be read" if path.exists() else "is not there"
        where = "here" if row["host"] == platform.node() else f"on {row['host']}"
        raise NotFoundError(
            f"run {row['id']} ran {where}, and its log {path} {what}. Try: DYNABRO_STATE=FOLDER"
        )
    return path


def _print(lines: Iterable[bytes]) -> None:
    """Print text unchanged; on a terminal, without sequences that would change the terminal."""
    if not is_terminal():
        for line in lines:
            write(line)
        return
    # each state of a progress bar, drawn with carriage returns, becomes a line
    decoder = io.IncrementalNewlineDecoder(
        codecs.getincrementaldecoder("utf-8")("backslashreplace"), translate=True
    )
    for line in lines:
        show(decoder.decode(line))
    show(decoder.decode(b"", final=True))
