"""``dynabro plot``: figures from the database."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynabro_cli.cli.output import Database, Force, Json, Where, print_json, tell_of_code
from dynabro_cli.cli.terminal import complain, say
from dynabro_cli.errors import IncompleteError, NotFoundError, SpecError

if TYPE_CHECKING:
    from dynabro_cli.figures._make import Made, Studio

ALL = "all"
METRICS = (
    *("accuracy", "loss", "gap", "dip", "largest_dip", "recovery_rounds", "recovery_budget", "worst_window", "acceptance"),
    "aggregation_error",
)
"""Metrics of ``figures._any``, whose import is slow."""


def plot(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME|all", help="A figure of 'dynabro list figures'; all: the figures of the paper's grids."),
    ],
    db: Database = "results.db",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the files.")] = Path("plots"),
    where: Where = None,
    formats: Annotated[str, typer.Option("--format", metavar="png,pdf,svg", help="Formats of the pictures.")] = "png",
    check: Annotated[bool, typer.Option("--check", help="End with exit code 4 if planned runs are missing.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="FIELD=VALUE", help="For the runs of a sweep that was run with the same --set; repeat for several."
        ),
    ] = None,
    x: Annotated[str | None, typer.Option(metavar="COLUMN", help="For plots of any runs: column along the axis.")] = None,
    hue: Annotated[str | None, typer.Option(metavar="COLUMN", help="... column with a line, or a row, per value.")] = None,
    facet: Annotated[str | None, typer.Option(metavar="COLUMN", help="... column with a panel per value.")] = None,
    metric: Annotated[str | None, typer.Option(metavar="NAME", help=f"... quantity to plot: {', '.join(METRICS)}.")] = None,
    as_json: Json = False,
    force: Force = False,
) -> None:
    """Draw a figure from the stored runs, with the plotted numbers as NAME.csv and the runs in it as NAME.runs.csv.

    A figure of the paper shows the runs of a sweep; missing runs of the grid are reported and skipped. Columns are columns of
    the table runs.

    Example: dynabro plot final --x switching --hue method --facet aggregator --where "attack = 'sf'"
    """
    from dynabro_cli.figures._api import GRIDS, REGISTRY, Choice
    from dynabro_cli.figures._make import Studio
    from dynabro_cli.store.engine import open_read_only

    choice = Choice(x, hue, facet, metric)
    figures = list(REGISTRY.entries()) if name == ALL else [REGISTRY.entry(name).name]
    grids = [figure for figure in figures if figure in GRIDS]
    if grids and choice != Choice():
        raise SpecError(
            f"{name} is laid out as the paper has it; --x, --hue, --facet and --metric are for the plots of any runs"
        )
    if settings and (name == ALL or not grids):
        raise SpecError(f"--set is for the figure of one sweep, and not for {name}; type --where for a condition on the runs")
    studio = Studio(open_read_only(db), where, out, formats.split(","), _planned, _identities, _window, force=force)
    made = _grids(studio, grids, settings or (), where) if grids else [studio.draw(name, choice)]
    tell_of_code(studio.code)
    _report(made, grids, as_json)
    if check and (len(made) < len(grids) or any(one.missing for one in made)):
        raise IncompleteError("planned runs are missing; dynabro sweep NAME makes the runs of a figure")


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
            raise NotFoundError(f"where={where}: it holds for no run of {name} that has a result; type another condition")
        if one is None and len(names) == 1:
            raise NotFoundError(f"no run of {name} is stored; dynabro sweep {GRIDS[name].sweep}{sets} makes them")
        if one is None and where is not None:
            complain(f"{name}: not drawn, as --where holds for no run of it")
        elif one is None:
            complain(f"{name}: not drawn, as no run of it is stored; dynabro sweep {GRIDS[name].sweep} makes them")
        else:
            made.append(one)
            if one.missing:
                complain(f"{name}: {one.missing}")
    if not made and where is not None:
        raise NotFoundError(f"where={where}: it holds for no run of any figure; type another condition")
    if not made:
        raise NotFoundError("no run of any figure is stored; dynabro list sweeps lists the sweeps")
    return made


def _report(made: Sequence[Made], grids: Sequence[str], as_json: bool) -> None:
    if as_json:
        print_json([{**one._asdict(), "files": [str(path) for path in one.files]} for one in made])
        return
    for one in made:
        pictures = " ".join(str(path) for path in one.files if path.suffix != ".csv")
        say(f"{pictures}  ({one.runs} run{'s' if one.runs > 1 else ''})" if one.runs else pictures)
    if len(grids) > 1:
        say(f"{len(made)} of {len(grids)} figures drawn")


def _planned(sweep: str, settings: Sequence[str]) -> list[dict[str, Any]]:
    from dynabro_cli.grid.plan import plan
    from dynabro_cli.grid.sweep_lookup import load_sweep

    return plan(load_sweep(sweep, settings)).rows


def _identities(run: Any, ticks: int) -> Any:
    from dynabro_cli.experiment.schedule import identities

    return identities(run, ticks)


def _window(run: Any) -> Any:
    from dynabro_cli.theory.history import window_of

    return window_of(run)
