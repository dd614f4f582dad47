"""``dynabro verify``: check theory against numbers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynabro_cli.cli.make.sweep_runs import foretell
from dynabro_cli.cli.options import Database, DataDir, DryRun, Jobs, Json, Plugins, Quiet, jobs_of
from dynabro_cli.core.errors import (
    NotFoundError,
    SpecError,
    SweepError,
    VerificationError,
    did_you_mean,
)
from dynabro_cli.runs.making import make_runs
from dynabro_cli.runs.screen import runs_shown
from dynabro_cli.runs.screen.output import emit, print_json
from dynabro_cli.runs.screen.terminal import complain, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynabro_cli.answers.theory.kappa import Found
    from dynabro_cli.answers.theory.rate import Slope

ALL = "all"

app = typer.Typer(help="Check theory against numbers.", no_args_is_help=True)


@app.callback()
def verify() -> None:
    """Check theory against numbers."""


@app.command()
def kappa(
    rules: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RULE...]", help="Such as cwmed or nnm+cwtm. [default: every rule]"
        ),
    ] = None,
    m: Annotated[int, typer.Option("--m", metavar="M", help="Workers.")] = 17,
    f: Annotated[int, typer.Option("--f", metavar="F", help="Number of Byzantine workers.")] = 8,
    pre: Annotated[
        list[str] | None,
        typer.Option(
            "--pre", metavar="NAME", help="Pre-aggregator before every rule; repeat for a chain."
        ),
    ] = None,
    dimension: Annotated[int, typer.Option(metavar="D", help="Dimension of the inputs.")] = 2,
    restarts: Annotated[
        int, typer.Option(metavar="N", help="Starts of the search, for each rule.")
    ] = 16,
    steps: Annotated[int, typer.Option(metavar="N", help="Inputs tried from each start.")] = 200,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of starts and steps.")] = 0,
    seconds: Annotated[
        float,
        typer.Option(metavar="S", help="Processor time after which the search of a rule ends."),
    ] = 60.0,
    db: Database = "results.db",
    as_json: Json = False,
    quiet: Quiet = False,
    plugin: Plugins = None,
) -> None:
    """Search for the input at which an aggregation rule is least robust, and compare it with the
    rule's proved kappa.

    The largest ratio of |A - mean_S|^2 to the variance of the honest set S is a lower bound of the
    rule's true kappa. A ratio above the proved kappa is a bug, and ends the command with exit code
    1. Results are stored.

    Example: dynabro verify kappa cwmed nnm+cwtm --m 9 --f 2 --restarts 4 --steps 50
    """
    from dynabro_cli import __version__
    from dynabro_cli.answers.theory.kappa import search
    from dynabro_cli.answers.theory.subjects import Effort, subjects
    from dynabro_cli.runs.screen.progress import CountProgress
    from dynabro_cli.runs.store.open.engine import open_for_writing
    from dynabro_cli.runs.store.write import kappas

    effort = Effort(dimension, restarts, steps, seed, seconds)
    chosen, refused = subjects(rules or (), pre or (), m, f, effort)
    engine = open_for_writing(db)
    results = []
    with CountProgress("climbs", quiet=quiet) as progress:
        for number, subject in enumerate(chosen, 1):
            progress.begin(f"{subject.text}: searching, {number} of {len(chosen)} rules")
            results.append(search(subject, effort, progress))
            kappas.store(engine, [results[-1].row], __version__)
    _report_kappas(results, refused, as_json)


def _report_kappas(results: Sequence[Found], refused: dict[str, list[str]], as_json: bool) -> None:
    """Print the findings.

    Raises:
        VerificationError: A proved kappa is disproved.
    """
    if as_json:
        why = [{"rule": rule, "not_legal": lines} for rule, lines in refused.items()]
        print_json(
            [
                *(
                    result.row | {"violated": result.violated, "notes": result.notes}
                    for result in results
                ),
                *why,
            ]
        )
    else:
        rows = [
            (
                result.rule,
                f"> {result.empirical:.4g}" if result.unbounded else result.empirical,
                "no proof" if result.proved is None else result.proved,
                result.evaluations,
                "; ".join(result.notes) or None,
            )
            for result in results
        ]
        emit(("rule", "found", "proved", "inputs", "notes"), rows)
        for rule, lines in refused.items():
            say(f"not legal here: {rule}: {'; '.join(lines)}")
    wrong = [result for result in results if result.violated]
    for result in wrong:
        complain(
            f"VIOLATED: {result.rule} with m={result.workers}, f={result.byzantine}: an input has "
            f"the ratio {result.empirical:.6g}, and kappa = {result.proved:.6g} is proved; "
            "it is stored in verified_kappa.worst"
        )
    if wrong:
        raise VerificationError(
            f"{len(wrong)} of {len(results)} rules break their proved kappa: a bug in the rule "
            "or in its bound"
        )


@app.command()
def tau(
    rules: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RULE...]", help="Aggregation rules. [default: cwtm]"),
    ] = None,
    task: Annotated[str, typer.Option(metavar="NAME", help="Task.")] = "digits",
    attack: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Attack of F workers, others every ten rounds; none: all are honest.",
        ),
    ] = "none",
    m: Annotated[int, typer.Option("--m", metavar="M", help="Workers.")] = 17,
    f: Annotated[
        int, typer.Option("--f", metavar="F", help="Byzantine workers that the rule is built for.")
    ] = 8,
    budget: Annotated[
        int, typer.Option(metavar="N", help="Gradient computations of each worker in a run.")
    ] = 2000,
    seeds: Annotated[
        str, typer.Option(metavar="FIRST..LAST", help="Seeds; one run each.")
    ] = "0..3",
    data_dir: DataDir = None,
    as_json: Json = False,
    plugin: Plugins = None,
) -> None:
    """Measure what dynabro:filter=adaptive compares with tau in static rounds, by default with
    honest workers only.

    The ratio is |a_J - a_{J-1}| 2^(J/2)/rho, rho the spread of the round. Its 0.999 quantile is the
    tau that rejects one honest correction in a thousand. The last column is the share that tau=2
    rejects. Nothing is stored.

    Example: dynabro verify tau cwtm --budget 500 --seeds 0..0
    """
    from dynabro_cli.answers.theory import tau as measuring
    from dynabro_cli.experiment.build import data_directory
    from dynabro_cli.experiment.grid.sweep_file import parse_seeds
    from dynabro_cli.experiment.spec import RunSpec

    spec = RunSpec(
        task=task, method=measuring.METHOD, attack=attack, workers=m, byzantine=f, budget=budget
    )
    results = list(
        measuring.measure(spec, rules or ("cwtm",), parse_seeds(seeds), data_directory(data_dir))
    )
    if as_json:
        print_json([result._asdict() for result in results])
        return
    columns = (
        "rule",
        "runs",
        "corrections",
        "median",
        "0.99 quantile",
        "0.999 quantile",
        "largest",
        "above 2",
    )
    numbers = [
        (*(f"{value:.2f}" for value in result[3:7]), f"{100 * result.above:.2f}%")
        for result in results
    ]
    emit(columns, [(*result[:3], *texts) for result, texts in zip(results, numbers, strict=True)])


@app.command()
def rate(
    part: Annotated[
        str,
        typer.Argument(metavar="[rounds|optimum|delta|switches|all]", help="One experiment only."),
    ] = ALL,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="FIRST..LAST", help="Seeds of every run. [default: the sweep's]"),
    ] = None,
    db: Database = "results.db",
    jobs: Jobs = "auto",
    dry_run: DryRun = False,
    as_json: Json = False,
    quiet: Quiet = False,
    plugin: Plugins = None,
) -> None:
    """Measure how the mean squared gradient depends on T, on delta and on dynamic rounds, and
    compare with the theorems' exponents.

    With delta, the excess over delta = 0 at the same seed is fitted. With dynamic rounds, it is
    the excess over static identities. A line is consistent if the 95% interval of its exponent
    holds the exponent that the theorem's bound has over the same points. Each line has a null
    control: the same rounds without Byzantine workers and without noise. If the control is
    consistent, too, the line says nothing. 'optimum' starts where the control's gradient is 0.

    The command makes the runs of the sweep verify-rate that are not stored yet, then fits exponents
    to them. The same command resumes an interrupted one. 'dynabro plot rate' draws the points.

    Example: dynabro verify rate rounds --seeds 0..1 --dry-run
    """
    from dynabro_cli.answers.theory import rate as reading
    from dynabro_cli.experiment.grid.plan import plan
    from dynabro_cli.experiment.grid.sweep_lookup import load_sweep
    from dynabro_cli.runs.executors._api import Options
    from dynabro_cli.runs.store.open.engine import open_read_only

    if part not in (*reading.PARTS, ALL):
        legal = (*reading.PARTS, ALL)
        raise SpecError(
            f"part={part!r} is not legal{did_you_mean(part, legal)}. Try: one of {', '.join(legal)}"
        )
    planned = plan(load_sweep(reading.SWEEP, [f"seeds={seeds}"] if seeds else ()))
    keys = {row["run_key"] for row in planned.rows if part in (ALL, reading.part_of(row)[0])}
    planned = dataclasses.replace(
        planned, runs=tuple(run for run in planned.runs if run.key in keys)
    )
    options = Options(jobs=jobs_of(jobs), device="cpu", compile="off", sweep=reading.SWEEP)
    if dry_run:
        foretell(planned, db, options, as_json)
        return
    outcomes = make_runs(planned, db, options, complain, runs_shown(quiet=quiet))
    runs, evaluations = reading.read(open_read_only(db), [outcome.run.key for outcome in outcomes])
    _report_slopes(reading.slopes(reading.cells(reading.measure(runs, evaluations))), as_json)
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    if failed:
        raise SweepError(
            f"{len(failed)} of {len(outcomes)} runs failed. Try: dynabro sweep {reading.SWEEP} "
            "--retry-failed"
        )


def _report_slopes(slopes: Sequence[Slope], as_json: bool) -> None:
    if not slopes:
        raise NotFoundError("no run has a result to fit an exponent to")
    if as_json:
        print_json([slope._asdict() | {"verdict": slope.verdict} for slope in slopes])
        return
    columns = (
        *("setting", "quantity", "against", "points", "seeds"),
        *("exponent", "95% interval", "control", "paper's", "theorem's own", "verdict", "of bound"),
    )
    rows: list[tuple[Any, ...]] = [
        (
            *(
                f"{slope.part}: {slope.setting}",
                slope.quantity,
                slope.against,
                slope.points,
                slope.seeds,
            ),
            *(f"{slope.slope:.2f}", f"{slope.low:.2f} to {slope.high:.2f}"),
            f"{slope.control[0]:.2f}"
            if slope.control[0] == slope.control[0]
            else "0"
            if slope.controlled
            else None,
            *(f"{slope.predicted:g}", f"{slope.of_bound:.2f}"),
            slope.verdict or None,
            f"{slope.share:.2g}" if slope.share == slope.share else None,
        )
        for slope in slopes
    ]
    emit(columns, rows)
    for slope in slopes:
        if slope.left_out:
            complain(
                f"{slope.part}: {slope.setting}: {slope.left_out} points are not above 0 and are "
                "not in the fit"
            )
        if slope.share > 1:
            complain(
                f"{slope.part}: {slope.setting}: a point is above the theorem's bound, "
                f"{slope.share:.3g} times it"
            )
