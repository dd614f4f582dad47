"""``dynabro run``: one experiment."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynabro_cli.cli.completion import complete, components
from dynabro_cli.cli.options import Database, Metrics, Plugins, Quiet, expand, making
from dynabro_cli.core.errors import NotFoundError, SpecError
from dynabro_cli.experiment.key import KEY_DIGITS
from dynabro_cli.experiment.label import OTHERS, cell, rule_of
from dynabro_cli.experiment.spec import CHAIN, Field, RunSpec, fields, full_name
from dynabro_cli.runs.executors._api import Options
from dynabro_cli.runs.making import error_of, opened
from dynabro_cli.runs.screen.output import print_json, tell_of_code
from dynabro_cli.runs.screen.terminal import complain, hint, say

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from dynabro_cli.core.events import SaveAt
    from dynabro_cli.experiment.resolve import Run
    from dynabro_cli.runs.store.care.models import ModelFile


def _option(field: Field) -> Any:
    """Return the option of a run's field: its name, its meaning and its default, as the table has
    them.
    """
    names = dict.fromkeys((field.option, f"--{field.field.replace('_', '-')}"))
    if field.field == CHAIN:
        shown = "Pre-aggregator before the rule; for a chain, repeat it, or join them by +."
        chain = complete(components("pre_aggregators"))
        return typer.Option(*names, metavar=field.metavar, help=shown, autocompletion=chain)
    text = field.limits["help"]
    unset = "auto" if "auto:" in text else "the task's"
    default = unset if field.default is None else field.default
    shown = f"{text[0].upper()}{text[1:]}. [default: {default}]"
    completion = complete(components(field.component)) if field.component is not None else None
    return typer.Option(
        *names, metavar=field.metavar, help=shown, show_default=False, autocompletion=completion
    )


def _given(values: dict[str, Any]) -> dict[str, str]:
    """Return the fields that were set, as texts; the stages of a chain are one text."""
    given = {name: value for name, value in values.items() if value not in (None, [])}
    return given | ({CHAIN: "+".join(given[CHAIN])} if CHAIN in given else {})


FIELDS = {
    name: Annotated[list[str] | None if name == CHAIN else str | None, _option(field)]
    for name, field in fields().items()
}
"""Options of the fields of a run."""
OWN = {
    "jobs": Annotated[
        int,
        typer.Option(
            min=0,
            max=1,
            metavar="0|1",
            help="1: compute in another process; 0: in this process, for a debugger.",
        ),
    ],
    "threads": Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="CPU threads. [default: all cores; 1 for a small model]"
        ),
    ],
    "force": Annotated[
        bool,
        typer.Option(
            "--force",
            help="Start even if the estimated memory exceeds the free memory; replace another "
            "file at --save-model.",
        ),
    ],
}
"""Options of making runs that differ for one run."""


@expand("given", FIELDS, _given, {})
@making(OWN, without=("jobs_per_gpu", "executor", "address"), jobs=1)
def run(
    *,
    given: dict[str, str],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Set a field, as in a sweep; the same as its option.",
        ),
    ] = None,
    db: Database = "results.db",
    how: Options,
    save_model: Annotated[
        Path | None,
        typer.Option(
            "--save-model",
            metavar="FILE",
            help="Save the model at the end of the run, in the safetensors format.",
        ),
    ] = None,
    save_at: Annotated[
        str,
        typer.Option(
            "--save-at",
            metavar="end|evaluations",
            help="When --save-model saves: evaluations also saves every evaluation before the "
            "end, to FILE-ROUND beside FILE.",
        ),
    ] = "end",
    rerun: Annotated[
        bool, typer.Option("--rerun", help="Repeat a stored run, and replace its result.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the stored run as JSON.")] = False,
    quiet: Quiet = False,
    metrics: Metrics = None,
    plugin: Plugins = None,
) -> None:
    """Run one experiment and store it.

    Components are written NAME or NAME:KEY=VALUE,KEY=VALUE; 'dynabro list' shows them all.

    Example: dynabro run --method momentum --attack alie --aggregator gm --switching periodic:K=5
    """
    options = replace(
        how,
        retry_failed=True,
        rerun="all" if rerun else "none",
        weights=_moment(save_at, save_model),
    )
    _run(
        RunSpec.from_text(_with_settings(given, settings or ())),
        options,
        db,
        save_model,
        as_json=as_json,
        quiet=quiet,
    )


def _with_settings(given: dict[str, str], settings: Sequence[str]) -> dict[str, str]:
    """Return the fields given by options and by ``--set``; raise SpecError for a setting without a
    value or with two.
    """
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not text or full_name(name) in given:
            why = (
                "the field is given twice. Try: one of them"
                if text
                else "it must be FIELD=VALUE. Try: --set lr=0.1"
            )
            raise SpecError(f"--set {setting}: {why}")
        given = given | {full_name(name): text}
    return given


def _moment(save_at: str, save_model: Path | None) -> SaveAt:
    """Return when the simulation yields the model."""
    if save_at not in ("end", "evaluations"):
        raise SpecError(f"save_at={save_at} is not legal. Try: --save-at end or evaluations")
    if save_model is None and save_at != "end":
        raise SpecError(f"save_at={save_at} is not valid here: it requires --save-model FILE")
    return "never" if save_model is None else "end" if save_at == "end" else "evaluations"


def _run(
    spec: RunSpec, options: Options, db: str, save_model: Path | None, *, as_json: bool, quiet: bool
) -> None:
    """Make the run, as a sweep of one, unless it is stored."""
    from dynabro_cli.experiment.build import data_directory
    from dynabro_cli.experiment.resolve import resolve

    run = resolve(spec, data_directory(options.data_dir))
    with opened([run], db, options, complain) as (engine, places, files):
        from dynabro_cli.experiment.comparison import compare
        from dynabro_cli.runs.executors.sweep import make_all
        from dynabro_cli.runs.screen.progress import RunsProgress, tell
        from dynabro_cli.runs.store.care.models import ModelFile
        from dynabro_cli.runs.store.open.translation import shown
        from dynabro_cli.runs.store.write.standing import Standing, repeat_of, state_of
        from dynabro_cli.runs.store.write.transactions import transact

        if not quiet:
            words = _described(run, spec)
            tell(f"{words}; to be stored in {shown(db)} with key {run.key[:KEY_DIGITS]}")
        model = (
            None if save_model is None else ModelFile(save_model, run.key, db, force=options.force)
        )
        stored = state_of(engine, run.key).result
        made = stored is None or options.rerun != "none"
        if made:
            if model is not None:
                model.check()
            standing = transact(
                engine,
                lambda connection: Standing(connection, repeat_of(connection, None, options.rerun)),
            )
            with RunsProgress([run], quiet=quiet) as progress:
                (outcome,) = make_all(
                    [run], engine, places, progress, standing, files=files, save_model=model
                )
    if made:
        if outcome.failure is not None:
            raise error_of(outcome.failure)
        stored = state_of(engine, run.key).result
    if stored is None:
        return
    _check_model(db, stored["id"], run.key, model)
    where = f"stored in {shown(db)}"
    if not made:
        tell_of_code(compare([(stored["code_digests"], 1)], options.data_dir), "--rerun repeats it")
        where = f"already in {shown(db)}; --rerun repeats it"
    _report(engine, stored["id"], as_json, where, save_model)


def _check_model(db: str, number: int, key: str, model: ModelFile | None) -> None:
    """Raise NotFoundError if a file is not the model that a stored run has saved; a device or a
    pipe is not read.
    """
    from dynabro_cli.runs.store.care.models import saved_models
    from dynabro_cli.runs.store.open.translation import shown

    problem = (
        None if model is None or model.is_stream() else model.problem(saved_models(db).get(key))
    )
    if model is not None and problem is not None:
        raise NotFoundError(
            f"save_model={model.target}: run {number} is stored in {shown(db)}, and {problem}. "
            "Try: --rerun, which repeats the run and saves its model"
        )


def _described(run: Run, given: RunSpec) -> str:
    """A run in a line: its cell, and what else was given other than the default."""
    names = [name for name in OTHERS if getattr(given, name) != fields()[name].default]
    return cell(run.fields, names)


def _report(engine: Engine, run_id: int, as_json: bool, where: str, model: Path | None) -> None:
    """Print a run with a result, read by its writer: the working folder, which a name is relative
    to, may have been removed.
    """
    from dynabro_cli.runs.store.read.queries import find_run

    row = find_run(engine, str(run_id))
    if as_json:
        print_json(row)
        return
    gap = "not finite" if row["final_gap"] is None else f"{row['final_gap']:.4g}"
    result = (
        f"gap {gap}"
        if row["final_accuracy"] is None
        else f"test accuracy {row['final_accuracy']:.4f}"
    )
    say(
        f"{row['task']}: {row['method']}, {rule_of(row)}, {row['attack']}, {row['switching']}, "
        f"seed {row['seed']}"
    )
    say(
        f"{row['status']}: {result} after {row['rounds']} rounds and {row['budget_spent']} "
        "gradient computations per worker "
        f"({row['switches']} switches) in {row['wall_seconds']:.1f} s"
    )
    say(f"run {run_id}, {where}")
    if model is not None:
        say(f"model saved in {model}")
    hint(f"next: dynabro show {run_id}")
    hint(f'      dynabro plot curves --where "id = {run_id}"')
    if model is not None:
        hint(f"      dynabro evaluate {shlex.quote(str(model))}")
