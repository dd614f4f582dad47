"""Writing pictures and their numbers, the same bytes for the same database."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from dynabro_cli.errors import CannotWriteError
from dynabro_cli.figures._api import Drawn
from dynabro_cli.figures._data import Results

UNDATED: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
}
"""Formats, with what would be different in each file of one and the same picture."""
KEYS = ("run_key", "status", "task", "method", "aggregator", "attack", "switching", "budget", "learning_rate", "seed")


def save(drawn: Drawn, results: Results | None, folder: Path, name: str, formats: Sequence[str]) -> list[Path]:
    """Write a picture in each format, its numbers as NAME.csv, and the runs that it shows, if any, as NAME.runs.csv.

    A file is written beside its place and then put there, so that what is there is always whole.

    Raises:
        CannotWriteError: The folder cannot be made, or a file not written.
    """
    writers: dict[str, Callable[[Path], None]] = {
        f"{name}.{kind}": functools.partial(drawn.figure.savefig, format=kind, metadata=UNDATED[kind]) for kind in formats
    }
    writers[f"{name}.csv"] = lambda path: _csv(drawn.numbers, path)
    if results is not None:
        shown = results.runs[list(KEYS)]
        writers[f"{name}.runs.csv"] = lambda path: _csv(shown, path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, write in writers.items():
            part = folder / f".{file}.part"
            try:
                write(part)
                os.replace(part, folder / file)
            finally:
                part.unlink(missing_ok=True)
    except OSError as error:
        raise CannotWriteError(f"{folder} cannot be written ({error.strerror}); name another folder with --out") from error
    return [folder / file for file in writers]


def _csv(frame: pd.DataFrame, path: Path) -> None:
    frame.to_csv(path, index=False, lineterminator="\n", float_format=lambda number: f"{number:.10g}")
