"""Labels of runs, for sweeps, ``status``, logs and figures."""

from __future__ import annotations

import re
import shlex
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dynabro_cli.core.package import KINDS
from dynabro_cli.core.registration import PLUS, format_value, split_text
from dynabro_cli.experiment.spec import COMPONENTS, fields

CELL = ("task", "method", "aggregator", "pre_aggregators", "attack", "switching", "seed")
"""The fields that every label has."""
OTHERS = tuple(name for name in fields() if name not in CELL)
"""The fields that a label also has if runs differ in them."""

Fields = Mapping[str, Any]


def cell(run: Fields, also: Iterable[str] = ()) -> str:
    """Name a run in a few words, such as ``digits, sgd, cwtm, sf, periodic:K=10, seed 0``.

    Args:
        run: All its fields by name.
        also: The names of fields to add.
    """
    words = [
        run["task"],
        run["method"],
        rule_of(run),
        run["attack"],
        run["switching"],
        f"seed {run['seed']}",
    ]
    return ", ".join(words + [f"{name}={format_value(run[name])}" for name in also])


def rule_of(run: Fields) -> str:
    """Return a run's aggregator with its chain, such as ``nnm+cwtm``; ``store.views.RULE`` is the
    same in SQL.
    """
    chain = "" if run["pre_aggregators"] == "none" else f"{run['pre_aggregators']}+"
    return f"{chain}{run['aggregator']}"


def without_parameter(text: str, key: str) -> str:
    """Return a component's text without one of its parameters."""
    # only after : or , because another parameter may end with this name
    return re.sub(rf"(?<=[:,]){key}=[^,+]*,?", "", text).rstrip(":,")


def labels(runs: Sequence[Fields]) -> list[str]:
    """Name each run in a few words, with the fields that distinguish runs with the same words."""
    also = telling_apart(runs)
    return [cell(run, also) for run in runs]


def command_of(run: Fields, plugins: Sequence[str] = ()) -> str:
    """Return the ``dynabro run`` command with the same key as a run, except for the seed.

    Options that have the same default for every task are left out. All others are given, so that
    the command does not depend on a task's defaults. If a component is not dynabro's, the command
    has the plugins.

    Args:
        run: Its columns, as in the table ``runs``.
        plugins: The plugins of the run, as far as they are known; if none is, the option has the
            word FILE.
    """
    words = ["dynabro", "run"]
    for name, field in fields().items():
        value = run[name]
        present = value is not None and value == value  # NaN is not equal to itself
        if name != "seed" and present and (name == "task" or value != field.default):
            words += [field.option, format_value(field.type(value))]
    if not all(_is_shipped(field, run[field]) for field in COMPONENTS):
        words += [word for name in plugins or ("FILE",) for word in ("--plugin", name)]
    return shlex.join(words)


def _is_shipped(field: str, value: Any) -> bool:
    """Return True if all components of a field's value, which may be missing, are modules of
    dynabro's.
    """
    folder = Path(KINDS, COMPONENTS[field])
    names = [
        part.partition(":")[0]
        for part in split_text(value if isinstance(value, str) else "none", PLUS)
    ]
    return all(
        name == "none" or (folder / f"{name.replace('-', '_')}.py").exists() for name in names
    )


def telling_apart(
    runs: Sequence[Fields], names: Iterable[str] = OTHERS, given: Iterable[str] = CELL
) -> list[str]:
    """Return the fields of ``names`` that distinguish runs with equal values in ``given`` and in
    the names before them.

    Args:
        runs: Their fields by name; a missing field counts as None.
        names: The fields to choose from, in order.
        given: The fields that a label has anyway.
    """
    labels = list(given)
    groups = _numbered(tuple(run.get(name) for name in labels) for run in runs)
    chosen = []
    for name in names:
        finer = _numbered((group, run.get(name)) for group, run in zip(groups, runs, strict=True))
        if name not in labels and max(finer, default=0) > max(groups, default=0):
            groups = finer
            chosen.append(name)
    return chosen


def _numbered(values: Iterable[Hashable]) -> list[int]:
    """Number values from 0 in the order in which they first occur; equal values have the same
    number.
    """
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values]
