"""Who is at work on a run: a name for every writer, heartbeats, and when a writer is presumed dead.

A writer's row says who it is (``owner``) and when it was last heard of: ``heartbeat_at`` by the database's clock, which may be
set, and ``heartbeat_clock`` by the monotonic clock of the writer's machine, which nobody sets. Every write asks for the own
name in the row, so that a writer that was presumed dead, and has been replaced, cannot write any more.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import hashlib
import os
import platform
import re
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, RowMapping, func, select, update

from dynabro_cli.errors import DynabroError
from dynabro_cli.settings import seconds_setting
from dynabro_cli.store.tables import runs, sweeps
from dynabro_cli.store.translation import translated_errors

HEARTBEATS_A_LEASE = 8
NOBODY = {"owner": None, "heartbeat_at": None, "heartbeat_clock": None}
"""The columns of a run that nobody is at work on."""
PID = re.compile(r"[0-9]{1,9}")


def lease_seconds() -> float:
    """For how long a writer may be silent, if it is stopped or cannot be seen from here: ``DYNABRO_LEASE_SECONDS``."""
    return seconds_setting("DYNABRO_LEASE_SECONDS")


def new_owner() -> str:
    """A name that no other writer has, here or elsewhere: ``machine:process:beginning of the process:random``."""
    process = _process(os.getpid())
    return f"{_machine()}:{os.getpid()}:{process.beginning if process else ''}:{secrets.token_hex(4)}"


@functools.cache
def _machine() -> str:
    """This machine since it was started, and the name space of its process numbers, as containers have their own."""
    parts = [platform.node()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


@functools.cache
def _clock() -> str | None:
    """This machine since it was started, and the name space of its clocks: all of its processes share one monotonic clock.

    It is the same in all containers of a machine. None where the system does not tell one start from another.
    """
    try:
        parts = [Path("/proc/sys/kernel/random/boot_id").read_text().strip()]
    except OSError:
        return None
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/time"))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


class _Process(NamedTuple):
    """A process of this machine.

    Attributes:
        beginning: When it began, in clock ticks since the machine was started, which tells it from a later one of its number;
            empty where nobody knows.
        stopped: True if a signal or a debugger has stopped it.
    """

    beginning: str
    stopped: bool


def _process(pid: int) -> _Process | None:
    """The process of a number; None if it has ended."""
    with contextlib.suppress(OSError, IndexError):
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state == "Z" else _Process(fields[18], state in "Tt")  # Z: it has ended, and is not waited for
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:  # it is another user's, and hidden
        pass
    return _Process("", stopped=False)


def presumed_dead(row: Mapping[str, Any] | RowMapping, now: dt.datetime) -> bool:
    """Return True if the writer of a row is gone, or is presumed to be.

    Of a writer that can be seen from here, the process decides: it is gone when it has ended, and alive while it runs, whatever
    any clock says. One that is stopped, or cannot be seen, is presumed dead when it is silent for longer than its lease.

    Args:
        row: The row of a run or a sweep, with ``owner``, ``heartbeat_at`` and ``heartbeat_clock``.
        now: The time by the database's clock, as ``database_time`` tells it.
    """
    machine, pid, beginning, _ = (str(row["owner"] or "") + ":::").split(":")[:4]
    if machine == _machine() and PID.fullmatch(pid):
        process = _process(int(pid))
        if process is None or (process.beginning and process.beginning != beginning):
            return True
        if process.beginning and not process.stopped:
            return False
    silent = silence(row, now)
    return silent is None or silent > lease_seconds()


def silence(row: Mapping[str, Any] | RowMapping, now: dt.datetime) -> float | None:
    """Seconds since the writer of a row was last heard of; None if it never was; arguments as those of ``presumed_dead``.

    They are measured by this machine's monotonic clock if the writer is on it. That clock stands still while the machine is
    suspended, as all of its writers do.
    """
    clock, _, moment = str(row["heartbeat_clock"] or "").partition(":")
    if clock == _clock():
        with contextlib.suppress(ValueError):
            return max(0.0, time.monotonic() - float(moment))
    return None if row["heartbeat_at"] is None else max(0.0, (now - row["heartbeat_at"]).total_seconds())


def sign_of_life(connection: Connection) -> dict[str, Any]:
    """The columns that say that a writer was heard of now."""
    clock = _clock()
    return {
        "heartbeat_at": database_time(connection),
        "heartbeat_clock": None if clock is None else f"{clock}:{time.monotonic():.3f}",
    }


def database_time(connection: Connection) -> dt.datetime:
    """The time in UTC, without a zone, by the clock that all writers of the database share."""
    if connection.dialect.name == "sqlite":  # all of its writers are on this machine
        return dt.datetime.now(dt.timezone.utc).replace(tzinfo=None)
    moment: dt.datetime = connection.execute(select(func.timezone("UTC", func.clock_timestamp()))).scalar_one()
    return moment


@contextlib.contextmanager
def heartbeats(engine: Engine, owners: Sequence[str]) -> Iterator[None]:
    """While entered, say that ``owners`` live, from a thread of its own, so that long work in this one is no silence.

    Raises:
        SpecError: ``DYNABRO_LEASE_SECONDS`` is not legal; nothing has begun.
    """
    stop, pause = threading.Event(), lease_seconds() / HEARTBEATS_A_LEASE
    arguments = (engine, tuple(owners), pause, stop)
    thread = threading.Thread(target=_beat, args=arguments, daemon=True, name="dynabro heartbeats")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(1)


def _beat(engine: Engine, owners: tuple[str, ...], pause: float, stop: threading.Event) -> None:
    """Write a sign of life every ``pause`` seconds."""
    while not stop.wait(pause):
        with contextlib.suppress(DynabroError), translated_errors(engine.url), engine.begin() as connection:
            now = sign_of_life(connection)
            for table in (runs, sweeps):
                mine = table.c.owner.in_(owners) & (table.c.status == "running")
                connection.execute(update(table).where(mine).values(now))
