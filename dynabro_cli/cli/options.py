"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dynabro_cli.cli.terminal import use
from dynabro_cli.components import plugins


def _load(given: list[str] | None) -> list[str] | None:
    """Load the plugins of the environment and of the command line, before the command runs."""
    plugins.load([*plugins.from_environment(), *(given or ())])
    return given


Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="FILE|MODULE",
        callback=_load,
        help="Load components of your own; repeat for several. DYNABRO_PLUGINS names some for every command.",
        show_default=False,
    ),
]
"""An option of every command: components are looked up by name, in stored runs, too."""
Json = Annotated[bool, typer.Option("--json", help="Print JSON: a list with one object per row.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV with a header line.")]
Database = Annotated[
    str,
    typer.Option(
        "--db", envvar="DYNABRO_DB", metavar="FILE|URL", callback=use, help="Results database: a file, or an SQLAlchemy URL."
    ),
]
CheckpointEvery = Annotated[
    float, typer.Option("--checkpoint-every", min=0.01, metavar="SECONDS", help="Seconds between two checkpoints of a run.")
]
Force = Annotated[
    bool, typer.Option("--force", help="Replace a file of another kind, too; databases, their files, and sweeps stay.")
]
TryAnyway = Annotated[bool, typer.Option("--force", help="Start even if the estimated memory exceeds the free memory.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what is to do, and do nothing.")]
CompileKernels = Annotated[str, typer.Option(metavar="auto|on|off", help="Compile kernels: auto decides by the planned work.")]
Jobs = Annotated[str, typer.Option(metavar="N|auto", help="Runs at a time, one process each; auto: as many as cores.")]
Timeout = Annotated[float | None, typer.Option(min=1, metavar="SECONDS", help="Time limit of a run. [default: no limit]")]
MaxRetries = Annotated[
    int, typer.Option("--max-retries", min=0, metavar="N", help="Number of retries of a run whose process died.")
]
SameSettings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="For a sweep that was run with the same --set; repeat for several."),
]
Where = Annotated[str | None, typer.Option("--where", metavar="SQL", help="Only rows for which this SQL condition holds.")]
Sweeps = Annotated[
    list[str] | None, typer.Option("--sweep", metavar="NAME", help="Only runs of this stored sweep; repeat for several.")
]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="Tag the runs that are made; repeat for several.")]
Note = Annotated[str | None, typer.Option(metavar="TEXT", help="A note on the runs that are made.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda[:N]", help="Where to compute.")]
DataDir = Annotated[
    Path | None,
    typer.Option(envvar="DYNABRO_DATA", metavar="DIR", help="Folder of data sets. [default: in the platform's cache]"),
]
