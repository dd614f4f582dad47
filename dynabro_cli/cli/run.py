"""``dynabro run``: one experiment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynabro_cli.cli.output import CheckpointEvery, Database, TryAnyway, print_json, tell_of_code, warn
from dynabro_cli.cli.terminal import say
from dynabro_cli.errors import SpecError
from dynabro_cli.experiment.spec import RunSpec, fields, option

if TYPE_CHECKING:
    from dynabro_cli.experiment.resolve import Run

_FIELDS = fields()
KEY_DIGITS = 10
"""Digits of a run's key that are printed, as in ``dynabro runs``."""


def _field(name: str, metavar: str = "NAME") -> Any:
    """The option of a RunSpec field: its name, its meaning and its default, as the spec has them."""
    info = _FIELDS[name]
    words = info.limits["help"]
    unset = "auto" if "auto:" in words else "the task's"
    default = unset if info.default is None else info.default
    shown = f"{words[0].upper()}{words[1:]}. [default: {default}]"
    return typer.Option(option(name), metavar=metavar, help=shown, show_default=False, rich_help_panel="Experiment")


def run(
    task: Annotated[str | None, _field("task")] = None,
    model: Annotated[str | None, _field("model")] = None,
    method: Annotated[str | None, _field("method")] = None,
    aggregator: Annotated[str | None, _field("aggregator")] = None,
    pre: Annotated[
        list[str] | None,
        typer.Option(
            "--pre",
            "--pre-aggregators",
            metavar="NAME",
            help="Pre-aggregator before the rule; for a chain, repeat it, or join them by +.",
            rich_help_panel="Experiment",
        ),
    ] = None,
    attack: Annotated[str | None, _field("attack")] = None,
    attack_entry: Annotated[str | None, _field("attack_entry", "gradient|message|state|data")] = None,
    switching: Annotated[str | None, _field("switching")] = None,
    clock: Annotated[str | None, _field("clock", "round|computation")] = None,
    workers: Annotated[str | None, _field("workers", "M")] = None,
    byzantine: Annotated[str | None, _field("byzantine", "F")] = None,
    budget: Annotated[str | None, _field("budget", "N")] = None,
    batch_size: Annotated[str | None, _field("batch_size", "B")] = None,
    learning_rate: Annotated[str | None, _field("learning_rate", "ETA")] = None,
    lr_rule: Annotated[str | None, _field("lr_rule", "fixed|adagrad-norm")] = None,
    lr_drop: Annotated[str | None, _field("lr_drop", "FRACTION:FACTOR")] = None,
    weight_decay: Annotated[str | None, _field("weight_decay", "WD")] = None,
    eval_every: Annotated[str | None, _field("eval_every", "N")] = None,
    seed: Annotated[str | None, _field("seed", "N")] = None,
    precision: Annotated[str | None, _field("precision", "fp32|tf32|bf16")] = None,
    participation: Annotated[str | None, _field("participation", "SHARE")] = None,
    data: Annotated[str | None, _field("data")] = None,
    validation: Annotated[str | None, _field("validation", "SHARE")] = None,
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda[:N]", help="Where to compute.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, metavar="N", help="CPU threads. [default: torch's]")] = None,
    compile: Annotated[  # noqa: A002
        str, typer.Option(metavar="auto|on|off", help="Compile kernels: auto decides by the planned work.")
    ] = "auto",
    data_dir: Annotated[
        Path | None,
        typer.Option(envvar="DYNABRO_DATA", metavar="DIR", help="Folder of data sets. [default: in the platform's cache]"),
    ] = None,
    db: Database = "results.db",
    checkpoint_every: CheckpointEvery = 60,
    rerun: Annotated[bool, typer.Option("--rerun", help="Repeat a stored run, and replace its result.")] = False,
    force: TryAnyway = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the stored run as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Run one experiment and store it.

    Components are written NAME or NAME:KEY=VALUE,KEY=VALUE; 'dynabro list' shows them all.

    Example: dynabro run --task mnist --method momentum:beta=0.99 --attack alie --aggregator gm --switching periodic:K=5
    """
    given = {name: value for name, value in locals().items() if name in _FIELDS and value is not None}
    if pre:
        given["pre_aggregators"] = "+".join(pre)
    how = {"data_dir": data_dir, "device": device, "threads": threads, "compile": compile, "checkpoint_every": checkpoint_every}
    _run(RunSpec.from_text(given), how, db, rerun=rerun, force=force, as_json=as_json, quiet=quiet)


def _run(
    spec: RunSpec,
    how: dict[str, Any],
    db: str,
    *,
    rerun: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    from dynabro_cli.cli.progress import RunProgress, tell
    from dynabro_cli.digests import compare
    from dynabro_cli.executors.local import current_commit, execute
    from dynabro_cli.executors.run_log import RunLog
    from dynabro_cli.experiment.resolve import resolve
    from dynabro_cli.simulation.compilation import check_choice
    from dynabro_cli.store.engine import open_for_writing
    from dynabro_cli.store.ownership import heartbeats
    from dynabro_cli.store.recorder import Recorder
    from dynabro_cli.store.side_files import SideFiles
    from dynabro_cli.store.translation import shown

    resolved = resolve(spec)
    check_choice(how["compile"])
    if not quiet:
        tell(f"{_described(resolved)}; to be stored in {shown(db)} with key {resolved.key[:KEY_DIGITS]}")
    if not force:
        _check_room(resolved, how, db, rerun)
    engine = open_for_writing(db)
    files = SideFiles.of(engine.url, warn)
    recorder = Recorder(engine, git_commit=current_commit(), files=files)
    stored = recorder.stored(resolved.key)
    if stored is not None and not rerun:
        tell_of_code(compare([(stored.code_digests, 1)]), "--rerun repeats it")
        _report(db, stored.id, as_json, f"already in {shown(db)}; type --rerun to repeat it")
        return
    spec = resolved.spec
    samples = (spec.workers or 1) * (spec.batch_size or 1)
    files.probe()
    log = RunLog.of(files, resolved.key)
    with RunProgress(spec.budget or 1, samples, quiet=quiet) as progress, heartbeats(engine, [recorder.owner]):
        execute(resolved, recorder, progress, log=log, **how)
    stored = recorder.stored(resolved.key)
    if stored is not None:
        _report(db, stored.id, as_json, f"stored in {shown(db)}")


def _check_room(run: Run, how: dict[str, Any], db: str, rerun: bool) -> None:
    """Raise SpecError if the run needs more memory than is free, unless it is stored and therefore not made."""
    from dynabro_cli.devices import pick_device
    from dynabro_cli.simulation.room import check_room
    from dynabro_cli.simulation.setup import data_directory
    from dynabro_cli.store.repetition import stand

    device = pick_device(how["device"])
    try:
        check_room(run, data_directory(how["data_dir"]), device, compiles=how["compile"] != "off")
    except SpecError:
        if rerun or stand(db, None, "none")[1].of(run.key) != "stored":
            raise


def _described(run: Run) -> str:
    """A run in a line: its cell, and all its other settings."""
    from dynabro_cli.grid.plan import cell

    told = ("task", "method", "aggregator", "pre_aggregators", "attack", "switching", "seed")
    return cell(run, [name for name in _FIELDS if name not in told and getattr(run.spec, name) is not None])


def _report(db: str, run_id: int, as_json: bool, where: str) -> None:
    """Print a run with a result."""
    from dynabro_cli.store.engine import open_read_only
    from dynabro_cli.store.queries import find_run

    row = find_run(open_read_only(db), str(run_id))
    if as_json:
        print_json(row)
        return
    gap = "not finite" if row["final_gap"] is None else row["final_gap"]
    result = f"gap {gap}" if row["final_accuracy"] is None else f"test accuracy {row['final_accuracy']:.4f}"
    say(f"{row['task']}: {row['method']}, {row['aggregator']}, {row['attack']}, {row['switching']}, seed {row['seed']}")
    say(
        f"{row['status']}: {result} after {row['rounds']} rounds and {row['budget_spent']} gradient computations per worker "
        f"({row['switches']} switches) in {row['wall_seconds']:.1f} s"
    )
    say(f"run {run_id}, {where}")
