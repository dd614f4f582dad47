"""``dynabro select``: choose hyper-parameters by a sweep's accuracy on held-out samples under the
worst attack.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynabro_cli.cli.completion import complete, files
from dynabro_cli.cli.options import Database, Force, Json, Plugins, SameSettings
from dynabro_cli.core.errors import NotFoundError, SpecError
from dynabro_cli.core.registration import format_value
from dynabro_cli.runs.screen.output import emit, print_json, warn
from dynabro_cli.runs.screen.terminal import complain, write

if TYPE_CHECKING:
    from dynabro_cli.answers.analysis.selection import Candidate, Selection
    from dynabro_cli.runs.store.care.outputs import Output


def select(
    name: Annotated[
        str,
        typer.Argument(
            metavar="FILE|NAME",
            help="A sweep or a search that was run, as for 'dynabro sweep'.",
            autocompletion=complete(files("sweeps"), files("searches")),
        ),
    ],
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD",
            help="Field, or parameter such as aggregator.tau, to choose; repeat for several. "
            "[default: learning_rate]",
        ),
    ] = None,
    worst: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD",
            help="Field that an adversary chooses; repeat for several fields. [default: attack]",
        ),
    ] = None,
    settings: SameSettings = None,
    db: Database = "results.db",
    yaml: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the chosen runs as a sweep with validation: 0; - for standard output.",
        ),
    ] = None,
    as_json: Json = False,
    force: Force = False,
    plugin: Plugins = None,
) -> None:
    """Choose the hyper-parameters with the highest accuracy under the worst attack, on samples held
    out of training.

    The sweep's runs must hold samples out (validation: 0.1 in its base, or --set validation=0.1):
    nothing is chosen by the test set. A configuration is a combination of all other fields of the
    grid. Its final accuracy is averaged over seeds, and the worst attack counts. --yaml writes a
    sweep that trains the chosen runs on the whole training set. Of a search, the best trial is
    chosen, if it optimises a validation number.

    Example: dynabro select grid.yaml --over learning_rate --worst attack --yaml chosen.yaml
    """
    from dynabro_cli.answers.analysis.selection import (
        SELECTED,
        as_sweep,
        check_fields,
        choose,
        read_scores,
    )
    from dynabro_cli.cli.search_results import of_search
    from dynabro_cli.experiment.grid.plan import plan
    from dynabro_cli.experiment.grid.search_file import is_search
    from dynabro_cli.experiment.grid.sweep_lookup import load_sweep
    from dynabro_cli.experiment.spec import full_name
    from dynabro_cli.runs.store.care.outputs import Output
    from dynabro_cli.runs.store.open.engine import open_read_only
    from dynabro_cli.runs.store.read.searches import stored_searches

    if name == "-":
        raise SpecError(
            "a sweep from standard input cannot be named again. Try: the name of a file"
        )
    if yaml is not None and str(yaml) == "-" and as_json:
        raise SpecError(
            "--json and --yaml - both print on standard output. Try: a file for one of them"
        )
    if is_search(name):
        if over or worst:
            raise SpecError(
                "a search has chosen already: --over and --worst are for sweeps. Try: without them"
            )
        text = of_search(name, settings or (), db, as_json=as_json, quiet=str(yaml) == "-")
        if yaml is not None:
            _write(Output(yaml, SELECTED, db, force, source=Path(name)), text)
        return
    try:
        sweep = load_sweep(name, settings or (), run_plugins=False)
    except NotFoundError:
        if Path(db).is_file() and name in stored_searches(open_read_only(db)):
            raise NotFoundError(
                f"{name} is a search, and its space is in its file. Try: dynabro select {name}.yaml"
            ) from None
        raise
    planned = plan(sweep)
    over, worst = [*map(full_name, over or ["lr"])], [*map(full_name, worst or ["attack"])]
    check_fields(planned, over, worst)
    command = " ".join(
        [shlex.quote(name), *(f"--set {shlex.quote(setting)}" for setting in settings or ())]
    )
    scores = read_scores(planned, db, command)
    choices = choose(planned, scores, over, worst)
    if yaml is not None:
        _write(Output(yaml, SELECTED, db, force, source=Path(name)), as_sweep(planned, choices))
    if yaml is None or str(yaml) != "-":
        _report(choices, as_json)
    for line in edges(choices):
        warn(line)


def edges(choices: Sequence[Selection]) -> list[str]:
    """Return a line for each number that is chosen at the edge of its grid: a better one may lie
    beyond.
    """
    lines = []
    for choice in choices:
        for name, value in choice.best.values.items():
            tried = [candidate.values[name] for candidate in choice.candidates]
            tried = [other for other in tried if isinstance(other, int | float)]
            if (
                isinstance(value, int | float)
                and len(set(tried)) > 1
                and value in (min(tried), max(tried))
            ):
                where = ", ".join(
                    f"{field} {format_value(fixed)}"
                    for field, fixed in choice.configuration.items()
                )
                end = "smallest" if value == min(tried) else "largest"
                place = f"{where}: " if where else ""
                lines.append(
                    f"{place}{name}={format_value(value)} is the {end} of its grid. Try: a "
                    "wider grid"
                )
    return lines


def _write(output: Output, text: str) -> None:
    path = output.target
    if str(path) == "-":
        write(text.encode())
        return
    with output.writing() as file:
        file.write(text.encode())
    complain(
        f"the chosen runs are written to {path}. Try: dynabro sweep {shlex.quote(str(path))}, "
        "which trains them"
    )


def _report(choices: list[Selection], as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {
                    "configuration": selected.configuration,
                    "candidates": [_details(first) for first in selected.candidates],
                }
                for selected in choices
            ]
        )
        return
    best = choices[0].best
    columns = [*choices[0].configuration, *best.values, *(f"worst {name}" for name in best.worst)]
    rows = []
    for choice in choices:
        first, second = choice.best, choice.candidates[1] if len(choice.candidates) > 1 else None
        cells = [
            format_value(value)
            for part in (choice.configuration, first.values, first.worst)
            for value in part.values()
        ]
        rows.append(
            (
                *cells,
                first.mean,
                first.std,
                first.seeds,
                first.diverged,
                len(choice.candidates),
                second and second.mean,
            )
        )
    emit((*columns, "validation", "std", "seeds", "diverged", "candidates", "second"), rows)


def _details(candidate: Candidate) -> dict[str, Any]:
    return {
        "values": candidate.values,
        "worst": candidate.worst,
        "validation_accuracy": candidate.mean,
        "std": candidate.std,
        "seeds": candidate.seeds,
        "diverged": candidate.diverged,
    }
