"""Write down what 1.0.0 promises: tables and views, commands and options, Python names, exit codes,
and keys of runs.

``python -m tests.promises`` writes the files anew. A line that changes or goes breaks somebody's
script; a new line does not.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from typer.main import get_command

import dynabro_cli
from dynabro_cli import plugins
from dynabro_cli.cli.app import application
from dynabro_cli.core import errors
from dynabro_cli.experiment.grid.plan import plan
from dynabro_cli.experiment.grid.sweep_lookup import load_sweep, shipped
from dynabro_cli.runs.store.open.engine import open_for_writing

FOLDER = Path(__file__).parent
EXAMPLE = FOLDER.parents[1] / "results.db.example"


def columns() -> Iterator[str]:
    """Each table and view of a new database with its columns, and each index."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "new.db"
        open_for_writing(str(path)).dispose()
        with closing(sqlite3.connect(path)) as connection:
            objects = (
                "SELECT type, name FROM sqlite_schema WHERE name NOT LIKE 'sqlite%' "
                "ORDER BY type, name"
            )
            for kind, name in connection.execute(objects).fetchall():
                yield f"{kind} {name}"
                for _, column, form, not_null, default, key in connection.execute(
                    f"PRAGMA table_info({name})"
                ):
                    yield (
                        f"{kind} {name}.{column} {form}{' NOT NULL' * not_null} "
                        f"default={default} key={key}"
                    )


def commands() -> Iterator[str]:
    """Each command with its arguments and options, and their defaults."""
    yield from _parameters(get_command(application()), "dynabro")


def _parameters(command: Any, words: str) -> Iterator[str]:
    yield words
    for parameter in command.params:
        names = ", ".join([*parameter.opts, *parameter.secondary_opts])
        flag = " flag" if getattr(parameter, "is_flag", False) else ""
        many = " many" if parameter.multiple or parameter.nargs == -1 else ""
        default = "" if callable(parameter.default) else f" default={parameter.default}"
        yield f"{words} {names}{flag}{many}{default}"
    for name, child in getattr(command, "commands", {}).items():
        yield from _parameters(child, f"{words} {name}")


def python_names() -> Iterator[str]:
    """Each public name of ``dynabro_cli`` and ``dynabro_cli.plugins`` with its signature."""
    for module in (dynabro_cli, plugins):
        for name in sorted(module.__all__):
            thing = getattr(module, name)
            described = (
                inspect.signature(thing)
                if inspect.isclass(thing) or inspect.isfunction(thing)
                else f" {thing}"
            )
            # a default that is a function has an address
            yield re.sub(r" at 0x[0-9a-f]+", "", f"{module.__name__}.{name}{described}")


def exit_codes() -> Iterator[str]:
    """Each kind of error with its exit code."""
    for name, kind in sorted(vars(errors).items()):
        if isinstance(kind, type) and issubclass(kind, errors.DynabroError):
            yield f"{name} {kind.exit_code}"


def sweeps() -> Iterator[str]:
    """Each sweep that comes with the program, its number of runs, and a digest of their keys in
    order.
    """
    for name in sorted(shipped("sweeps")):
        keys = [run.key for run in plan(load_sweep(name)).runs]
        yield f"{name} {len(keys)} {hashlib.sha256(' '.join(keys).encode()).hexdigest()}"


def example() -> Iterator[str]:
    """Each table and view of ``results.db.example``, its number of rows, and a digest of them in
    order.
    """
    with closing(sqlite3.connect(f"file:{EXAMPLE}?mode=ro&immutable=1", uri=True)) as connection:
        objects = (
            "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT "
            "LIKE 'sqlite%' ORDER BY name"
        )
        for (name,) in connection.execute(objects).fetchall():
            rows = sorted(map(repr, connection.execute(f"SELECT * FROM {name}")))
            yield f"{name} {len(rows)} {hashlib.sha256(chr(10).join(rows).encode()).hexdigest()}"


PROMISES = {
    function.__name__: function
    for function in (columns, commands, python_names, exit_codes, sweeps, example)
}


def written(name: str) -> str:
    """Return the content of the file of a promise, from today's code."""
    return "".join(f"{line}\n" for line in PROMISES[name]())


if __name__ == "__main__":
    for name in PROMISES:
        (FOLDER / f"{name}.txt").write_text(written(name))
