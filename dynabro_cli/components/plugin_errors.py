"""Errors of plugins: the file and line of a plugin's code that raised an exception."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path

from dynabro_cli.errors import DynabroError, PluginError, first_line

places: list[Path] = []
"""Files and folders with the code of plugins."""


def told(error: BaseException) -> str:
    """Return an exception in one line, with the file and line of the plugin's code that raised it, if one did."""
    kind = f"{type(error).__name__}: {first_line(error)}".rstrip(": ")
    place = where(error)
    return kind if place is None else f"{place}: {kind}"


def where(error: BaseException) -> str | None:
    """Return ``FILE, line N`` of the plugin's code that raised an exception; None if no plugin's code did.

    It is the last such line of the traceback, causes included.
    """
    if isinstance(error, SyntaxError) and error.filename and _is_plugins(error.filename):
        return f"{error.filename}, line {error.lineno}"
    chain: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in chain:
        chain.append(following)
        following = following.__cause__ or following.__context__
    for one in chain:
        for frame in reversed(traceback.extract_tb(one.__traceback__)):
            if _is_plugins(frame.filename):
                return f"{frame.filename}, line {frame.lineno}"
    return None


@contextlib.contextmanager
def guarded(what: str) -> Iterator[None]:
    """Within the context, turn an exception that went through a plugin's code into a PluginError.

    Raises:
        PluginError: With file and line. Errors raised on purpose, and exceptions of other code, are unchanged.
    """
    try:
        yield
    except DynabroError:
        raise
    except Exception as error:
        if where(error) is None:
            raise
        raise PluginError(f"{what}: {told(error)}. Try: its test, which shows the traceback") from error


def _is_plugins(file: str) -> bool:
    path = Path(file)
    return any(path == place or place in path.parents for place in places)
