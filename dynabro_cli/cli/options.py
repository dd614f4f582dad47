"""Options that several commands have."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import pkgutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from dynabro_cli.cli.completion import complete, stored_sweeps
from dynabro_cli.components import metrics as shipped_metrics
from dynabro_cli.core.errors import SpecError, did_you_mean
from dynabro_cli.core.registration import parse_whole, plugins
from dynabro_cli.runs.executors._api import Options
from dynabro_cli.runs.screen.terminal import use

Command = Callable[..., None]


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
        help="Load components of your own; repeat for several. DYNABRO_PLUGINS names some for "
        "every command.",
        show_default=False,
    ),
]
"""An option of every command: components are looked up by name, in stored runs, too."""
SHIPPED_METRICS = tuple(module.name for module in pkgutil.iter_modules(shipped_metrics.__path__))


def _load_metrics(given: list[str] | None) -> list[str] | None:
    for name in given or ():
        if name not in SHIPPED_METRICS:
            hint, legal = did_you_mean(name, SHIPPED_METRICS), ", ".join(SHIPPED_METRICS)
            raise SpecError(
                f"metrics={name}: not a metric of dynabro{hint}. Try: {legal}, or --plugin "
                "FILE with @metrics"
            )
    plugins.load(f"{shipped_metrics.__name__}.{name}" for name in given or ())
    return given


Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metrics",
        metavar="NAME",
        callback=_load_metrics,
        help="Store more numbers at every evaluation; classes: test accuracy of each class and "
        "worker. Run keys do not change.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON: a list with one object per row.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV with a header line.")]
Database = Annotated[
    str,
    typer.Option(
        "--db",
        envvar="DYNABRO_DB",
        metavar="FILE|URL",
        callback=use,
        help="Results database: a file, or an SQLAlchemy URL.",
    ),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Replace a file of another kind, too; databases, their files, and sweeps stay.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what is to do, and do nothing.")]
Jobs = Annotated[
    str,
    typer.Option(metavar="N|auto", help="Runs at a time, one process each; auto: one per core."),
]
SameSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="For a sweep that was run with the same --set; repeat for several.",
    ),
]
Where = Annotated[
    str | None,
    typer.Option("--where", metavar="SQL", help="Only rows for which this SQL condition holds."),
]
Sweeps = Annotated[
    list[str] | None,
    typer.Option(
        "--sweep",
        metavar="NAME",
        help="Only runs of this stored sweep; repeat for several.",
        autocompletion=complete(stored_sweeps),
    ),
]
Width = Annotated[
    str | None,
    typer.Option(
        "--width",
        metavar="column|page",
        help="Width of pictures and LaTeX for print, with text of 8 pt. [default: their own]",
    ),
]
TableColumns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="NAME,NAME",
        help="Columns of a table, besides those that name its rows. [default: all]",
    ),
]
SweepNames = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SWEEP]...",
        help="Stored sweeps. [default: all runs]",
        autocompletion=complete(stored_sweeps),
    ),
]
"""The same as ``Sweeps``, by position."""
RetryFailed = Annotated[
    bool, typer.Option("--retry-failed", help="Repeat runs that are stored as failed.")
]
RerunChanged = Annotated[
    bool,
    typer.Option(
        "--rerun-changed",
        help="Repeat runs that were made with other code of a component, or with other data. A "
        "change of the engine does not "
        "count: it often changes the speed only.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda[:N]", help="Where to compute.")]
DataDir = Annotated[
    Path | None,
    typer.Option(
        envvar="DYNABRO_DATA",
        metavar="DIR",
        help="Folder of data sets. [default: in the platform's cache]",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Set a field of every run, or seeds=0..4, in place of the file's own; repeat for "
        "several fields, or for several "
        "values of one.",
    ),
]
MAKING: dict[str, Any] = {
    "jobs": Annotated[
        str | None,
        typer.Option(
            metavar="N|auto",
            help="Runs at a time, one process each; auto: one per core, or --jobs-per-gpu on "
            "every GPU; 0: in this "
            "process, for a debugger. [default: auto]",
        ),
    ],
    "device": Device,
    "data_dir": DataDir,
    "threads": Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="CPU threads of each run. [default: the cores, shared out; 1 for a small model]",
        ),
    ],
    "compile": Annotated[
        str,
        typer.Option(
            metavar="auto|on|off", help="Compile kernels: auto decides by the planned work."
        ),
    ],
    "jobs_per_gpu": Annotated[
        str | None,
        typer.Option(
            metavar="N|auto",
            help="Runs that share a GPU, if --jobs is auto; auto: by cores, memory and the "
            "size of the runs. [default: auto]",
        ),
    ],
    "checkpoint_every": Annotated[
        float,
        typer.Option(min=0.01, metavar="SECONDS", help="Seconds between two checkpoints of a run."),
    ],
    "timeout": Annotated[
        float | None,
        typer.Option(min=1, metavar="SECONDS", help="Time limit of a run. [default: no limit]"),
    ],
    "max_retries": Annotated[
        int, typer.Option(min=0, metavar="N", help="Number of retries of a run whose process died.")
    ],
    "tags": Annotated[
        list[str] | None,
        typer.Option(
            "--tag", metavar="TAG", help="Tag the runs that are made; repeat for several."
        ),
    ],
    "note": Annotated[
        str | None, typer.Option(metavar="TEXT", help="A note on the runs that are made.")
    ],
    "log": Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOOL:PLACE",
            help="Also log evaluations while runs are made: tensorboard:DIR, wandb:PROJECT or "
            "mlflow:URI, such as tensorboard:logs; repeat for several.",
            show_default=False,
        ),
    ],
    "executor": Annotated[
        str,
        typer.Option(metavar="local|ray", help="Make runs on this machine, or in a Ray cluster."),
    ],
    "address": Annotated[
        str | None,
        typer.Option(
            metavar="auto|ray://HOST:PORT|HOST:PORT",
            help="The Ray cluster, with --executor ray. [default: auto]",
        ),
    ],
    "force": Annotated[
        bool,
        typer.Option("--force", help="Start even if the estimated memory exceeds the free memory."),
    ],
}
"""Options of the commands that make runs, by the field of ``Options``, which has their defaults."""


def making(
    hints: Mapping[str, Any], *, without: Collection[str] = (), **defaults: Any
) -> Callable[[Command], Command]:
    """Give a command the options ``MAKING`` in place of its parameter ``how``, which gets them as
    ``Options``.

    Args:
        hints: Options that replace the usual ones of ``MAKING``.
        without: Options that the command does not have.
        defaults: Defaults that replace the defaults of ``Options``.
    """
    usual = (
        {field.name: field.default for field in dataclasses.fields(Options)}
        | {"tags": None, "log": None}
        | defaults
    )
    return expand(
        "how",
        {name: hints.get(name, hint) for name, hint in MAKING.items() if name not in without},
        _how,
        usual,
    )


def expand(
    name: str,
    hints: Mapping[str, Any],
    collect: Callable[[dict[str, Any]], Any],
    defaults: Mapping[str, Any],
) -> Callable[[Command], Command]:
    """Give a command several options in place of its parameter ``name``, which gets what
    ``collect`` makes of their values.

    Args:
        name: The parameter.
        hints: The type of each option, annotated as typer has it.
        collect: Makes one value from the options by name.
        defaults: Defaults of the options; None if one is missing.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def taking(**values: Any) -> None:
            collected = collect({option: values.pop(option) for option in hints})
            command(**values, **{name: collected})

        # only keyword-only parameters may stand without a default after one that has a default
        kind = inspect.Parameter.KEYWORD_ONLY
        options = [
            inspect.Parameter(parameter, kind, default=defaults.get(parameter), annotation=hint)
            for parameter, hint in hints.items()
        ]
        parameters: list[inspect.Parameter] = []
        for each in inspect.signature(command, eval_str=True).parameters.values():
            parameters += options if each.name == name else [each.replace(kind=kind)]
        taking.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        # typer looks types up here, and not in the signature alone
        taking.__annotations__ = {each.name: each.annotation for each in parameters}
        return taking

    return decorate


def _how(values: dict[str, Any]) -> Options:
    """Return the options of making runs from their values as typed."""
    tags, note = values.pop("tags", None), values.get("note")
    if tags or note is not None:
        from dynabro_cli.runs.store.write.origin import check_words

        tags = check_words(tags or (), note)
    if values.get("log"):
        from dynabro_cli.runs.trackers import check_logs

        values["log"] = check_logs(values["log"])
    if isinstance(values["jobs"], str):
        values["jobs"] = jobs_of(values["jobs"])
    if isinstance(values.get("jobs_per_gpu"), str):
        values["jobs_per_gpu"] = _count(
            "jobs_per_gpu", values["jobs_per_gpu"], 1, "a whole number from 1, or auto"
        )
    return Options(**(values | {"log": values.get("log") or ()}), tags=tags or ())


def jobs_of(text: str) -> int | None:
    """Return the number of runs at a time from an option's text; None for the usual number, 0 for
    this process.
    """
    return _count("jobs", text, 0, "a whole number, 0 for this process, or auto")


def _count(name: str, text: str, least: int, legal: str) -> int | None:
    """Return the number in an option's text, at least ``least``; None for ``auto``."""
    try:
        count = None if text == "auto" else parse_whole(text)
    except ValueError:
        count = -1
    if count is not None and count < least:
        raise SpecError(f"{name}={text} is not legal. Try: --{name.replace('_', '-')} with {legal}")
    return count
