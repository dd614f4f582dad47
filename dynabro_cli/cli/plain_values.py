"""Values that need no conversion by typer, which loads pydantic for others: a tenth of a second."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

PLAIN = (str, int, float, bool)
"""Types whose defaults are taken as they are."""


class PlainFirst:
    """Pass on what needs no conversion, and leave every other value to typer.

    Args:
        parameter: An option or argument of a version of typer that converts values by ``get_runtime_param``.
    """

    def __init__(self, parameter: Any) -> None:
        self._wanted = parameter.type_descriptor.annotation
        info = parameter.type_descriptor.parameter_info
        self._any_path = not (info.exists or info.resolve_path or info.path_type or info.allow_dash)

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value of ``param`` in the type of its annotation, as typer's own ``coerce`` does."""
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        if not several and self._is_plain(value, param, ctx):
            return self._wanted(value)
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)

    def _is_plain(self, value: Any, param: Any, ctx: Any) -> bool:
        if self._wanted is Path:
            return self._any_path and type(value) is str and _is_missing(value)
        legal = (int, float) if self._wanted is float else (self._wanted,)
        if self._wanted not in PLAIN or type(value) not in legal:
            return False
        return self._wanted is str or getattr(ctx.get_parameter_source(param.name), "name", "") == "DEFAULT"


def _is_missing(path: str) -> bool:
    """Return True if there is no file to check; a file's permissions are left to typer."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        pass
    return False


def take_plain_values(parameter: Any) -> None:
    """Let ``parameter`` take plain values as they are, if this version of typer would load pydantic for them.

    An option with a parser of its own is left alone.
    """
    info = getattr(getattr(parameter, "type_descriptor", None), "parameter_info", None)
    if info is None or not hasattr(parameter, "get_runtime_param"):
        return
    if getattr(info, "parser", None) is None and getattr(info, "click_type", None) is None:
        parameter._runtime_param = PlainFirst(parameter)
