"""Parameters of components: their declaration as fields of a dataclass, and their values as
text.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import os
import re
import types
import typing
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

AUTO = "auto"
QUOTED = r"""(?:"(?:[^"]|"")*"|'(?:[^']|'')*')"""
"""A value in quotes, in which two quotes stand for one."""
PLUS = r"\+(?!\d)"
"""The separator of a chain's components; the plus of 1e+2 is part of a number."""


def parameter(
    default: Any = dataclasses.MISSING,
    *,
    help: str,  # noqa: A002
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: tuple[str, ...] | None = None,
    auto: Callable[[Any, Any], Any] | None = None,
    fixed: bool = False,
    later: bool = False,
    folder: Callable[[Any, str], Path] | None = None,
    of_memory: bool = False,
) -> Any:
    """Declare a field of a parameter block: its meaning, and its legal range (``above`` and
    ``below`` are strict).

    ``auto`` maps the block and the component's setting to the value that None means, or to None if
    only the run determines it. A spec stores None for ``auto``. If the parameter is ``fixed``, the
    spec stores the value, because ``auto`` may change.

    ``later`` is True if runs were stored before the component had this parameter. Its default is
    left out of the run key, so that these runs keep their keys.

    ``folder`` is for a path: it maps the component's setting and the path to the folder that the
    path is relative to, and that is ``Path()`` if it is unknown. All spellings of a path have one
    run key: ``./a//b/`` is ``a/b``, and ``a/../b`` is ``b``.

    ``of_memory`` is True if the parameter of an attack has an effect only on messages of workers
    with a memory.
    """
    limits = {
        "help": help,
        "minimum": minimum,
        "maximum": maximum,
        "above": above,
        "below": below,
        "choices": choices,
    }
    about = {"auto": auto, "fixed": fixed, "later": later, "folder": folder, "of_memory": of_memory}
    return dataclasses.field(default=default, metadata=limits | about)


@dataclasses.dataclass(frozen=True)
class NoParameters:
    """The parameter block of a component without parameters."""


@dataclasses.dataclass(frozen=True)
class ParameterInfo:
    """One parameter of a component, for parsing and for help."""

    key: str
    field: str
    type: type
    optional: bool
    default: Any
    limits: dict[str, Any]

    @property
    def required(self) -> bool:
        return self.default is dataclasses.MISSING

    @property
    def auto(self) -> Callable[[Any, Any], Any] | None:
        return self.limits["auto"]  # type: ignore[no-any-return]

    @property
    def legal(self) -> str:
        """The legal values, in words."""
        if self.limits["choices"]:
            return " or ".join([*self.limits["choices"], *([AUTO] if self.optional else [])])
        words = {
            int: "a whole number",
            float: "a number",
            bool: "true or false",
            str: "a word",
            tuple: "numbers a:b:...",
        }
        text = words[self.type]
        signs = (("minimum", ">="), ("above", ">"), ("maximum", "<="), ("below", "<"))
        ranges = [
            f"{sign} {format_value(self.limits[name])}"
            for name, sign in signs
            if self.limits[name] is not None
        ]
        text = " ".join(filter(None, (text, " and ".join(ranges))))
        return text + (" or auto" if self.optional else "")

    def parse(self, text: str) -> Any:
        """Turn ``text`` into a value of this parameter's type and range; raise ValueError if this
        is not possible.
        """
        if self.optional and text == AUTO:
            return None
        value: Any = text
        if self.type is float:
            value = parse_number(text)
        elif self.type is int:
            value = parse_whole(text)
        elif self.type is bool:
            value = {"true": True, "false": False}[text.lower()]
        elif self.type is tuple:
            return tuple(parse_number(part) for part in text.split(":"))
        elif self.limits["folder"]:
            value = self._path(text, str(PurePath(text)))
        self.check(value)
        return value

    def _path(self, given: str, shorter: str) -> str:
        """Return the shorter spelling of a path, unless it is the default, which may be a word such
        as ``python``.
        """
        return given if shorter == self.default else shorter

    def shortened(self, path: str, setting: Any) -> str:
        """Return a path without ``..`` if it is inside the folder that it is relative to; links
        keep their meaning.
        """
        if (
            self.limits["folder"] is None
            or os.pardir not in PurePath(path).parts
            or PurePath(path).is_absolute()
        ):
            return path
        folder = self.limits["folder"](setting, path)
        short = os.path.relpath(folder / path, folder)
        same = folder != Path() and os.path.realpath(folder / short) == os.path.realpath(
            folder / path
        )
        return (
            self._path(path, short)
            if same and self.limits["folder"](setting, short) == folder
            else path
        )

    def check(self, value: Any) -> None:
        """Raise ValueError if ``value`` is outside the legal range."""
        limits = self.limits
        legal = (
            not (isinstance(value, float) and not math.isfinite(value))
            and (limits["choices"] is None or value in limits["choices"])
            and (limits["minimum"] is None or value >= limits["minimum"])
            and (limits["maximum"] is None or value <= limits["maximum"])
            and (limits["above"] is None or value > limits["above"])
            and (limits["below"] is None or value < limits["below"])
        )
        if not legal:
            raise ValueError(value)


def parse_number(text: str) -> float:
    """Return the finite number in ``text``, 0 for -0; raise ValueError otherwise."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value + 0.0


def parse_whole(text: str) -> int:
    """Return the whole number in ``text``, also from ``5e3`` or ``8.0``; raise ValueError
    otherwise, or beyond 64 bits.
    """
    try:
        value = int(text)
    except ValueError:
        number = parse_number(text)
        value = int(number)
        if value != number or abs(value) > 2**53:
            raise ValueError(text) from None
    if abs(value) >= 2**63:
        raise ValueError(text)
    return value


def plain(value: Any) -> Any:
    """Return a number of NumPy or torch as Python's own; any other value unchanged."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def format_value(value: Any) -> str:
    """Write a parameter's value as typed: ``0.1``, ``8``, ``true``, ``3:-3``, ``auto``."""
    value = plain(value)
    if value is None:
        return AUTO
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ":".join(format_value(part) for part in value)
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return str(value)


def split_text(text: str, separator: str) -> list[str]:
    """Split a component's text at a separator, a regular expression, but not in values that are in
    quotes.
    """
    hidden = re.sub(f"=\\s*{QUOTED}", lambda match: "=" * len(match[0]), text)
    places = [
        (0, 0),
        *(match.span() for match in re.finditer(separator, hidden)),
        (len(text), len(text)),
    ]
    return [text[end:start] for (_, end), (start, _) in itertools.pairwise(places)]


def quoted(text: str, separators: str = "") -> str:
    """Return a value as ``unquoted`` reads it: in quotes if it is empty, or has a blank, a comma or
    one of ``separators``.
    """
    if text and not re.search(rf"""^["']|[\s,{separators}]""", text):
        return text
    mark = "'" if '"' in text else '"'
    return mark + text.replace(mark, 2 * mark) + mark


def unquoted(text: str) -> str:
    """Return a value without its quotes, if it is in quotes."""
    return text[1:-1].replace(2 * text[0], text[0]) if re.fullmatch(QUOTED, text) else text


@functools.cache
def parameter_infos(block: type) -> tuple[ParameterInfo, ...]:
    """Describe the fields of a parameter block. A trailing underscore is not part of the key
    (``lambda_``).
    """
    hints = typing.get_type_hints(block)
    infos = []
    for field in dataclasses.fields(block):
        annotation, optional = hints[field.name], False
        if isinstance(annotation, types.UnionType):
            (annotation,) = (part for part in typing.get_args(annotation) if part is not type(None))
            optional = True
        kind = typing.get_origin(annotation) or annotation
        key = field.name.rstrip("_")
        infos.append(
            ParameterInfo(key, field.name, kind, optional, field.default, dict(field.metadata))
        )
    return tuple(infos)
