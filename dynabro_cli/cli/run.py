"""``dynabro run``: one experiment."""

from __future__ import annotations

import functools
import inspect
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynabro_cli.cli.options import CheckpointEvery, CompileKernels, Database, DataDir, Device, Plugins, Quiet
from dynabro_cli.cli.output import named_database, print_json, tell_of_code, warn
from dynabro_cli.cli.terminal import hint, say
from dynabro_cli.errors import NotFoundError, SpecError
from dynabro_cli.experiment.label import OTHERS, cell
from dynabro_cli.experiment.spec import CHAIN, Field, RunSpec, fields

if TYPE_CHECKING:
    from dynabro_cli.experiment.resolve import Run

KEY_DIGITS = 10
"""Digits of a run's key that are printed, as in ``dynabro runs``."""


def _option(field: Field) -> Any:
    """Return the option of a run's field: its name, its meaning and its default, as the table has them."""
    if field.field == CHAIN:
        shown = "Pre-aggregator before the rule; for a chain, repeat it, or join them by +."
        return typer.Option(field.option, "--pre-aggregators", metavar=field.metavar, help=shown, rich_help_panel="Experiment")
    words = field.limits["help"]
    unset = "auto" if "auto:" in words else "the task's"
    default = unset if field.default is None else field.default
    shown = f"{words[0].upper()}{words[1:]}. [default: {default}]"
    return typer.Option(field.option, metavar=field.metavar, help=shown, show_default=False, rich_help_panel="Experiment")


def _with_fields(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command`` an option for every field of a run, in place of its first parameter, which gets those that are set."""

    @functools.wraps(command)
    def taking(**values: Any) -> None:
        given = {name: value for name in fields() if (value := values.pop(name)) not in (None, [])}
        if CHAIN in given:
            given[CHAIN] = "+".join(given[CHAIN])
        command(given, **values)

    kinds = {name: list[str] | None if name == CHAIN else str | None for name in fields()}
    hints = {name: Annotated[kinds[name], _option(field)] for name, field in fields().items()}
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hints[name]) for name in hints
    ]
    parameters += [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
    taking.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    taking.__annotations__ = {each.name: each.annotation for each in parameters}
    return taking


@_with_fields
def run(
    given: dict[str, str],
    device: Device = "auto",
    threads: Annotated[int | None, typer.Option(min=1, metavar="N", help="CPU threads. [default: torch's]")] = None,
    compile: CompileKernels = "auto",  # noqa: A002
    data_dir: DataDir = None,
    db: Database = "results.db",
    checkpoint_every: CheckpointEvery = 60,
    save_model: Annotated[
        Path | None,
        typer.Option("--save-model", metavar="FILE", help="Save the model at the end of the run, in the safetensors format."),
    ] = None,
    save_at: Annotated[
        str,
        typer.Option(
            "--save-at",
            metavar="end|evaluations",
            help="When --save-model saves: evaluations also saves every evaluation before the end, to FILE-ROUND beside FILE.",
        ),
    ] = "end",
    rerun: Annotated[bool, typer.Option("--rerun", help="Repeat a stored run, and replace its result.")] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Start even if the estimated memory exceeds the free memory; replace another file at --save-model."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the stored run as JSON.")] = False,
    quiet: Quiet = False,
    plugin: Plugins = None,
) -> None:
    """Run one experiment and store it.

    Components are written NAME or NAME:KEY=VALUE,KEY=VALUE; 'dynabro list' shows them all.

    Example: dynabro run --task mnist --method momentum:beta=0.99 --attack alie --aggregator gm --switching periodic:K=5
    """
    how = {"data_dir": data_dir, "device": device, "threads": threads, "compile": compile, "checkpoint_every": checkpoint_every}
    how["weights"] = _moment(save_at, save_model)
    _run(RunSpec.from_text(given), how, db, save_model, rerun=rerun, force=force, as_json=as_json, quiet=quiet)


def _moment(save_at: str, save_model: Path | None) -> str:
    """Return when the simulation yields the model."""
    if save_at not in ("end", "evaluations"):
        raise SpecError(f"save_at={save_at} is not legal. Try: --save-at end or evaluations")
    if save_model is None and save_at != "end":
        raise SpecError(f"save_at={save_at} is not valid here: it requires --save-model FILE")
    return "never" if save_model is None else save_at


def _run(
    spec: RunSpec,
    how: dict[str, Any],
    db: str,
    save_model: Path | None,
    *,
    rerun: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    from dynabro_cli.cli.progress import RunProgress, tell
    from dynabro_cli.components.digests import compare
    from dynabro_cli.executors.local import current_commit, execute
    from dynabro_cli.executors.run_log import RunLog
    from dynabro_cli.experiment.build import data_directory
    from dynabro_cli.experiment.resolve import resolve
    from dynabro_cli.machine.compile_choice import check_choice
    from dynabro_cli.store.engine import open_for_writing
    from dynabro_cli.store.models import ModelFile
    from dynabro_cli.store.ownership import heartbeats
    from dynabro_cli.store.recorder import Recorder
    from dynabro_cli.store.side_files import SideFiles
    from dynabro_cli.store.translation import shown

    resolved = resolve(spec, data_directory(how["data_dir"]))
    check_choice(how["compile"])
    if not quiet:
        tell(f"{_described(resolved)}; to be stored in {shown(db)} with key {resolved.key[:KEY_DIGITS]}")
    if not force:
        _check_room(resolved, how, db, rerun)
    engine = open_for_writing(db)
    files = SideFiles.of(engine.url, warn)
    model = None if save_model is None else ModelFile(save_model, resolved.key, db, force=force)
    recorder = Recorder(engine, git_commit=current_commit(), files=files, save_model=model)
    stored = recorder.stored(resolved.key)
    if stored is not None and not rerun:
        if model is not None and not model.is_complete():
            raise NotFoundError(
                f"save_model={save_model}: run {stored.id} is stored in {shown(db)}, and its model was not saved to this file. "
                "Try: --rerun, which repeats the run and saves its model"
            )
        tell_of_code(compare([(stored.code_digests, 1)]), "--rerun repeats it")
        _report(db, stored.id, as_json, f"already in {shown(db)}; --rerun repeats it", save_model)
        return
    spec = resolved.spec
    samples = spec.workers * spec.batch_size
    files.probe()
    if model is not None:
        model.check()
    log = RunLog.of(files, resolved.key)
    with RunProgress(spec.budget, samples, quiet=quiet) as progress, heartbeats(engine, [recorder.owner]):
        execute(resolved, recorder, progress, log=log, **how)
    stored = recorder.stored(resolved.key)
    if stored is not None:
        _report(db, stored.id, as_json, f"stored in {shown(db)}", save_model)


def _check_room(run: Run, how: dict[str, Any], db: str, rerun: bool) -> None:
    """Raise SpecError if the run needs more memory than is free, unless it is stored and therefore not made."""
    from dynabro_cli.machine.devices import pick_device
    from dynabro_cli.simulation.room import check_room
    from dynabro_cli.store.repetition import stand

    device = pick_device(how["device"])
    try:
        check_room(run, device, compiles=how["compile"] != "off")
    except SpecError:
        if rerun or stand(db, None, "none")[1].of(run.key) != "stored":
            raise


def _described(run: Run) -> str:
    """A run in a line: its cell, and all its other settings."""
    return cell(run.fields, [name for name in OTHERS if run.fields[name] is not None])


def _report(db: str, run_id: int, as_json: bool, where: str, model: Path | None) -> None:
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
    if model is not None:
        say(f"model saved in {model}")
    named = named_database(db)
    hint(f"next: dynabro show {run_id}{named}")
    hint(f'      dynabro plot curves --where "id = {run_id}"{named}')
    if model is not None:
        hint(f"      dynabro evaluate {shlex.quote(str(model))}")
