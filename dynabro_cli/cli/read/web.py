"""``dynabro report`` and ``dynabro browse``: stored runs in a browser."""

from __future__ import annotations

import datetime as dt
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from dynabro_cli import __version__
from dynabro_cli.cli.options import Database, Force, Plugins, SweepNames, Sweeps, Where
from dynabro_cli.cli.studio import studio
from dynabro_cli.core.errors import DynabroError, PreemptedError
from dynabro_cli.runs.screen.output import size, tell_of_code
from dynabro_cli.runs.screen.terminal import note, say, write


def report(
    sweeps: SweepNames = None,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="File to write; - for standard output.")
    ] = Path("report.html"),
    where: Where = None,
    named: Sweeps = None,
    db: Database = "results.db",
    force: Force = False,
    plugin: Plugins = None,
) -> None:
    """Write stored runs as one HTML file, to look at in a browser or to send: nothing else is
    needed, not even a network.

    It begins with the answer: which method or rule is best under which attack. Below are
    interactive charts of final scores, curves and Byzantine workers, and the runs in a table to
    sort and filter, with the command that repeats each.

    Example: dynabro report --where "task = 'digits'" --out report.html
    """
    from dynabro_cli.answers.figures.report.gather import content, title_of
    from dynabro_cli.answers.figures.report.page import check_installed, page
    from dynabro_cli.experiment.comparison import compare
    from dynabro_cli.runs.store.care.outputs import HTML, Output
    from dynabro_cli.runs.store.open.translation import shown

    check_installed()
    output = Output(out, HTML, db, force)
    if str(out) != "-":
        # a file that may not be written is refused before the runs are read, which takes long
        output.checked_path()
    results = studio(db, where, out.parent, "png", sweeps=[*(sweeps or ()), *(named or ())]).results
    runs = results.runs
    now = f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M}"
    about = {"database": Path(shown(db)).name, "where": where, "made": now, "version": __version__}
    pieces = page(title_of(runs), about, content(results, where, _describe))
    if str(out) == "-":
        for piece in pieces:
            write(piece.encode())
        return
    with output.writing() as file:
        for piece in pieces:
            file.write(piece.encode())
    tell_of_code(compare((digests, 1) for digests in runs["code_digests"]))
    note(f"{runs['id'].nunique()} runs written to {out} ({size(out.stat().st_size)})")


def _describe(sweep: str) -> str:
    """Return the description of a sweep that comes with the program; empty for another one."""
    from dynabro_cli.experiment.grid.sweep_lookup import load_sweep, shipped

    try:
        return load_sweep(sweep).description if sweep in shipped() else ""
    except DynabroError:
        return ""


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
    from dynabro_cli.answers.figures.report.site import (
        FIRST,
        HOST,
        NAME,
        checked,
        listen,
        serve,
        site,
    )

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
