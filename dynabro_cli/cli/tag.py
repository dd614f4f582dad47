"""``dynabro tag``: words of the user on stored runs."""

from __future__ import annotations

from typing import Annotated

import typer

from dynabro_cli.cli.options import Database, Plugins, Where
from dynabro_cli.cli.terminal import say
from dynabro_cli.errors import NotFoundError, SpecError, many


def tag(
    what: Annotated[
        str,
        typer.Argument(
            metavar="RUN|SWEEP|all", help="A run's id or key, a sweep's name, or all runs."
        ),
    ],
    tags: Annotated[
        list[str] | None, typer.Argument(metavar="[TAG]...", help="Tags to add.")
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option("--remove", metavar="TAG", help="Remove this tag; repeat for several."),
    ] = None,
    note: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Replace the note of the runs; an empty text removes it."
        ),
    ] = None,
    where: Where = None,
    db: Database = "results.db",
    plugin: Plugins = None,
) -> None:
    """Tag stored runs, or write a note on them: columns of 'dynabro runs', and of --where.

    Example: dynabro tag all good --note "rates from the appendix" --where "method = 'dynabro'"
    """
    from dynabro_cli.store.open.engine import open_for_writing, open_read_only
    from dynabro_cli.store.origin import check_words, set_words
    from dynabro_cli.store.read.queries import find_run, of_sweeps, query, stored_sweeps

    if not (tags or remove or note is not None):
        raise SpecError("nothing to change. Try: dynabro tag RUN TAG, --remove TAG, or --note TEXT")
    check_words(tags or (), note)
    engine = open_read_only(db)
    if what in stored_sweeps(engine) or what == "all":
        condition = of_sweeps(engine, where, [] if what == "all" else [what])
    else:
        own = f"id = {int(find_run(engine, what)['id'])}"
        condition = own if where is None else f"{own} AND ({where})"
    ids = [row[0] for row in query(engine, f"SELECT id FROM runs WHERE {condition or 'TRUE'}").rows]
    if not ids:
        raise NotFoundError(f"where={where}: it holds for no run. Try: another condition")
    set_words(open_for_writing(db), ids, tags or (), remove or (), note)
    say(f"{many(len(ids), 'run')} changed")
