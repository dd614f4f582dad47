"""The command that repeats a stored run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import pandas as pd

from dynabro_cli.components import format_value
from dynabro_cli.experiment.spec import fields


def command_of(run: Mapping[str, Any] | pd.Series[Any]) -> str:
    """Return the ``dynabro run`` that has the same key as a run, without its seed.

    Options that have the same default for every task are left out; all others are given, so that the command does not depend on
    the defaults of a task.

    Args:
        run: Its columns, as in the table ``runs``.
    """
    words = ["dynabro", "run"]
    for name, field in fields().items():
        value = run[name]
        if name != "seed" and not pd.isna(value) and (name == "task" or value != field.default):
            words += [field.option, format_value(field.type(value))]
    return shlex.join(words)
