"""``dynabro plot``: figures from the database."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynabro_cli.cli.completion import complete, figures, stored_sweeps
from dynabro_cli.cli.options import (
    Database,
    Force,
    Json,
    Plugins,
    SameSettings,
    Sweeps,
    TableColumns,
    Where,
    Width,
    expand,
)
from dynabro_cli.cli.studio import ALL, check_name, studio
from dynabro_cli.core.errors import IncompleteError, NotFoundError, SpecError, did_you_mean, many
from dynabro_cli.core.registration.plugins import guarded
from dynabro_cli.runs.screen.output import print_json, tell_of_code
from dynabro_cli.runs.screen.terminal import complain, hint, say

if TYPE_CHECKING:
    from dynabro_cli.answers.figures._api import Choice
    from dynabro_cli.answers.figures._make import Made, Studio

SEARCH = "search"


def _choice(values: dict[str, Any]) -> Choice:
    """Return the options of a plot of any runs."""
    from dynabro_cli.answers.figures._api import Choice

    pairs = {
        "labels": _pairs("label", values["labels"]),
        "colours": _pairs("colour", values["colours"]),
    }
    return Choice(**values | pairs | {"order": tuple(values["order"] or ())})


LOOKS: dict[str, Any] = {
    "x": Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="For plots of any runs: along the axis; also a parameter: method.beta.",
        ),
    ],
    "hue": Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="... compared: a colour, or a row, per value."),
    ],
    "facet": Annotated[str | None, typer.Option(metavar="COLUMN", help="... a panel per value.")],
    "metric": Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="... quantity, such as accuracy, loss, gap, dip, or a plugin's."
        ),
    ],
    "free_y": Annotated[
        bool,
        typer.Option(
            "--free-y", help="... a separate vertical axis for each panel, instead of a shared one."
        ),
    ],
    "labels": Annotated[
        list[str] | None,
        typer.Option(
            "--label", metavar="VALUE=TEXT", help="... words for a value; repeat for several."
        ),
    ],
    "order": Annotated[
        list[str] | None,
        typer.Option(
            metavar="VALUE", help="... the first value of lines, rows or places; repeat for more."
        ),
    ],
    "colours": Annotated[
        list[str] | None,
        typer.Option(
            "--colour",
            metavar="VALUE=COLOUR",
            help="... a colour, such as red or #D55E00; repeat for several.",
        ),
    ],
}
"""Options of plots of any runs, by the field of ``Choice``."""


@expand("choice", LOOKS, _choice, {"free_y": False})
def plot(
    *,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME|SWEEP|all] [SWEEP]...",
            help="A figure of 'dynabro list figures', and stored sweeps for it; or stored "
            "sweeps; all: the paper's figures.",
            autocompletion=complete(figures, stored_sweeps),
        ),
    ] = None,
    sweeps: Sweeps = None,
    db: Database = "results.db",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the files.")] = Path("plots"),
    saved_as: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="FILE",
            help="Name of the files, without suffix. [default: the figure's]",
        ),
    ] = None,
    where: Where = None,
    formats: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="png,pdf,svg,tex,html",
            help="Formats of the files; tex, html: for tables.",
        ),
    ] = "png",
    width: Width = None,
    columns: TableColumns = None,
    check: Annotated[
        bool, typer.Option("--check", help="End with exit code 4 if planned runs are missing.")
    ] = False,
    settings: SameSettings = None,
    choice: Any,
    title: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A line above the picture.")
    ] = None,
    as_json: Json = False,
    force: Force = False,
    plugin: Plugins = None,
) -> None:
    """Draw a figure from the stored runs, with the plotted numbers as NAME.csv and the runs in it
    as NAME.runs.csv.

    A figure of the paper shows the runs of a sweep; missing runs of the grid are reported and
    skipped. Columns are columns of the table runs, or rule: the aggregator with its
    pre-aggregators. Of stored sweeps without a figure, the fields that their grids vary are shown;
    of a stored search, its trials. 'dynabro plot matrix SWEEP' shows which method or rule is best
    under which attack.

    Example: dynabro plot final --x switching --hue method --where "attack = 'sf'"
    """
    name, sweeps = _figure_of(names or [], sweeps or [], db)
    check_name(saved_as, name)
    if not name and (searched := _searches(sweeps, db)):
        where = searched if where is None else f"({searched}) AND ({where})"
        name, sweeps, saved_as = SEARCH, [], saved_as or "-".join(sweeps)
    grids = _grids_of(name, choice, settings)
    looks: dict[str, Any] = {"title": title, "width": width, "columns": columns}
    drawing = studio(db, where, out, formats, sweeps=sweeps, force=force, **looks)
    if not name:
        made = [_sweeps(drawing, choice, saved_as or "-".join(sweeps))]
    else:
        with guarded(f"figure {name!r}"):
            made = (
                _grids(drawing, grids, settings or (), where, saved_as, db)
                if grids
                else [
                    drawing.draw(
                        name, choice, saved_as or (f"{name}-{'-'.join(sweeps)}" if sweeps else None)
                    )
                ]
            )
    tell_of_code(drawing.code)
    _report(made, grids, as_json)
    _tell_next(made[0], as_json)
    if check and (len(made) < len(grids) or any(figure.missing for figure in made)):
        raise IncompleteError(
            "planned runs are missing. Try: dynabro sweep NAME, which makes the runs of a figure"
        )


def _figure_of(names: list[str], sweeps: list[str], db: str) -> tuple[str, list[str]]:
    """Return the name of the figure, empty for sweeps without one, and the sweeps whose runs it
    shows.

    Raises:
        SpecError: The first name is neither a figure nor a stored sweep.
    """
    from dynabro_cli.answers.figures._api import GRIDS, REGISTRY
    from dynabro_cli.runs.store.open.engine import open_read_only
    from dynabro_cli.runs.store.read.queries import listed_sweeps, stored_sweeps

    if not names and not sweeps:
        raise SpecError(
            "plot what? Try: dynabro plot SWEEP, dynabro plot matrix SWEEP, or dynabro list figures"
        )
    figures = [ALL, *REGISTRY.entries()]
    if names and names[0] in figures and not (names[0] in GRIDS and (names[1:] or sweeps)):
        return names[0], [*names[1:], *sweeps]
    try:
        stored = stored_sweeps(open_read_only(db)) if names else []
    except NotFoundError:
        stored = []
    if names and names[0] not in stored:
        hint = did_you_mean(names[0], [*stored, *figures])
        raise SpecError(
            f"unknown figure or sweep {names[0]!r}{hint}. Try: a stored sweep "
            f"({listed_sweeps(stored)}), or a figure of dynabro "
            "list figures; --plugin FILE loads your own"
        )
    return "", [*names, *sweeps]


def _grids_of(name: str, choice: Choice, settings: Sequence[str] | None) -> list[str]:
    """Return the figures of the paper among the figures that a name stands for.

    Raises:
        SpecError: Options do not fit the figures.
    """
    from dynabro_cli.answers.figures._api import GRIDS, REGISTRY, Choice

    grids = [
        figure for figure in (REGISTRY.entries() if name == ALL else [name]) if figure in GRIDS
    ]
    if grids and choice != Choice():
        raise SpecError(
            f"{name} is laid out as the paper has it; --x, --hue, --facet, --metric, --free-y, "
            "--label, --order and --colour "
            "are for the plots of any runs"
        )
    if settings and (name == ALL or not grids):
        raise SpecError(
            f"--set is for the figure of one sweep, and not for {name}. Try: --where for a "
            "condition on the runs"
        )
    return grids


def _searches(names: Sequence[str], db: str) -> str | None:
    """Return an SQL condition on the trials of stored searches; None if one of the names is another
    sweep's.
    """
    from dynabro_cli.runs.store.open.engine import open_read_only
    from dynabro_cli.runs.store.read.searches import trials_condition

    return trials_condition(open_read_only(db), names)


def _pairs(option: str, texts: Sequence[str] | None) -> tuple[tuple[str, str], ...]:
    """Read VALUE=TEXT; a value may contain the sign itself, as ``momentum:beta=0.9``."""
    pairs = [text.rpartition("=") for text in texts or ()]
    for text, (value, sign, given) in zip(texts or (), pairs, strict=True):
        if not (value and sign and given):
            raise SpecError(
                f"{option}={text}: it has the form VALUE=TEXT. Try: --{option} 'dynabro=Ours'"
            )
    return tuple((value, given) for value, _, given in pairs)


def _sweeps(drawing: Studio, choice: Choice, saved_as: str) -> Made:
    """Draw the runs of stored sweeps: final numbers against what their grids vary, or curves if
    only the seed varies.
    """
    from dynabro_cli.answers.figures.any._choice import chosen

    kind, choice = chosen(drawing.results.runs, choice)
    return drawing.draw(kind, choice, saved_as)


def _tell_next(made: Made, as_json: bool) -> None:
    """Say where the plotted numbers are."""
    tables = [str(path) for path in made.files if path.suffix == ".csv"]
    if not as_json and tables:
        hint(
            f"the plotted numbers: {tables[0]}"
            + (f"; the runs: {tables[1]}" if len(tables) > 1 else "")
        )


def _grids(
    studio: Studio,
    names: Sequence[str],
    settings: Sequence[str],
    where: str | None,
    saved_as: str | None,
    db: str,
) -> list[Made]:
    """Draw the figures of sweeps with stored runs.

    Raises:
        NotFoundError: No figure has stored runs, or the condition holds for none of them.
    """
    from dynabro_cli.answers.figures._api import GRIDS

    made = []
    for name in names:
        figure = studio.draw_grid(name, settings, saved_as)
        if figure is None and len(names) == 1:
            raise NotFoundError(_undrawn(name, settings, where, db))
        if figure is None:
            why = (
                f"no run of it is stored. Try: dynabro sweep {GRIDS[name].sweep}"
                if where is None
                else "--where holds for no run of it"
            )
            complain(f"{name}: not drawn, because {why}")
            continue
        made.append(figure)
        if figure.missing:
            complain(f"{name}: {figure.missing}")
    if made:
        return made
    raise NotFoundError(
        "no run of any figure is stored. Try: dynabro list sweeps"
        if where is None
        else f"where={where}: it holds for no run of any figure. Try: another condition"
    )


def _undrawn(name: str, settings: Sequence[str], where: str | None, db: str) -> str:
    """Return why there is no run to draw for a figure of a sweep, and what to type."""
    from dynabro_cli.answers.figures._api import GRIDS
    from dynabro_cli.runs.store.open.engine import open_read_only
    from dynabro_cli.runs.store.read.queries import settings_of

    if where is not None:
        return (
            f"where={where}: it holds for no run of {name} that has a result. Try: another "
            "condition"
        )
    sweep = GRIDS[name].sweep
    count, others = settings_of(open_read_only(db), sweep)
    if count and others and others != list(settings):
        words = " ".join(f"--set {shlex.quote(setting)}" for setting in others)
        return (
            f"{many(count, 'run')} of {sweep} {'is' if count == 1 else 'are'} stored, all "
            f"with other settings. Try: dynabro plot {name} {words}"
        )
    sets = "".join(f" --set {setting}" for setting in settings)
    return f"no run of {name} is stored. Try: dynabro sweep {sweep}{sets}"


def _report(made: Sequence[Made], grids: Sequence[str], as_json: bool) -> None:
    if as_json:
        print_json(
            [{**figure._asdict(), "files": [str(path) for path in figure.files]} for figure in made]
        )
        return
    for figure in made:
        pictures = " ".join(str(path) for path in figure.files if path.suffix != ".csv")
        say(f"{pictures}  ({many(figure.runs, 'run')})" if figure.runs else pictures)
    if len(grids) > 1:
        say(f"{len(made)} of {len(grids)} figures drawn")
