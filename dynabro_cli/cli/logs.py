"""``dynabro logs``: print a run's log, while it is written or afterwards."""

from __future__ import annotations

import codecs
import io
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from dynabro_cli.cli.options import Database, Plugins
from dynabro_cli.cli.terminal import complain, is_terminal, show, write
from dynabro_cli.errors import BusyError, DisconnectedError, PreemptedError

if TYPE_CHECKING:
    from dynabro_cli.store.logs import Log

ENDED = "terminated; the run continues if it was in progress"
LOOK_SECONDS = 0.5
"""Pause between two reads of a log that is followed."""


def logs(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's id, or the beginning of its key.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the run has ended.")] = False,
    tail: Annotated[int | None, typer.Option(min=0, metavar="N", help="Start with the last N lines. [default: all]")] = None,
    db: Database = "results.db",
    plugin: Plugins = None,
) -> None:
    """Print the log of a run: its events with their times, and the output of its process.

    Ctrl-C ends --follow; the run continues.

    Example: dynabro logs 1 --tail 20
    """
    from dynabro_cli.store.logs import find_log
    from dynabro_cli.store.logs import follow as read

    try:
        log = find_log(db, run)
        _print(read(log, tail, lambda: follow and _in_progress(db, log)))
    except KeyboardInterrupt:
        if not follow:
            raise
    except PreemptedError:
        raise PreemptedError(ENDED) from None


def _in_progress(db: str, log: Log) -> bool:
    """Return True if the log's run is in progress, after a pause for more of the log."""
    from dynabro_cli.store.logs import progress

    try:
        state = progress(db, log, patience=LOOK_SECONDS)
    except (BusyError, DisconnectedError):  # the database cannot be read for now
        state = "running"
    if state == "dead":
        complain(f"run {log.run_id} stopped without reporting a result; its process is gone or unresponsive")
    if state == "running":
        time.sleep(LOOK_SECONDS)
    return state == "running"


def _print(blocks: Iterator[bytes]) -> None:
    """Print text unchanged; on a terminal, without sequences that would change the terminal."""
    if not is_terminal():
        for block in blocks:
            write(block)
        return
    # each state of a progress bar, drawn with carriage returns, becomes a line
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("backslashreplace"), translate=True)
    for block in blocks:
        show(decoder.decode(block), flush=True)
    show(decoder.decode(b"", final=True))
