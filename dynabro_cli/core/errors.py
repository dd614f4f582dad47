"""Errors that a user can act on: the problem, the value, the legal values, and what to type.

Every error has the exit code of the command line. Codes above 63 are from BSD's ``sysexits.h``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class DynabroError(Exception):
    """Root of all errors raised on purpose; the command line prints the text without a
    traceback.
    """

    exit_code = 70


class VerificationError(DynabroError):
    """An input disproves a proved bound of a rule: the rule, or its bound, has a bug."""

    exit_code = 1


class SpecError(DynabroError, ValueError):
    """The description of a run is not valid. ``problems`` has one line for each problem."""

    exit_code = 2

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class OccupiedError(SpecError):
    """The run would fit into the GPU, but others use its memory now."""


class Problems:
    """Collect the problems of several steps, to report them at once.

    Attributes:
        lines: The problems, one line each.
    """

    def __init__(self, lines: Sequence[str] = ()) -> None:
        self.lines = list(lines)

    def attempt(self, step: Callable[..., T], *arguments: Any) -> T | None:
        """Return the result of ``step``; if it raises SpecError, keep its problems and return
        None.
        """
        try:
            return step(*arguments)
        except SpecError as error:
            self.lines += [line for line in error.problems if line not in self.lines]
            return None


class SweepError(DynabroError):
    """Some runs of a sweep failed; the others have their results."""

    exit_code = 3


class IncompleteError(DynabroError):
    """A figure was drawn without all runs of its grid, but all were required."""

    exit_code = 4


class DatabaseError(DynabroError):
    """The file is not a dynabro database, is damaged, or has another schema version."""

    exit_code = 65


class ModelFileError(DynabroError):
    """The file is not a saved model, or does not match the model to be evaluated."""

    exit_code = 65


class EmptyDatabaseError(DatabaseError):
    """The database has no tables yet; a command that writes creates them."""


class LostDatabaseError(DatabaseError):
    """The database was removed, replaced or emptied while it was written, or a run in progress was
    removed from it.
    """


class NotFoundError(DynabroError):
    """A data set, a database, a run or a sweep does not exist."""

    exit_code = 66


class RunError(DynabroError):
    """A run ended with an unexpected exception; it is stored as ``failed``."""

    exit_code = 70


class DoubtfulRunError(RunError):
    """Earlier numbers of the run may be wrong: it must start over, not at a checkpoint."""


class CheckpointError(DynabroError):
    """A checkpoint cannot be used; the run starts from the beginning instead."""


class PluginError(DynabroError):
    """The code of a plugin raised an exception; the text has its file and line."""

    exit_code = 78


class NameTakenError(PluginError, ValueError):
    """Two components have the same name."""


class CannotWriteError(DynabroError):
    """A file or folder cannot be created or written."""

    exit_code = 73


class StorageError(DynabroError):
    """Writing failed half-way, for example on a full disk; stored results are intact."""

    exit_code = 74


class BusyError(DynabroError):
    """Another live process holds the run or the database."""

    exit_code = 75


class RunHeldError(BusyError):
    """Another live process is working on the run."""


class LostRunError(RunHeldError):
    """Another process has taken over the run that this one was making."""


class DisconnectedError(DynabroError):
    """The database's server closed the connection, or accepts no connection at present; stored
    results are intact.
    """

    exit_code = 75


class AlreadyStoredError(DynabroError):
    """The run already has a result in the database, and no repetition was requested."""


class TimeLimitError(DynabroError):
    """A statement exceeded its time limit."""

    exit_code = 124


class InterruptedRunError(DynabroError):
    """Ctrl-C was pressed; the text describes the state of the run."""

    exit_code = 130


class PreemptedError(DynabroError):
    """SIGTERM or the like arrived, for example from a cluster that needs its machine; the same
    command resumes later.
    """

    exit_code = 75


class OutageWarning(UserWarning):
    """Warning that the command waits for a database's server, or that the server is back; the
    command line prints it.
    """


def first_line(text: object) -> str:
    """Return the first line of a message; empty if the message is empty."""
    return str(text).strip().partition("\n")[0].strip()


def last_line(text: object) -> str:
    """Return the last line of a message, such as the exception of a traceback; empty if the message
    is empty.
    """
    return str(text).strip().rpartition("\n")[2].strip()


def many(number: int, what: str) -> str:
    """Return a number of things, such as ``1 run`` or ``2 runs``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def did_you_mean(got: str, legal: Iterable[str], text: Callable[[str], str] = str) -> str:
    """Return `` (did you mean 'x'?)``, x the ``text`` of the one of ``legal`` that is close to
    ``got``; "" if none is close.
    """
    names = {name.lower(): name for name in legal}
    close = difflib.get_close_matches(got.lower(), names, n=1, cutoff=0.6)
    return f" (did you mean {text(names[close[0]])!r}?)" if close else ""
