"""Output to the terminal: text from a database or a file may contain anything and is printed with
escapes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import sys
import traceback
import warnings
from types import TracebackType
from typing import IO, Any

from dynabro_cli.core.errors import OutageWarning, StorageError

STREAMS = (("stdin", "r", os.O_RDONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY))
"""The standard streams, Python's mode for each, and the mode of ``/dev/null`` in its place.

Output to a closed standard output is an error, because the output is lost.
"""

FULL = (errno.ENOSPC, errno.EDQUOT)
COMMAND = re.compile(
    r"\bdynabro (db \w+|verify "
    r"\w+|demo|runs?|sweep|select|status|logs|plot|compare|report|browse|show|query|export|search|tag)"
    r"\b(?!.*--db)(?:,(?=\S)|(?<=[ \"])'[^']*'|\"[^\"]*\"|(?! or dynabro)[^,;'\"])*"
)
"""A command that reads or writes a database, up to a comma or the end, in a text that does not name
a database.
"""
PASSWORD = re.compile(r"://[^/@]*:[^/@]*@")
_database = ""
"""The database of this command. It is global because errors of any module have commands to type,
and are printed after the command has ended.
"""


def as_line(text: object) -> str:
    """Return ``text`` as a part of one line: characters that a terminal would obey, or not show,
    become escapes.
    """
    return _escaped(str(text), "")


def printable(text: str) -> str:
    """Return ``text`` for a terminal, in lines: as ``as_line``, but lines and tabs stay."""
    return _escaped(text, "\n\t")


def say(*lines: str, flush: bool = False) -> None:
    """Print lines on standard output, each on one line; an empty line if there are none."""
    for line in lines or ("",):
        print(as_line(line))
    if flush:
        sys.stdout.flush()


def note(line: str, *, end: str = "\n", flush: bool = False) -> None:
    """Print one line on standard error."""
    print(as_line(line), end=end, file=sys.stderr, flush=flush)


def use(db: str) -> str:
    """Note the database of this command, for commands to type."""
    global _database
    _database = db
    return db


def in_use() -> str:
    """Return the database of this command."""
    return _database


def to_type(text: str) -> str:
    """Return ``text`` with the database in use in every command of dynabro in it, so that the
    command can be copied; a URL with a password is not repeated.
    """
    usual = ("", os.environ.get("DYNABRO_DB", "results.db"))
    if _database in usual or PASSWORD.search(_database):
        return text
    return COMMAND.sub(lambda match: f"{match[0]} --db {shlex.quote(_database)}", text)


def hint(line: str) -> None:
    """Print one line on standard error about what can be done next, if a person reads it."""
    if sys.stderr.isatty():
        note(to_type(line))


def complain(problem: str) -> None:
    """Print one line of an error on standard error."""
    # a terminal that was closed shows nothing, and the exit code stays
    with contextlib.suppress(OSError):
        note(f"dynabro: {to_type(problem)}")


def data() -> IO[str]:
    """Return standard output for data, which are written unchanged, in UTF-8 whatever the
    terminal's encoding is.
    """
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8")
    return sys.stdout


def write(block: bytes) -> None:
    """Write bytes on standard output unchanged."""
    sys.stdout.flush()
    sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()


def show(text: str, *, flush: bool = False) -> None:
    """Print text of several lines on standard output, without a final newline."""
    sys.stdout.write(printable(text))
    if flush:
        sys.stdout.flush()


def is_terminal() -> bool:
    """True if standard output is a terminal."""
    return sys.stdout.isatty()


def prepare() -> None:
    """Make streams and home usable: a closed stream, an encoding that lacks a letter, or a missing
    home must not crash.
    """
    if os.path.expanduser("~") == "~":
        # as container runtimes do; some libraries cannot be imported without a home
        os.environ["HOME"] = os.sep
    use(os.environ.get("DYNABRO_DB", "results.db"))
    for number, (name, mode, flags) in enumerate(STREAMS):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(_occupy(number, flags), mode, closefd=False))  # noqa: SIM115
        elif mode == "w" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    warnings.showwarning = _warn
    warnings.simplefilter("always", OutageWarning)  # each outage is reported
    sys.excepthook = _crash


def close(code: Any) -> Any:
    """Flush the outputs here, where a failure can be reported; the interpreter's own attempt would
    end with code 120.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            code = code or (unwritable(error) if stream is sys.stdout else 0)
            # the interpreter flushes again at its end; what is still in the buffer goes nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return code


def unwritable(error: OSError) -> int:
    """Return the exit code if standard output cannot be written; success if its reader has left."""
    if isinstance(error, BrokenPipeError):
        return 0
    room = "make room, or " if error.errno in FULL else ""
    complain(f"the output cannot be written ({error.strerror}); {room}send it elsewhere")
    return StorageError.exit_code


def _escaped(text: str, kept: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        char if char in kept or char.isprintable() else ascii(char)[1:-1] for char in text
    )


def _occupy(number: int, flags: int) -> int:
    """Open ``/dev/null`` under a standard stream's number, so that a database does not get it;
    another one if it is taken.
    """
    opened = os.open(os.devnull, flags)
    try:
        os.fstat(number)
    except OSError:
        os.dup2(opened, number)
    if opened == number or os.path.sameopenfile(opened, number):
        return number
    return opened


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a library's warning, which may contain names from a database."""
    complain(f"warning: {message}")


def _crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback of a bug, which may contain names from a database."""
    sys.stderr.write(printable("".join(traceback.format_exception(kind, error, trace))))
