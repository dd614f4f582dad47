"""Words that a shell completes: components, sweeps, figures, and what the database has.

All are read from disk, and no component is imported: a key press waits for them.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path

import typer

from dynabro_cli.core.package import FIGURES, HOME, KINDS, ROOT

Complete = Callable[[typer.Context, str], list[str]]

REGISTERED = re.compile(r'\b(?:figure|plot|record|PaperFigure)\(\s*"([a-z0-9-]+)"')
"""A figure's name where it is registered."""
MOST_IDS = 100
BUSY_SECONDS = 0.05
"""A database that is locked is not waited for."""


def complete(*sources: Callable[[typer.Context], Iterable[str]]) -> Complete:
    """Return a completion with the words of all sources that begin with what is typed; behind a
    ``+`` of a chain, another word begins.
    """

    def matching(ctx: typer.Context, incomplete: str) -> list[str]:
        before, plus, typed = incomplete.rpartition("+")
        found = sorted({word for source in sources for word in source(ctx)})
        return [f"{before}{plus}{word}" for word in found if word.startswith(typed)]

    return matching


def components(*kinds: str) -> Callable[[typer.Context], Iterable[str]]:
    """Return a source of the names of dynabro's components of some kinds: of their modules."""

    def names(_: typer.Context) -> Iterable[str]:
        return [
            file.stem.replace("_", "-")
            for kind in kinds
            for file in Path(KINDS, kind).glob("[a-z]*.py")
        ]

    return names


def files(kind: str) -> Callable[[typer.Context], Iterable[str]]:
    """Return a source of the ``sweeps`` or ``searches`` that come with dynabro, and of the YAML
    files that are here.
    """

    def names(_: typer.Context) -> Iterable[str]:
        shipped = [file for place in (ROOT, HOME) for file in Path(place, kind).glob("*.yaml")]
        return [*(file.stem for file in shipped), *(file.name for file in Path().glob("*.y*ml"))]

    return names


def figures(_: typer.Context) -> Iterable[str]:
    """Return the names of all figures."""
    texts = [file.read_text(encoding="utf-8") for file in Path(FIGURES).glob("*/*.py")]
    return [name for text in texts for name in REGISTERED.findall(text)]


def stored_sweeps(ctx: typer.Context) -> Iterable[str]:
    """Return the names of the database's sweeps and searches."""
    return _read(ctx, "SELECT DISTINCT name FROM sweeps")


def run_ids(ctx: typer.Context) -> Iterable[str]:
    """Return the ids of the newest runs."""
    return _read(ctx, f"SELECT id FROM runs ORDER BY id DESC LIMIT {MOST_IDS}")


def _read(ctx: typer.Context, sql: str) -> list[str]:
    """Return the first column as text; nothing if SQLite cannot read the database."""
    name = ctx.params.get("db") or os.environ.get("DYNABRO_DB") or "results.db"
    path = Path(str(name).removeprefix("sqlite:///"))
    rows: list[tuple[object, ...]] = []
    with contextlib.suppress(sqlite3.Error, OSError, ValueError):
        address = f"{path.resolve().as_uri()}?mode=ro"
        with contextlib.closing(
            sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS)
        ) as database:
            rows = database.execute(sql).fetchall()
    return [str(row[0]) for row in rows]
