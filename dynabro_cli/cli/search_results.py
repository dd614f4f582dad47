"""Results of a search, for ``dynabro search`` and ``dynabro select``."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.registration import plugins
from dynabro_cli.runs.screen.output import duration, emit, finite, print_json, tell_of_code
from dynabro_cli.runs.screen.terminal import hint, say

if TYPE_CHECKING:
    from dynabro_cli.answers.analysis.search_findings import Findings, Found
    from dynabro_cli.experiment.grid.search import Search

REPEATS = "dynabro search --rerun-changed repeats their trials"
"""Advice, if trials were made with other code."""


def of_search(name: str, settings: Sequence[str], db: str, *, as_json: bool, quiet: bool) -> str:
    """Print what a stored search has found, for ``dynabro select``; return its best trials as a
    sweep.
    """
    from dynabro_cli.experiment.grid.search_file import load_search
    from dynabro_cli.runs.store.open.engine import open_read_only

    check_optuna()
    from dynabro_cli.answers.analysis.search_findings import as_sweep, code_of, findings
    from dynabro_cli.runs.search.conduct import with_stored_spelling

    search = load_search(name, settings, run_plugins=False)
    with open_read_only(db).connect() as connection:
        search = with_stored_spelling(search, connection)
        results, code = findings(search, connection), code_of(search, connection)
    text = as_sweep(search, results)
    tell_of_code(code, REPEATS)
    if not quiet:
        report(search, results, None, db, as_json)
    return text


def check_optuna() -> None:
    """Raise SpecError without Optuna."""
    if importlib.util.find_spec("optuna") is None:
        raise SpecError("optuna is not installed. Try: pip install 'dynabro[search]'")


def report(
    search: Search, results: list[Findings], seconds: float | None, db: str, as_json: bool
) -> None:
    """Print the best trials of each search, with the command that repeats the best one."""
    from dynabro_cli.answers.analysis.search_findings import in_words
    from dynabro_cli.experiment.label import command_of
    from dynabro_cli.runs.store.open.translation import shown

    if as_json:
        print_json([_details(result) for result in results])
        return
    took = "" if seconds is None else f"; took {duration(seconds)}"
    for result in results:
        counts = ", ".join(f"{count} {status}" for status, count in result.counts.items())
        trials = sum(result.counts.values())
        say(f"{result.name}: {trials} trials in {shown(db)}: {counts or 'none'}{took}")
        if result.best:
            columns = [
                "trial",
                *result.best[0].choices,
                "value",
                *(["repeated", "std", "seeds"] if search.then else []),
            ]
            emit(columns, [_row(trial, bool(search.then)) for trial in result.best])
        for line in in_words(search, result):
            say(line)
        if result.best:
            run = result.best[0].run
            command = command_of(run.fields, [plugin.name for plugin in plugins.loaded()])
            say(f"repeat: {command} --seed {run.spec.seed}")
    hint(f"next: dynabro plot {search.sweep.name}")


def _row(trial: Found, repeated: bool) -> tuple[Any, ...]:
    last = (trial.mean, trial.std, len(trial.repeated) or None) if repeated else ()
    return (trial.trial.number, *trial.choices.values(), finite(trial.value), *map(finite, last))


def _details(result: Findings) -> dict[str, Any]:
    best = [
        {
            "trial": trial.trial.number,
            "choices": dict(trial.choices),
            "value": finite(trial.value),
            "repeated": [finite(value) for value in trial.repeated],
            "run_keys": list(trial.trial.run_keys),
        }
        for trial in result.best
    ]
    return {
        "search": result.name,
        "trials": dict(result.counts),
        "best": best,
        "importances": dict(result.importances),
    }
