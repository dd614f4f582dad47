"""``dynabro demo``: a first comparison, with a table and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynabro_cli.cli.options import Database, Force, Jobs, Plugins, Quiet, jobs_of
from dynabro_cli.cli.studio import studio
from dynabro_cli.core.errors import SweepError
from dynabro_cli.runs.making import make_runs
from dynabro_cli.runs.screen import runs_shown
from dynabro_cli.runs.screen.output import emit
from dynabro_cli.runs.screen.terminal import complain, note, say, to_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynabro_cli.experiment.resolve import Run

SWEEP = "demo"
HEADS = {"static": "no switching", "periodic:K=10": "a switch every 10 rounds"}
"""The switching strategies, in words."""
HEAD = (
    "Test accuracy on digits. 8 of 17 workers are Byzantine: they flip the signs of",
    "their gradients (attack sf). The server takes a trimmed mean (aggregator cwtm):",
)
NOTE = (
    "The learning rates are the paper's. The attack enters at the gradient, so a worker's",
    "momentum keeps its false gradients for a while after the worker has become honest.",
    "SGD and DynaBRO keep nothing. An attack can also enter elsewhere: dynabro show sf",
)
NAMES = {"sgd": "SGD", "momentum": "momentum 0.9", "dynabro": "DynaBRO"}
"""The methods, in words."""


def demo(
    db: Database = "results.db",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the picture.")] = Path(
        "plots"
    ),
    jobs: Jobs = "auto",
    force: Force = False,
    quiet: Quiet = False,
    plugin: Plugins = None,
) -> None:
    """Compare SGD, momentum and DynaBRO on handwritten digits, with and without switching: a table
    and a picture.

    The six runs of the sweep 'demo' are stored like any other; stored runs are not repeated.
    Nothing is downloaded.

    Example: dynabro demo
    """
    if not quiet:
        note("six runs on handwritten digits; they take about a minute on two cores")
    from dynabro_cli.answers.figures._api import Choice
    from dynabro_cli.experiment.grid.plan import plan
    from dynabro_cli.experiment.grid.sweep_lookup import load_sweep
    from dynabro_cli.runs.executors._api import Options

    planned = plan(load_sweep(SWEEP))
    options = Options(jobs=jobs_of(jobs), sweep=SWEEP, sweep_text=planned.sweep.text)
    outcomes = make_runs(planned, db, options, complain, runs_shown(quiet=quiet))
    if any(outcome.status not in ("finished", "diverged", "stored") for outcome in outcomes):
        raise SweepError("a run of the demo failed. Try: dynabro sweep demo --retry-failed")
    runs = [outcome.run for outcome in outcomes]
    keys = ", ".join(f"'{run.key}'" for run in runs)
    say(*HEAD, "")
    emit(("method", "learning rate", *HEADS.values()), _table(runs, db, keys))
    say("", *NOTE)
    drawn = studio(db, f"run_key IN ({keys})", out, "png", force=force).draw(
        "final", Choice("switching", "method", None, None), saved_as=SWEEP
    )
    say("", str(drawn.files[0]))
    note(to_type("next: dynabro runs"))
    note(
        to_type(
            "      dynabro run --method dynabro --attack alie --switching "
            '"bernoulli:p=0.01,D=10,delta_max=0.48"'
        )
    )
    note("      dynabro new aggregator my-rule")


def _table(runs: Sequence[Run], db: str, keys: str) -> list[list[Any]]:
    """Return a row for each method: its learning rate, and an accuracy for each switching
    strategy.
    """
    from dynabro_cli.runs.store.open.engine import open_read_only
    from dynabro_cli.runs.store.read.queries import query

    stored = query(
        open_read_only(db), f"SELECT run_key, final_accuracy FROM runs WHERE run_key IN ({keys})"
    )
    accuracy = {str(key): "-" if value is None else f"{value:.3f}" for key, value in stored.rows}
    rows: dict[str, list[Any]] = {}
    for run in runs:
        row = rows.setdefault(
            run.method.name, [NAMES[run.method.name], f"{run.spec.learning_rate:g}"]
        )
        row.append(accuracy.get(run.key, "-"))
    return list(rows.values())
