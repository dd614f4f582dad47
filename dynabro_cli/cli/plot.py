"""``dynabro plot``: figures from the database."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynabro_cli.cli.options import Database, Force, Json, Plugins, SameSettings, Where
from dynabro_cli.cli.output import print_json, tell_of_code
from dynabro_cli.cli.terminal import complain, hint, say
from dynabro_cli.components.plugin_errors import guarded
from dynabro_cli.errors import IncompleteError, NotFoundError, SpecError, many

if TYPE_CHECKING:
    from dynabro_cli.components.digests import CodeComparison
    from dynabro_cli.figures._api import Choice
    from dynabro_cli.figures._make import Made, Studio

ALL = "all"
SWEEP_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
METRICS = (
    *("accuracy", "loss", "gap", "dip", "largest_dip", "recovery_rounds", "recovery_budget", "worst_window", "acceptance"),
    "aggregation_error",
)
"""Metrics of ``figures.any._choice``, whose import is slow."""


def plot(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|SWEEP|all",
            help="A figure of 'dynabro list figures', or a stored sweep; all: the figures of the paper's grids.",
        ),
    ],
    db: Database = "results.db",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the files.")] = Path("plots"),
    where: Where = None,
    formats: Annotated[
        str, typer.Option("--format", metavar="png,pdf,svg,tex", help="Formats of the files; tex: LaTeX, for tables.")
    ] = "png",
    width: Annotated[
        str | None, typer.Option(metavar="column|page", help="Width for print, with text of 8 pt. [default: the figure's own]")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="End with exit code 4 if planned runs are missing.")] = False,
    settings: SameSettings = None,
    x: Annotated[str | None, typer.Option(metavar="COLUMN", help="For plots of any runs: column along the axis.")] = None,
    hue: Annotated[str | None, typer.Option(metavar="COLUMN", help="... column with a line, or a row, per value.")] = None,
    facet: Annotated[str | None, typer.Option(metavar="COLUMN", help="... column with a panel per value.")] = None,
    metric: Annotated[str | None, typer.Option(metavar="NAME", help=f"... quantity to plot: {', '.join(METRICS)}.")] = None,
    free_y: Annotated[
        bool, typer.Option("--free-y", help="... a vertical axis of its own for each panel, instead of a shared one.")
    ] = False,
    as_json: Json = False,
    force: Force = False,
    plugin: Plugins = None,
) -> None:
    """Draw a figure from the stored runs, with the plotted numbers as NAME.csv and the runs in it as NAME.runs.csv.

    A figure of the paper shows the runs of a sweep; missing runs of the grid are reported and skipped. Columns are columns of
    the table runs. Of a stored sweep without a figure of its own, the columns that its grid varies are shown.

    Example: dynabro plot final --x switching --hue method --facet aggregator --where "attack = 'sf'"
    """
    from dynabro_cli.figures._api import GRIDS, REGISTRY, Choice

    choice = Choice(x, hue, facet, metric, free_y)
    if name != ALL and name not in REGISTRY.entries() and _is_stored(name, db):
        made_one, code = _sweep(name, choice, db, where, out, formats, width=width, force=force)
        tell_of_code(code)
        _report([made_one], [], as_json)
        _tell_next(made_one, as_json)
        return
    figures = list(REGISTRY.entries()) if name == ALL else [REGISTRY.entry(name).name]
    grids = [figure for figure in figures if figure in GRIDS]
    if grids and choice != Choice():
        raise SpecError(
            f"{name} is laid out as the paper has it; --x, --hue, --facet, --metric and --free-y are for the plots of any runs"
        )
    if settings and (name == ALL or not grids):
        raise SpecError(f"--set is for the figure of one sweep, and not for {name}. Try: --where for a condition on the runs")
    drawing = studio(db, where, out, formats, width=width, force=force)
    with guarded(f"figure {name!r}"):
        made = _grids(drawing, grids, settings or (), where) if grids else [drawing.draw(name, choice)]
    tell_of_code(drawing.code)
    _report(made, grids, as_json)
    _tell_next(made[0], as_json)
    if check and (len(made) < len(grids) or any(one.missing for one in made)):
        raise IncompleteError("planned runs are missing. Try: dynabro sweep NAME, which makes the runs of a figure")


def studio(db: str, where: str | None, out: Path, formats: str, *, width: str | None = None, force: bool = False) -> Studio:
    """Return what draws the runs of a database for which the condition holds."""
    from dynabro_cli.figures._make import Studio
    from dynabro_cli.store.engine import open_read_only

    kinds = formats.split(",")
    return Studio(open_read_only(db), where, out, kinds, _planned, _identities, window, width=width, force=force)


def _is_stored(sweep: str, db: str) -> bool:
    """Return True if a run of the sweep is stored; False for a database that does not exist."""
    from dynabro_cli.store.engine import open_read_only
    from dynabro_cli.store.queries import count_runs

    if not re.fullmatch(SWEEP_NAME, sweep):
        return False
    try:
        return count_runs(open_read_only(db), f"sweep = '{sweep}'") > 0
    except NotFoundError:
        return False


def _sweep(
    name: str, choice: Choice, db: str, where: str | None, out: Path, formats: str, *, width: str | None, force: bool
) -> tuple[Made, CodeComparison]:
    """Draw the runs of a stored sweep: final numbers against what its grid varies, or curves if only the seed varies."""
    from dynabro_cli.figures.any._choice import COLUMNS

    condition = f"sweep = '{name}'" + ("" if where is None else f" AND ({where})")
    drawing = studio(db, condition, out, formats, width=width, force=force)
    free = [column for column in drawing.varied(COLUMNS) if column not in (choice.x, choice.hue, choice.facet)]
    if not free and choice.x is None:
        return drawing.draw_any("curves", choice, saved_as=name), drawing.code

    def take(given: str | None, *first: str) -> str | None:
        """Return the given column, or the first of those that vary and are not shown yet."""
        if given is not None or not free:
            return given
        found = next((column for column in first if column in free), free[0])
        free.remove(found)
        return found

    x = take(choice.x, "switching", "learning_rate", "byzantine", "participation", "budget")
    hue = take(choice.hue, "method", "aggregator", "attack")
    facet = take(choice.facet, "task", "attack", "data")
    return drawing.draw_any("final", dataclasses.replace(choice, x=x, hue=hue, facet=facet), saved_as=name), drawing.code


def _tell_next(made: Made, as_json: bool) -> None:
    """Say where the plotted numbers are."""
    tables = [str(path) for path in made.files if path.suffix == ".csv"]
    if not as_json and tables:
        hint(f"the plotted numbers: {tables[0]}" + (f"; the runs: {tables[1]}" if len(tables) > 1 else ""))


def _grids(studio: Studio, names: Sequence[str], settings: Sequence[str], where: str | None) -> list[Made]:
    """Draw the figures of sweeps with stored runs.

    Raises:
        NotFoundError: No figure has stored runs, or the condition holds for none of them.
    """
    from dynabro_cli.figures._api import GRIDS

    made = []
    sets = "".join(f" --set {setting}" for setting in settings)
    for name in names:
        one = studio.draw_grid(name, settings)
        if one is None and len(names) == 1 and where is not None:
            raise NotFoundError(f"where={where}: it holds for no run of {name} that has a result. Try: another condition")
        if one is None and len(names) == 1:
            raise NotFoundError(f"no run of {name} is stored. Try: dynabro sweep {GRIDS[name].sweep}{sets}")
        if one is None and where is not None:
            complain(f"{name}: not drawn, as --where holds for no run of it")
        elif one is None:
            complain(f"{name}: not drawn, as no run of it is stored; dynabro sweep {GRIDS[name].sweep} makes them")
        else:
            made.append(one)
            if one.missing:
                complain(f"{name}: {one.missing}")
    if not made and where is not None:
        raise NotFoundError(f"where={where}: it holds for no run of any figure. Try: another condition")
    if not made:
        raise NotFoundError("no run of any figure is stored. Try: dynabro list sweeps")
    return made


def _report(made: Sequence[Made], grids: Sequence[str], as_json: bool) -> None:
    if as_json:
        print_json([{**one._asdict(), "files": [str(path) for path in one.files]} for one in made])
        return
    for one in made:
        pictures = " ".join(str(path) for path in one.files if path.suffix != ".csv")
        say(f"{pictures}  ({many(one.runs, 'run')})" if one.runs else pictures)
    if len(grids) > 1:
        say(f"{len(made)} of {len(grids)} figures drawn")


def _planned(sweep: str, settings: Sequence[str]) -> list[dict[str, Any]]:
    from dynabro_cli.grid.plan import plan
    from dynabro_cli.grid.sweep_lookup import load_sweep

    return plan(load_sweep(sweep, settings)).rows


def _identities(run: Any, ticks: int) -> Any:
    from dynabro_cli.experiment.schedule import identities

    return identities(run, ticks)


def window(run: Any) -> Any:
    """Measure how many rounds one gradient influences in a run, as ``theory.history`` does."""
    from dynabro_cli.theory.history import window_of

    return window_of(run)
