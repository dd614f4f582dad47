"""Write pictures and their numbers, with the same bytes for the same database."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from dynabro_cli.errors import CannotWriteError
from dynabro_cli.figures._api import Drawn
from dynabro_cli.figures._data import Results
from dynabro_cli.figures._style import plain_powers
from dynabro_cli.figures._tables import in_latex
from dynabro_cli.store.outputs import CSV, PICTURES, Output

UNDATED: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
}
"""Formats of pictures, with metadata that would otherwise differ between files of the same picture."""
TEX = "tex"
FORMATS = (*UNDATED, TEX)
KEYS = ("run_key", "status", "task", "method", "aggregator", "attack", "switching", "budget", "learning_rate", "seed")


def save(
    drawn: Drawn,
    results: Results | None,
    folder: Path,
    name: str,
    formats: Sequence[str],
    *,
    database: str,
    force: bool = False,
) -> list[Path]:
    """Write a picture in each format, its numbers as NAME.csv, and the runs that it shows, if any, as NAME.runs.csv.

    Args:
        drawn: The picture and its numbers.
        results: The runs in it.
        folder: The folder of the files; created if it does not exist.
        name: The figure.
        formats: Formats of the picture; ``tex`` only if there is a table.
        database: The database that was read, as a path or URL.
        force: Replace files of another kind, too.

    Raises:
        CannotWriteError: The folder cannot be created, or a file in it must not be replaced; then no file is written.
        StorageError: The disk is full.
    """
    formats = [kind for kind in formats if kind != TEX or drawn.table is not None]
    outputs = [Output(folder / f"{name}.{kind}", PICTURES[kind], database, force) for kind in formats]
    contents = [
        _tex(drawn.table, name) if kind == TEX and drawn.table is not None else _picture(drawn, kind) for kind in formats
    ]
    tables = {"csv": drawn.numbers} | ({} if results is None else {"runs.csv": results.runs[list(KEYS)]})
    outputs += [Output(folder / f"{name}.{suffix}", CSV, database, force) for suffix in tables]
    contents += map(_csv, tables.values())
    for output in outputs:
        output.place()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotWriteError(f"{folder} cannot be written ({error.strerror}). Try: another --out") from error
    for output, content in zip(outputs, contents, strict=True):
        with output.writing() as file:
            file.write(content)
    return [output.target for output in outputs]


def _picture(drawn: Drawn, kind: str) -> bytes:
    file = io.BytesIO()
    plain_powers(drawn.figure)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # a letter that the font does not have is drawn as a box
        drawn.figure.savefig(file, format=kind, metadata=UNDATED[kind])
    return file.getvalue()


def _tex(table: pd.DataFrame, name: str) -> bytes:
    return in_latex(table, name).encode()


def _csv(frame: pd.DataFrame) -> bytes:
    return str(frame.to_csv(index=False, lineterminator="\n", float_format=lambda number: f"{number:.10g}")).encode()
