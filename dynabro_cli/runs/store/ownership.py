"""Ownership of runs: a name for every writer, heartbeats, and when a writer is presumed dead.

A writer's row has its name (``owner``) and its last heartbeat: ``heartbeat_at`` by the database's
clock, which may be set, and ``heartbeat_clock`` by the monotonic clock of the writer's machine,
which nobody sets. Every write checks for the writer's own name in the row. So a writer that was
presumed dead and has been replaced can no longer write.
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

from dynabro_cli.core.errors import DynabroError
from dynabro_cli.core.machine.macos import system_value
from dynabro_cli.core.machine.settings import seconds_setting
from dynabro_cli.runs.store.open.translation import translated_errors
from dynabro_cli.runs.store.tables import runs, sweeps

HEARTBEATS_A_LEASE = 8
NOBODY = {"owner": None, "heartbeat_at": None, "heartbeat_clock": None}
"""Columns of a run without an owner."""
PID = re.compile(r"[0-9]{1,9}")


def lease_seconds() -> float:
    """Return the lease: the seconds without a heartbeat after which a stopped or remote writer is
    presumed dead (``DYNABRO_LEASE_SECONDS``).
    """
    return seconds_setting("DYNABRO_LEASE_SECONDS")


def new_owner() -> str:
    """Return a name that no other writer has, here or elsewhere: ``machine:process:start of the
    process:random``.
    """
    process = _process(os.getpid())
    return (
        f"{_machine()}:{os.getpid()}:{process.beginning if process else ''}:{secrets.token_hex(4)}"
    )


@functools.cache
def _machine() -> str:
    """Return an identifier of this machine since its start, and of its name space of process
    numbers (one per container).

    If the system does not identify both, each process gets a random name. So no process of another
    machine is judged by process numbers of this one, and only the lease counts.
    """
    boot, numbers = _boot(), ""
    try:
        if platform.system() == "Linux":
            numbers = os.readlink("/proc/self/ns/pid")
            # a sandbox may show the /proc of another name space, whose numbers mean other processes
            if os.readlink("/proc/self") != str(os.getpid()):
                boot = None
    except OSError:
        boot = None
    if boot is None:
        return secrets.token_hex(6)
    parts = (platform.node(), boot, numbers)
    return hashlib.sha256("\n".join(filter(None, parts)).encode()).hexdigest()[:12]


def _boot() -> str | None:
    """Return an identifier of this machine since its start; None if the system has none."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return system_value("kern.bootsessionuuid").rstrip(b"\0").decode() or None


@functools.cache
def _clock() -> str | None:
    """Return an identifier of this machine since its start, and of the name space of its clocks.

    All processes of a machine share one monotonic clock, in all containers. None if the system does
    not identify a start.
    """
    parts = [_boot()]
    if parts[0] is None:
        return None
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/time"))
    return hashlib.sha256("\n".join(filter(None, parts)).encode()).hexdigest()[:12]


class _Process(NamedTuple):
    """A process of this machine.

    Attributes:
        beginning: Start time in clock ticks since the machine was started, which distinguishes
            processes with the same number; empty if unknown.
        stopped: True if a signal or a debugger has stopped it.
    """

    beginning: str
    stopped: bool


def _process(pid: int) -> _Process | None:
    """Return the process with a number; None if it has ended."""
    with contextlib.suppress(OSError, IndexError):
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        # Z: ended, and its parent has not waited for it
        return None if state == "Z" else _Process(fields[18], state in "Tt")
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:  # the process is another user's and hidden
        pass
    return _Process("", stopped=False)


def presumed_dead(row: Mapping[str, Any] | RowMapping, now: dt.datetime) -> bool:
    """Return True if the writer of a row is dead, or presumed dead.

    A writer that can be seen from here is dead when its process has ended, and alive while it runs;
    clocks do not matter. A writer that is stopped, or cannot be seen, is presumed dead when it is
    silent for longer than its lease.

    Args:
        row: The row of a run or a sweep, with ``owner``, ``heartbeat_at`` and ``heartbeat_clock``.
        now: The time by the database's clock, as ``database_time`` returns it.
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
    """Return the seconds since the last heartbeat of a row's writer; None without one; arguments as
    in ``presumed_dead``.

    They are measured by this machine's monotonic clock if the writer is on this machine. That clock
    stands still while the machine is suspended, as all its writers do.
    """
    clock, _, moment = str(row["heartbeat_clock"] or "").partition(":")
    if clock == _clock():
        with contextlib.suppress(ValueError):
            return max(0.0, time.monotonic() - float(moment))
    return (
        None
        if row["heartbeat_at"] is None
        else max(0.0, (now - row["heartbeat_at"]).total_seconds())
    )


def sign_of_life(connection: Connection) -> dict[str, Any]:
    """Return the columns of a heartbeat now."""
    clock = _clock()
    return {
        "heartbeat_at": database_time(connection),
        "heartbeat_clock": None if clock is None else f"{clock}:{time.monotonic():.3f}",
    }


def database_time(connection: Connection) -> dt.datetime:
    """Return the time in UTC, without a time zone, by the clock that all writers of the database
    share.
    """
    if connection.dialect.name == "sqlite":  # all writers of an SQLite file are on this machine
        return dt.datetime.now(dt.UTC).replace(tzinfo=None)
    moment: dt.datetime = connection.execute(
        select(func.timezone("UTC", func.clock_timestamp()))
    ).scalar_one()
    return moment


@contextlib.contextmanager
def heartbeats(engine: Engine, owners: Sequence[str]) -> Iterator[None]:
    """Write heartbeats for ``owners`` from a thread, within the context, so that long work does not
    look like a death.

    Raises:
        SpecError: ``DYNABRO_LEASE_SECONDS`` is not legal; nothing has started.
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
    """Write a heartbeat every ``pause`` seconds."""
    while not stop.wait(pause):
        with (
            contextlib.suppress(DynabroError),
            translated_errors(engine.url),
            engine.begin() as connection,
        ):
            now = sign_of_life(connection)
            for table in (runs, sweeps):
                mine = table.c.owner.in_(owners) & (table.c.status == "running")
                connection.execute(update(table).where(mine).values(now))
