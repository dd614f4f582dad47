"""``dynabro leaderboard``: methods and rules under the strongest adversary known, in groups that a
test separates.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dynabro_cli.cli.completion import complete, stored_sweeps
from dynabro_cli.cli.options import Database, Force, Json, Plugins
from dynabro_cli.cli.studio import check_name, studio
from dynabro_cli.core.errors import NotFoundError
from dynabro_cli.runs.screen.output import emit, print_json
from dynabro_cli.runs.screen.terminal import hint, say

LEADERBOARD = "leaderboard"


def leaderboard(
    searches: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SEARCH]...",
            help="Stored searches of dynabro search. [default: all with repetitions]",
            autocompletion=complete(stored_sweeps),
        ),
    ] = None,
    db: Database = "results.db",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the files.")] = Path("plots"),
    saved_as: Annotated[
        str, typer.Option("--name", metavar="FILE", help="Name of the files, without suffix.")
    ] = LEADERBOARD,
    formats: Annotated[
        str, typer.Option("--format", metavar="png,pdf,svg,tex,html", help="Formats of the files.")
    ] = "png,tex,html",
    as_json: Json = False,
    force: Force = False,
    plugin: Plugins = None,
) -> None:
    """Show the accuracy that each (method, rule) keeps under the strongest adversary known, and
    which rows a test separates.

    Adversaries that change identities between rounds and within rounds have separate columns.
    The rows come from searches that repeat their best trials ('then'). All stored attacks on the
    same setting with the seeds of the repetitions count, too, also attacks of a plugin. The command
    prints the table, and writes a picture and the numbers as CSV, LaTeX and HTML.

    Example: dynabro leaderboard worst-between worst-within --out plots
    """
    from dynabro_cli.runs.store.open.engine import open_read_only
    from dynabro_cli.runs.store.read.searches import stored_searches, trials_condition

    check_name(saved_as, LEADERBOARD)
    engine = open_read_only(db)
    missing = [name for name in searches or () if trials_condition(engine, [name]) is None]
    if missing:
        stored = stored_searches(engine)
        others = f", but of {', '.join(stored)}" if stored else ""
        raise NotFoundError(
            f"no trial of {' or '.join(missing)} is stored{others}. Try: dynabro search "
            f"{missing[0]}"
        )
    condition = trials_condition(engine, searches) if searches else None
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
