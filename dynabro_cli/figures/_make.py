"""Draw a figure by its name: choose its runs, check its options, report missing runs of its grid, and write its files."""

from __future__ import annotations

import functools
import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from sqlalchemy import Engine

from dynabro_cli.components.digests import CodeComparison, compare
from dynabro_cli.errors import CannotWriteError, NotFoundError, SpecError
from dynabro_cli.figures._api import GRIDS, RECORDS, REGISTRY, Choice, Drawn, Variant
from dynabro_cli.figures._data import ComputeIdentities, MeasureWindow, Results, in_order, missing, read_runs
from dynabro_cli.figures._style import WIDTHS, for_print, plain_powers
from dynabro_cli.figures._tables import in_latex
from dynabro_cli.store.outputs import CSV, PICTURES, Output

MOST_TOLD = 4
UNDATED: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
}
"""Formats of pictures, with metadata that would otherwise differ between files of the same picture."""
TEX = "tex"
FORMATS = (*UNDATED, TEX)
KEYS = ("run_key", "status", "task", "method", "aggregator", "attack", "switching", "budget", "learning_rate", "seed")

Rows = list[dict[str, Any]]


class Made(NamedTuple):
    """Result of drawing: the files, the runs, and the missing runs of the grid in words, empty if none are missing."""

    name: str
    files: list[Path]
    runs: int
    missing: str


class Studio:
    """Draw figures of one database into one folder.

    Args:
        engine: The database, open for reading.
        where: An SQL condition on the table ``runs``, or on the table of a figure.
        folder: The folder of the files.
        formats: Formats of the pictures.
        planned: ``planned(sweep, settings)`` returns the rows of a sweep's runs with fields set, in the form of the table
            ``runs``.
        identities: See ``Results``.
        window: See ``Results``.
        width: ``column`` or ``page``: the width of pictures for print, with text of 8 pt; None for their own widths.
        force: Replace files of another kind, too.

    Raises:
        SpecError: A format or the width is not legal; when drawing: the condition is not valid.
    """

    def __init__(
        self,
        engine: Engine,
        where: str | None,
        folder: Path,
        formats: Sequence[str],
        planned: Callable[[str, Sequence[str]], Rows],
        identities: ComputeIdentities,
        window: MeasureWindow,
        *,
        width: str | None = None,
        force: bool = False,
    ) -> None:
        wrong = [kind for kind in formats if kind not in FORMATS]
        if wrong or not formats:
            raise SpecError(f"format={','.join(wrong)} is not legal. Try: --format with some of {','.join(FORMATS)}")
        if width is not None and width not in WIDTHS:
            raise SpecError(f"width={width}: not a width for print. Try: --width {' or --width '.join(WIDTHS)}")
        self._width = width
        self._engine, self._folder, self._formats = engine, folder, tuple(dict.fromkeys(formats))
        self._planned, self._identities, self._window = planned, identities, window
        self._where, self._force = where, force
        self._drawn: dict[int, str | None] = {}

    @property
    def code(self) -> CodeComparison:
        """Comparison of the code of all drawn runs with the current code."""
        return compare((text, 1) for text in self._drawn.values())

    @functools.cached_property
    def _runs(self) -> pd.DataFrame:
        return read_runs(self._engine, self._where)

    def draw(self, name: str, choice: Choice) -> Made:
        """Draw a plot of any runs, or a figure of another table.

        Raises:
            SpecError: The options do not fit the figure.
        """
        if name not in RECORDS:
            return self.draw_any(name, choice)
        if choice != Choice():
            raise SpecError(f"{name} shows no runs; --x, --hue, --facet, --metric and --free-y are for the plots of any runs")
        with for_print(self._width):
            drawn = REGISTRY.entry(name).factory(self._engine, self._where)
            files = self._files(name, results=None, drawn=drawn)
        return Made(name, files, 0, "")

    def draw_grid(self, name: str, settings: Sequence[str] = ()) -> Made | None:
        """Draw a figure of a sweep's runs, with fields of the sweep set as by ``--set``; None if no run of it is stored.

        Without settings, the first variant with any run replaces a sweep without runs.
        """
        grid = GRIDS[name]
        variants = [Variant(tuple(settings), ", ".join(settings)), *(() if settings else grid.variants)]
        for variant in variants:
            planned = pd.DataFrame(self._planned(grid.sweep, variant.settings))
            for column, values in grid.only:
                planned = planned[planned[column].isin(values)]
            runs = in_order(self._runs, planned)
            if len(runs):
                return self._save(name, self._results(runs, planned, variant.label), None)
        return None

    def draw_any(self, name: str, choice: Choice, saved_as: str | None = None) -> Made:
        """Draw a plot of any runs; ``saved_as`` names the files, by default the plot.

        Raises:
            NotFoundError: There are no runs, or the condition holds for none of them.
            SpecError: The options do not fit the plot or the runs.
        """
        if self._runs.empty and self._where is not None:
            raise NotFoundError(f"where={self._where}: it holds for no run that has a result. Try: another condition")
        if self._runs.empty:
            raise NotFoundError("no run here has a result. Try: dynabro run or dynabro sweep, which make some")
        return self._save(name, self._results(self._runs, self._runs, ""), choice, saved_as)

    def varied(self, columns: Sequence[str]) -> list[str]:
        """Return the columns in which the runs differ, most values first, without columns that follow from an earlier one."""
        counts = {name: self._runs[name].nunique(dropna=False) for name in columns}
        found: list[str] = []
        for name in sorted((name for name, count in counts.items() if count > 1), key=lambda name: -counts[name]):
            values = self._runs[name].astype(str)
            if not any(values.groupby(self._runs[earlier].astype(str)).nunique().max() == 1 for earlier in found):
                found.append(name)
        return found

    def _results(self, runs: pd.DataFrame, planned: pd.DataFrame, label: str) -> Results:
        return Results(runs, planned, label, self._engine, self._identities, self._window)

    def _files(self, name: str, results: Results | None, drawn: Drawn) -> list[Path]:
        if drawn.table is None and self._formats == (TEX,):
            raise SpecError(
                f"format=tex: {name} is not a table. Try: final, history-dependence or training-details, or another format"
            )
        database = self._engine.url.render_as_string(hide_password=False)
        return save(drawn, results, self._folder, name, self._formats, database=database, force=self._force)

    def _save(self, name: str, results: Results, choice: Choice | None, saved_as: str | None = None) -> Made:
        draw = REGISTRY.entry(name).factory
        with for_print(self._width):
            drawn = draw(results) if choice is None else draw(results, choice)
            files = self._files(saved_as or name, results=results, drawn=drawn)
        digests = results.runs["code_digests"].astype(object).where(results.runs["code_digests"].notna(), None)
        self._drawn |= dict(zip(results.runs["id"], digests, strict=True))
        return Made(saved_as or name, files, len(results.runs), "" if choice else _missing(results))


def _missing(results: Results) -> str:
    empty, count = missing(results)
    if not count:
        return ""
    text = f"{count} of {len(results.planned)} planned runs are missing"
    if empty.empty:
        return text
    columns = [name for name in ("task", "method", "aggregator", "attack", "switching") if results.planned[name].nunique() > 1]
    cells = [" ".join(str(value) for value in row) for row in empty[columns].itertuples(index=False)]
    more = f"; and {len(cells) - MOST_TOLD} more" if len(cells) > MOST_TOLD else ""
    return f"{text}, and no run at all of: {'; '.join(cells[:MOST_TOLD])}{more}"


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
