"""Stop statements in progress: at Ctrl-C and SIGTERM, and after a time limit.

SQLite returns to Python when a statement ends, and Python calls signal handlers only then. So a thread reads the signals when
they arrive and stops the statements of all reading connections. The exception of the handler then replaces the error of the
statement. PostgreSQL's driver checks for signals while it waits.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dynabro_cli.errors import InterruptedRunError, PreemptedError

if TYPE_CHECKING:
    from sqlalchemy import Engine

STOP_SECONDS = 0.05
"""Pause between two attempts: a statement that starts at the same time as the first attempt does not notice it."""
HARD_SECONDS = 0.8
"""Time from a signal to the end of a command whose statement does not stop, as within one call of SQLite's LIKE."""
LATEST_SECONDS = 4.5
"""Time from a signal to the end of a command, whatever it is doing: native code may never return to Python."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)

_reading: dict[int, Any] = {}
"""Connections whose statements are stopped."""
_commands: list[object] = []
"""The command in progress, if any: what a signal ends is the command that was in progress when it arrived."""
_came: list[int] = []
_ends: list[socket.socket] = []


class TimeLimit:
    """A time limit that may be over."""

    def __init__(self) -> None:
        self.over = False


def stoppable(engine: Engine) -> None:
    """Stop the statements of an SQLite engine at Ctrl-C and SIGTERM, if Python's main thread connects."""
    from sqlalchemy import event

    event.listen(engine, "connect", lambda connection, _record: _watch(connection))
    event.listen(engine, "close", lambda connection, _record: _forget(connection))


@contextlib.contextmanager
def watched(connection: Any) -> Iterator[None]:
    """Within the context, stop the statements of an SQLite connection at Ctrl-C and SIGTERM; other connections stop by
    themselves.
    """
    if not isinstance(connection, sqlite3.Connection):
        yield
        return
    _watch(connection)
    try:
        yield
    finally:
        _forget(connection)


@contextlib.contextmanager
def within(seconds: float | None, connection: Any, limit: TimeLimit) -> Iterator[None]:
    """Within the context, stop the statements of a driver's connection when a time is over; None means no limit.

    A stopped statement raises the error of its driver; ``limit`` then says that the time is over.
    """
    if seconds is None:
        yield
        return
    done = threading.Event()

    def run() -> None:
        if done.wait(seconds):
            return
        limit.over = True
        while not done.is_set():
            stop(connection)
            done.wait(STOP_SECONDS)

    thread = threading.Thread(target=run, daemon=True, name="dynabro time limit")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def stop(connection: Any) -> None:
    """Stop the current statement of a driver's connection, if any; a closed connection has none."""
    with contextlib.suppress(Exception):
        if isinstance(connection, sqlite3.Connection):
            connection.interrupt()
        else:
            connection.cancel()


@contextlib.contextmanager
def ending_the_process() -> Iterator[None]:
    """Within the context, end the process if a statement does not stop within ``HARD_SECONDS`` after a signal.

    Everything else has ``LATEST_SECONDS``. This is for a command line: a reading connection loses nothing, and a writing one
    may be killed at any time. The signal replaces an error that it causes: SQLite drops exceptions of a handler within its
    authorizer and reports that the statement is not allowed.

    Raises:
        KeyboardInterrupt: In place of another error, after Ctrl-C.
        PreemptedError: In place of another error, after SIGTERM.
    """
    _came.clear()
    command = object()
    _commands.append(command)
    if not _ends and threading.current_thread() is threading.main_thread():
        _listen()
    try:
        yield
    except (PreemptedError, InterruptedRunError):
        raise
    except Exception:
        number = _signal_that_came()
        if number == signal.SIGINT:
            raise KeyboardInterrupt from None
        if number == signal.SIGTERM:
            raise PreemptedError("terminated") from None
        raise
    finally:
        _commands.remove(command)


def _signal_that_came() -> int | None:
    """Return the first Ctrl-C or SIGTERM, if any."""
    waiting = b""
    with contextlib.suppress(OSError):
        for end in _ends:
            waiting = end.recv(64, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    return next((one for one in (*_came, *waiting) if one in SIGNALS), None)


def _watch(connection: Any) -> None:
    if threading.current_thread() is not threading.main_thread():
        return  # only the main thread gets signals, and it does not execute this statement
    if not _ends:
        _listen()
    _reading[id(connection)] = connection


def _forget(connection: Any) -> None:
    _reading.pop(id(connection), None)


def _listen() -> None:
    """Let Python write signals to a socket when they arrive, and a thread read it; unless other code has set this up."""
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    if before != -1:
        signal.set_wakeup_fd(before)
        reading.close()
        writing.close()
        return
    _ends.append(reading)
    threading.Thread(target=_stop_at_signals, args=(reading, writing), daemon=True, name="dynabro statements").start()


def _stop_at_signals(reading: socket.socket, _writing: socket.socket) -> None:
    """Stop the statements of all connections at each signal, until they are closed or the command has ended."""
    while came := reading.recv(64, socket.MSG_PEEK):
        _came.extend(came)  # before it is removed from the socket, so that one of the two always has it
        reading.recv(len(came))
        number = next((one for one in came if one in SIGNALS), None)
        if number is None:
            continue
        began, commands = time.monotonic(), list(_commands)
        while _reading and commands == _commands and time.monotonic() < began + HARD_SECONDS:
            for connection in list(_reading.values()):
                stop(connection)
            time.sleep(STOP_SECONDS)
        while not _reading and commands and commands == _commands and time.monotonic() < began + LATEST_SECONDS:
            time.sleep(STOP_SECONDS)
        if commands and commands == _commands:
            _end(number)


def _end(number: int) -> None:
    """End this process, whatever it is doing."""
    terminated = number == signal.SIGTERM
    code = PreemptedError.exit_code if terminated else InterruptedRunError.exit_code
    with contextlib.suppress(OSError):
        os.write(2, b"dynabro: terminated\n" if terminated else b"dynabro: interrupted\n")
    os._exit(code)
