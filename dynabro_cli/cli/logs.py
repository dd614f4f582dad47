"""``dynabro logs``: what a run's log says, while it is written or afterwards."""

from __future__ import annotations

import codecs
import io
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from dynabro_cli.cli.output import Database
from dynabro_cli.cli.terminal import complain, is_terminal, show, write
from dynabro_cli.errors import BusyError, DisconnectedError, PreemptedError

if TYPE_CHECKING:
    from dynabro_cli.store.logs import Log

ENDED = "terminated; the run goes on if it was in progress"
LOOK_SECONDS = 0.5
"""Between two looks at a log that is followed."""


def logs(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's id, or the beginning of its key.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    tail: Annotated[int | None, typer.Option(min=0, metavar="N", help="Begin with the last N lines. [default: all]")] = None,
    db: Database = "results.db",
) -> None:
    """Print the log of a run: what happened to it when, and whatever its process printed.

    Ctrl-C ends --follow, and leaves the run alone.

    Example: dynabro logs 1 --tail 20
    """
    from dynabro_cli.store.logs import find_log
    from dynabro_cli.store.logs import follow as read

    log = find_log(db, run)
    try:
        _print(read(log, tail, lambda: follow and _in_progress(db, log)))
    except KeyboardInterrupt:
        if not follow:
            raise
    except PreemptedError:
        raise PreemptedError(ENDED) from None


def _in_progress(db: str, log: Log) -> bool:
    """Whether the log's run is in progress; if so, wait a moment, as more of the log is to come."""
    from dynabro_cli.store.logs import progress

    try:
        state = progress(db, log, patience=LOOK_SECONDS)
    except (BusyError, DisconnectedError):  # for now
        state = "running"
    if state == "dead":
        complain(f"run {log.run_id} has ended without a word; its process is gone, or has been silent for too long")
    if state == "running":
        time.sleep(LOOK_SECONDS)
    return state == "running"


def _print(blocks: Iterator[bytes]) -> None:
    """Print as it is; on a terminal without what would change the terminal."""
    if not is_terminal():
        for block in blocks:
            write(block)
        return
    # a bar that was drawn over and over, with carriage returns, becomes a line each time
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("backslashreplace"), translate=True)
    for block in blocks:
        show(decoder.decode(block), flush=True)
    show(decoder.decode(b"", final=True))
