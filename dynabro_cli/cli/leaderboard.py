"""``dynabro leaderboard``: rank methods and rules by the strongest adversary that searches have found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dynabro_cli.cli.options import Database, Force, Json, Plugins
from dynabro_cli.cli.output import emit, print_json
from dynabro_cli.cli.plot import check_name, studio
from dynabro_cli.cli.terminal import hint, say
from dynabro_cli.errors import NotFoundError

LEADERBOARD = "leaderboard"


def leaderboard(
    searches: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SEARCH]...", help="Stored searches of dynabro search. [default: all with repetitions]"),
    ] = None,
    db: Database = "results.db",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the files.")] = Path("plots"),
    saved_as: Annotated[str, typer.Option("--name", metavar="FILE", help="Name of the files, without suffix.")] = LEADERBOARD,
    formats: Annotated[
        str, typer.Option("--format", metavar="png,pdf,svg,tex,html", help="Formats of the files.")
    ] = "png,tex,html",
    as_json: Json = False,
    force: Force = False,
    plugin: Plugins = None,
) -> None:
    """Rank each (method, rule) by the accuracy that it keeps under the strongest adversary that searches have found.

    Static and switching adversaries have separate columns, next to the worst of all other stored attacks on the same setting.
    Only searches that repeat their best trials ('then') count. The command prints the table, and writes a picture and the
    numbers as CSV, LaTeX and HTML.

    Example: dynabro leaderboard worst-static worst-switching --out plots
    """
    from dynabro_cli.store.open.engine import open_read_only
    from dynabro_cli.store.read.searches import named

    check_name(saved_as, LEADERBOARD)
    engine = open_read_only(db)
    missing = [name for name in searches or () if named(engine, [name]) is None]
    if missing:
        raise NotFoundError(f"no trial of {' or '.join(missing)} is stored. Try: dynabro search {missing[0]}")
    condition = named(engine, searches) if searches else None
    drawing = studio(db, condition, out, formats, force=force)
    drawn, made = drawing.draw_record(LEADERBOARD, saved_as)
    if as_json:
        print_json(drawn.numbers.to_dict("records"))
        return
    if drawn.table is not None:
        emit(tuple(drawn.table.columns), drawn.table.itertuples(index=False))
    for line in drawn.notes:
        say(line)
    hint(f"written: {' '.join(str(path) for path in made.files)}")
