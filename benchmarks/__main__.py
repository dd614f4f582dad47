"""The command line of the benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.recording import measure

app = typer.Typer(help=__doc__, no_args_is_help=True)


@app.callback()
def benchmarks() -> None:
    """Measurements that anyone can repeat."""


@app.command()
def recording(
    task: str = "mnist",
    budget: int = 200,
    repeats: int = 3,
    data_dir: Annotated[Path | None, typer.Option(envvar="DYNABRO_DATA")] = None,
) -> None:
    """Compare a run with the database on and off, in turn, in one process; the method is sgd, which has the most rows."""
    print(measure(task, budget, repeats, data_dir))


app()
