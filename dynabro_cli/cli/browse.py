"""``dynabro browse``: the database in a browser."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer

from dynabro_cli.cli.options import Database, Plugins
from dynabro_cli.cli.terminal import note, say
from dynabro_cli.errors import PreemptedError


def browse(
    db: Database = "results.db",
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, metavar="N", help="Port of this machine; 0 for any that is free."
        ),
    ] = 8001,
    open_it: Annotated[
        bool, typer.Option("--open", help="Open the page in the default browser, too.")
    ] = False,
    plugin: Plugins = None,
) -> None:
    """Show the database in a browser until Ctrl-C, also during runs. Nothing can be written.

    Only this machine can open the pages, which are made by Datasette: tables with the meaning of
    every column, facets, and SQL.

    Example: dynabro browse --db results.db --port 0
    """
    from dynabro_cli.figures.report.site import FIRST, HOST, NAME, checked, listen, serve, site

    path = checked(db)
    with listen(port) as bound:
        url = f"http://{HOST}:{bound.getsockname()[1]}/{NAME}/{FIRST}"
        app = site(path)
        say(url, flush=True)
        note(f"{path} is shown there, read-only, until Ctrl-C")
        if open_it:
            webbrowser.open(url)
        try:
            serve(app, bound)
        except KeyboardInterrupt:  # the usual end
            return
        except PreemptedError:
            raise PreemptedError(
                "terminated; the pages are closed, and the database is as it was"
            ) from None
