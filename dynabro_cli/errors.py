"""Errors that a user can act on: what is wrong, the value got, what is legal, what to type.

Every error carries the exit code that the command line ends with. The codes above 63 are those of BSD's ``sysexits.h``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class DynabroError(Exception):
    """The root of all errors raised on purpose; the command line prints its text and no traceback."""

    exit_code = 70


class VerificationError(DynabroError):
    """An input disproves what is proved of a rule: the rule, or its bound, has a bug."""

    exit_code = 1


class SpecError(DynabroError):
    """The description of a run is wrong. ``problems`` has one line for each thing that is wrong with it."""

    exit_code = 2

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class SweepError(DynabroError):
    """Some runs of a sweep failed; the others have their results."""

    exit_code = 3


class IncompleteError(DynabroError):
    """A figure was drawn without all the runs of its grid, and all were asked for."""

    exit_code = 4


class DatabaseError(DynabroError):
    """The file is no dynabro database, is damaged, or was written under another schema version."""

    exit_code = 65


class EmptyDatabaseError(DatabaseError):
    """The database has no tables yet; a command that writes makes them."""


class LostDatabaseError(DatabaseError):
    """The database was removed, replaced or emptied while it was written, or a run in progress was removed from it."""


class NotFoundError(DynabroError):
    """A data set, a database, a run or a sweep that was asked for is not there."""

    exit_code = 66


class RunError(DynabroError):
    """A run ended with an unexpected exception; it is stored as ``failed``."""

    exit_code = 70


class CheckpointError(DynabroError):
    """A checkpoint cannot be gone on from; the run begins at its beginning instead."""


class CannotWriteError(DynabroError):
    """A file or folder cannot be created or written."""

    exit_code = 73


class StorageError(DynabroError):
    """Writing failed half-way, as on a full disk; what was stored before is intact."""

    exit_code = 74


class BusyError(DynabroError):
    """Another live process holds the run or the database."""

    exit_code = 75


class RunHeldError(BusyError):
    """Another live process is working on the run."""


class LostRunError(RunHeldError):
    """Another process has taken over the run that this one was making."""


class DisconnectedError(DynabroError):
    """The database's server ended the connection, or takes none for now; what was stored before is intact."""

    exit_code = 75


class AlreadyStoredError(DynabroError):
    """The run has a result in the database, and was not asked to be repeated."""


class TimeLimitError(DynabroError):
    """A statement took longer than it was given."""

    exit_code = 124


class InterruptedRunError(DynabroError):
    """Ctrl-C; the text says what became of the run."""

    exit_code = 130


class PreemptedError(DynabroError):
    """SIGTERM, as of a cluster that wants its machine back; the same command goes on later."""

    exit_code = 75


class LeftOutWarning(UserWarning):
    """Rows of a database are left out of what is read, as they hold what dynabro does not write; the command line prints it."""


def did_you_mean(got: str, legal: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` where one of ``legal`` is close to ``got``, else an empty string."""
    names = {name.lower(): name for name in legal}
    close = difflib.get_close_matches(got.lower(), names, n=1, cutoff=0.6)
    return f" (did you mean {names[close[0]]!r}?)" if close else ""
