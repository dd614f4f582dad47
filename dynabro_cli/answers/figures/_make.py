"""Draw a figure by its name: choose its runs, check its options, report missing runs of its grid,
and write its files.
"""

from __future__ import annotations

import functools
import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from sqlalchemy import Engine

from dynabro_cli.answers.analysis.columns import chosen_columns, labels_of
from dynabro_cli.answers.analysis.results import (
    ComputeIdentities,
    MeasureWindow,
    Results,
    missing,
    plan_as_stored,
    read_runs,
    runs_of_plan,
)
from dynabro_cli.answers.figures._api import GRIDS, RECORDS, REGISTRY, Choice, Drawn, Variant
from dynabro_cli.answers.figures._fit import TALLEST, fit, problem
from dynabro_cli.answers.figures._latex import latex_table
from dynabro_cli.answers.figures._panels import write_above
from dynabro_cli.answers.figures._style import check_width, for_print, plain_powers
from dynabro_cli.answers.figures._tables import in_html
from dynabro_cli.answers.figures.any._choice import refuse_too_many
from dynabro_cli.core.errors import CannotWriteError, NotFoundError, SpecError
from dynabro_cli.experiment.comparison import CodeComparison, compare
from dynabro_cli.experiment.label import rule_of
from dynabro_cli.runs.store.care.outputs import CSV, HTML, PICTURES, Output

GLYPH = re.compile(r"Glyph (\d+) .* missing from")
"""matplotlib's warning of a letter that the font does not have."""
MOST_TOLD = 4
UNDATED: dict[str, dict[str, str | None]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
}
"""Formats of pictures, with metadata that would otherwise differ between files of the same
picture.
"""
TEX, PAGE = "tex", "html"
TABLES = (TEX, PAGE)
"""Formats of tables."""
FORMATS = (*UNDATED, *TABLES)
KEYS = (
    "run_key",
    "status",
    "task",
    "method",
    "aggregator",
    "attack",
    "switching",
    "budget",
    "learning_rate",
    "seed",
    "rule",
)

Rows = list[dict[str, Any]]


class Made(NamedTuple):
    """Result of drawing: the files, the runs, and the missing runs of the grid in words, empty if
    none are missing.
    """

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
        planned: ``planned(sweep, settings)`` returns the rows of a sweep's runs with fields set, in
            the form of the table ``runs``.
        identities: See ``Results``.
        window: See ``Results``.
        sweeps: Only runs of these sweeps, for plots of any runs.
        title: A line above what a picture says of itself.
        width: ``column`` or ``page``: the width of pictures and of tables in LaTeX for print, with
            text of 8 pt; None for their own widths.
        columns: Columns of tables, as of ``chosen_columns``; None for all.
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
        *,
        planned: Callable[[str, Sequence[str]], Rows],
        identities: ComputeIdentities,
        window: MeasureWindow,
        sweeps: Sequence[str] = (),
        title: str | None = None,
        width: str | None = None,
        columns: str | None = None,
        force: bool = False,
    ) -> None:
        wrong = [kind for kind in formats if kind not in FORMATS]
        if wrong or not formats:
            raise SpecError(
                f"format={','.join(wrong)} is not legal. Try: --format with some of "
                f"{','.join(FORMATS)}"
            )
        check_width(width)
        self._width, self._columns = width, columns
        self._engine, self._folder, self._formats = engine, folder, tuple(dict.fromkeys(formats))
        self._planned, self._identities, self._window = planned, identities, window
        self._where, self._force, self._sweeps, self._title = where, force, tuple(sweeps), title
        self._drawn: dict[int, str | None] = {}

    @property
    def code(self) -> CodeComparison:
        """Comparison of the code of all drawn runs with the current code."""
        return compare((text, 1) for text in self._drawn.values())

    @functools.cached_property
    def _runs(self) -> pd.DataFrame:
        return read_runs(self._engine, self._where, self._sweeps)

    def draw(self, name: str, choice: Choice, saved_as: str | None = None) -> Made:
        """Draw a plot of any runs, or a figure of another table; ``saved_as`` names the files, by
        default the plot.

        Raises:
            NotFoundError: There are no runs, or the condition holds for none of them.
            SpecError: The options do not fit the plot or the runs.
        """
        if name == "curves":
            refuse_too_many(self._engine, self._where, self._sweeps)
        if name not in RECORDS:
            return self._draw_and_write(name, self.results, choice, saved_as)
        if choice != Choice():
            raise SpecError(f"{name} shows no runs; --x and the like are for the plots of any runs")
        return self.draw_record(name, saved_as)[1]

    def draw_record(self, name: str, saved_as: str | None = None) -> tuple[Drawn, Made]:
        """Draw a figure of another table; return also its numbers and texts, to print them."""
        with for_print(self._width):
            drawn: Drawn = REGISTRY.entry(name).factory(self._engine, self._where)
            files = self._write_files(saved_as or name, results=None, drawn=drawn)
        return drawn, Made(saved_as or name, files, 0, "")

    def draw_grid(
        self, name: str, settings: Sequence[str] = (), saved_as: str | None = None
    ) -> Made | None:
        """Draw a figure of a sweep's runs, with fields of the sweep set as by ``--set``; None if no
        run of it is stored.

        Without settings, the first variant with any run replaces a sweep without runs.
        """
        grid = GRIDS[name]
        variants = [
            Variant(tuple(settings), ", ".join(settings)),
            *(() if settings else grid.variants),
        ]
        for variant in variants:
            planned = plan_as_stored(
                pd.DataFrame(self._planned(grid.sweep, variant.settings)), self._runs
            )
            for column, values in grid.only:
                planned = planned[planned[column].isin(values)]
            runs = runs_of_plan(self._runs, planned)
            if len(runs):
                return self._draw_and_write(
                    name, self._results(runs, planned, variant.label), None, saved_as
                )
        return None

    @property
    def results(self) -> Results:
        """All runs, for a plot of any runs.

        Raises:
            NotFoundError: There are no runs, or the condition holds for none of them.
        """
        if self._runs.empty and self._where is not None:
            raise NotFoundError(
                f"where={self._where}: it holds for no run that has a result. Try: another "
                "condition"
            )
        if self._runs.empty and self._sweeps:
            raise NotFoundError(
                f"no run of {' or '.join(self._sweeps)} has a result. Try: dynabro runs, which "
                "names the sweeps"
            )
        if self._runs.empty:
            raise NotFoundError(
                "no run here has a result. Try: dynabro run or dynabro sweep, which make some"
            )
        return self._results(self._runs, self._runs, "")

    def _results(self, runs: pd.DataFrame, planned: pd.DataFrame, label: str) -> Results:
        return Results(
            runs, planned, label, self._engine, self._identities, self._window, self._sweeps
        )

    def _write_files(
        self,
        name: str,
        *,
        results: Results | None,
        drawn: Drawn,
        gaps: str = "",
        labels: bool = False,
    ) -> list[Path]:
        """Write a picture in each format, its numbers as NAME.csv, and the runs that it shows, if
        any, as NAME.runs.csv.

        Args:
            name: The name of the files.
            results: The runs in the picture.
            drawn: The picture and its numbers.
            gaps: The missing runs of a plan, in words.
            labels: True if the picture takes other words for its values.

        Raises:
            SpecError: No format fits a picture without a table, or a picture for print does not
                fit its width.
            CannotWriteError: The folder cannot be created, or a file in it must not be replaced;
                then no file is written.
            StorageError: The disk is full.
        """
        if drawn.table is None and set(self._formats) <= set(TABLES):
            raise SpecError(
                f"format={','.join(self._formats)}: {name} is not a table. Try: matrix, final, "
                "history-dependence or "
                "training-details, or another format"
            )
        lines = [self._title or "", *drawn.figure.get_suptitle().split("\n"), gaps]
        if self._title or gaps:
            write_above(drawn.figure, filter(None, lines))
        if not set(self._formats) <= set(TABLES):
            plain_powers(drawn.figure)
            with warnings.catch_warnings():  # they are named when the picture is written
                warnings.filterwarnings("ignore", GLYPH.pattern)
                fit(drawn.figure, TALLEST if self._width else math.inf)
                why = self._width and problem(drawn.figure)
            if why:
                tries = ["--width page"] if self._width == "column" else []
                tries += ["fewer values with --where"]
                tries += ["shorter words with --label"] if labels else []
                raise SpecError(f"width={self._width}: {why}. Try: {', or '.join(tries)}")
        formats = [kind for kind in self._formats if kind not in TABLES or drawn.table is not None]
        contents = [
            self._table(drawn, kind, name) if kind in TABLES else _picture(drawn, kind)
            for kind in formats
        ]
        tables = {"csv": drawn.numbers} | (
            {} if results is None else {"runs.csv": results.runs[list(KEYS)]}
        )
        contents += map(_csv, tables.values())
        kinds = [(kind, PICTURES.get(kind, HTML)) for kind in formats] + [
            (suffix, CSV) for suffix in tables
        ]
        database = self._engine.url.render_as_string(hide_password=False)
        outputs = [
            Output(self._folder / f"{name}.{suffix}", kind, database, self._force)
            for suffix, kind in kinds
        ]
        for output in outputs:
            output.checked_path()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CannotWriteError(
                f"{self._folder} cannot be written ({error.strerror}). Try: another --out"
            ) from error
        for output, content in zip(outputs, contents, strict=True):
            with output.writing() as file:
                file.write(content)
        return [output.target for output in outputs]

    def _table(self, drawn: Drawn, kind: str, name: str) -> bytes:
        table = pd.DataFrame() if drawn.table is None else drawn.table
        table, bold = chosen_columns(table, drawn.bold, self._columns)
        if kind == TEX:
            return latex_table(table, "\n".join([name, *drawn.notes]), bold, self._width).encode()
        return in_html(table, name, drawn.notes, bold).encode()

    def _draw_and_write(
        self, name: str, results: Results, choice: Choice | None, saved_as: str | None = None
    ) -> Made:
        draw = REGISTRY.entry(name).factory
        with for_print(self._width):
            drawn = draw(results) if choice is None else draw(results, choice)
            if choice is not None:
                choice.check()
            name = saved_as or name
            gaps = "" if choice else _missing(results)
            # the cells without any run are too many words for a picture
            shown = gaps.partition(",")[0]
            files = self._write_files(
                name, results=results, drawn=drawn, gaps=shown, labels=choice is not None
            )
        self._drawn |= dict(zip(results.runs["id"], results.runs["code_digests"], strict=True))
        return Made(name, files, results.runs["id"].nunique(), gaps)


def _missing(results: Results) -> str:
    empty, count = missing(results)
    if not count:
        return ""
    text = f"{count} of {len(results.planned)} planned runs are missing"
    if empty.empty:
        return text
    empty = empty.assign(rule=list(map(rule_of, empty.to_dict("records"))))
    rows = empty[labels_of(results.planned)].itertuples(index=False)
    cells = [" ".join(map(str, row)) for row in rows]
    more = f"; and {len(cells) - MOST_TOLD} more" if len(cells) > MOST_TOLD else ""
    return f"{text}, and no run at all of: {'; '.join(cells[:MOST_TOLD])}{more}"


def _picture(drawn: Drawn, kind: str) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        drawn.figure.savefig(file, format=kind, metadata=UNDATED[kind])
    missing = set()
    for warning in caught:
        if match := GLYPH.match(str(warning.message)):
            missing.add(chr(int(match[1])))
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    if missing:
        letters = "".join(sorted(missing))
        warnings.warn(f"letters that the font lacks are drawn as boxes: {letters}", stacklevel=2)
    return file.getvalue()


def _csv(frame: pd.DataFrame) -> bytes:
    return str(
        frame.to_csv(index=False, lineterminator="\n", float_format=lambda number: f"{number:.10g}")
    ).encode()
