"""Runs in other tools. Each tool has a module here, whose ``begin`` opens the log of a run by the
tool's own writer: for ``dynabro export`` of stored runs, and for ``--log`` of runs in progress.
A log has ``points``, which writes evaluations in order, and ``end``, which writes final scores and
closes the run as ``FINISHED``, ``FAILED`` or ``KILLED``. Times are seconds since 1970. Each call
may raise any error of the tool.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dynabro_cli.core.errors import CannotWriteError, SpecError, did_you_mean
from dynabro_cli.experiment.spec import fields

PLACES = {
    "tensorboard": "tensorboard:DIR",
    "wandb": "wandb:PROJECT",
    "mlflow": "mlflow:URI",
}
"""Tools, and what to type for ``--log``; a tool, its package and its module have the same name."""
CURVES = (
    "test_accuracy",
    "test_loss",
    "train_loss",
    "gap",
    "validation_accuracy",
    "validation_loss",
)
Points = Sequence[tuple[int, Mapping[str, float]]]
"""Evaluations: the budget, which is the step of all tools, and finite numbers by name."""


class Described(NamedTuple):
    """A run for another tool.

    Attributes:
        name: A name that belongs to this run alone.
        group: Its sweep; ``runs`` without a sweep.
        fields: Its fields that have a value, ``rule``, and all parameters of its components, such
            as ``method.beta``.
        tags: Tags.
        note: The note, or an empty text.
        started: Start time, in seconds since 1970.
    """

    name: str
    group: str
    fields: dict[str, Any]
    tags: Sequence[str]
    note: str
    started: float


def check_package(package: str, option: str) -> None:
    """Raise SpecError if a tool's package is not installed, before it is imported, which is
    slow.
    """
    if importlib.util.find_spec(package) is None:
        raise SpecError(f"{option}: it needs the package {package}. Try: pip install {package}")


def check_logs(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the different values of ``--log``.

    Raises:
        SpecError: The tool is unknown, its package is not installed, or the place is missing.
        CannotWriteError: The folder is a file.
    """
    for text in texts:
        tool, _, place = text.partition(":")
        # no more of the text, because a URI may have a password
        if tool not in PLACES or not place:
            why = "the place is missing" if tool in PLACES else "not a tool"
            hint = "" if tool in PLACES else did_you_mean(tool, PLACES)
            raise SpecError(f"log={tool}: {why}{hint}. Try: --log {', '.join(PLACES.values())}")
        check_package(tool, f"log={tool}")
        if tool == "tensorboard" and Path(place).exists() and not Path(place).is_dir():
            raise CannotWriteError(f"log={text}: {place} is not a folder. Try: another folder")
    return tuple(dict.fromkeys(texts))


def fields_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a run, ``rule`` and parameters, from a row that has more."""
    return {
        name: value
        for name, value in row.items()
        if (name in (*fields(), "rule") or "." in name) and value is not None
    }


def finite(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are finite numbers."""
    return {
        name: float(value)
        for name, value in values.items()
        if value is not None and math.isfinite(value)
    }


def legal_name(name: str, legal: dict[str, str], illegal: str, most: int) -> str:
    """Return the name of a metric in a tool that does not take all names, with a warning if it
    changes.

    Args:
        name: Name of the metric.
        legal: The names so far, to which this one is added.
        illegal: A regular expression of the characters that become an underscore.
        most: Most characters of a name.
    """
    if name not in legal:
        short = re.sub(illegal, "_", name)[:most]
        numbered = (f"{short[: most - 8]}_{count}" for count in itertools.count(2))
        while short in legal.values():
            short = next(numbered)
        legal[name] = short
        if short != name:
            warnings.warn(f"the metric {name!r} is written as {short!r}", stacklevel=2)
    return legal[name]
