"""Every field, parameter and option at its extremes and one beyond: refused before it runs, or
everywhere as it was run.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.events import Evaluated, Finished, Started, Totals
from dynabro_cli.core.registration import ParameterInfo
from dynabro_cli.experiment.key import canonical_json
from dynabro_cli.experiment.resolve import Run, resolve
from dynabro_cli.experiment.spec import RunSpec, fields
from dynabro_cli.runs.executors._api import Options
from dynabro_cli.runs.executors.backends import check as check_options
from dynabro_cli.runs.executors.ledger import _started_event
from dynabro_cli.runs.store.open.engine import open_for_writing, open_read_only
from dynabro_cli.runs.store.read.queries import find_run
from dynabro_cli.runs.store.write.recorder import Recorder
from dynabro_cli.simulation.setup import simulate
from tests.cli.conftest import Dynabro
from tests.parameters import ENTRIES, FIELDS, text_of
from tests.tables import each_row

MOST = 1000
"""Largest whole number that is simulated: a run with a larger one is recorded only, as it may be
long or large.
"""
QUICK = {
    "task": "quadratic",
    "method": "sgd",
    "attack": "shift:lambda=1",
    "aggregator": "cwmed",
    "budget": "3",
    "workers": "5",
}


class Case(NamedTuple):
    """A run to try, and True if it is small enough to be simulated."""

    values: dict[str, str]
    small: bool


def extremes(info: ParameterInfo) -> Iterator[Any]:
    """The limits of a parameter, what is just inside, and what is just beyond; the limits of its
    type if it has none.
    """
    limits = info.limits
    if info.limits["choices"]:
        yield from (*info.limits["choices"], "another")
    elif info.type is int:
        low, high = limits["minimum"], limits["maximum"]
        yield from (low if low is not None else -(2**31), high if high is not None else 2**31 - 1)
        yield from (
            (low if low is not None else -(2**63)) - 1,
            (high if high is not None else 2**63 - 1) + 1,
        )
        yield 2**31
    elif info.type is float:
        yield from (
            value
            for name in ("minimum", "maximum", "above", "below")
            if (value := limits[name]) is not None
        )
        for name, towards in (("minimum", -1), ("above", 1), ("maximum", 1), ("below", -1)):
            if limits[name] is not None:
                yield math.nextafter(limits[name], towards * math.inf)
        yield from (5e-324, 1.7976931348623157e308, "nan", "inf")


def cases() -> Iterator[Case]:
    """All runs that are tried."""
    for name, info in fields().items():
        if info.component is None:
            yield from (
                Case(QUICK | {name: str(value)}, _small(name, value)) for value in extremes(info)
            )
    largest = {
        name: str(fields()[name].limits["maximum"]) for name in ("budget", "batch_size", "workers")
    }
    for number in (1, 2, 3):
        for chosen in itertools.combinations(largest, number):
            yield Case(QUICK | {name: largest[name] for name in chosen}, small=False)
    for kind, entry in ENTRIES:
        field = FIELDS[kind]
        if field in ("model", "data") or (field == "task" and entry.name != "quadratic"):
            continue
        for info in entry.infos:
            for value in extremes(info):
                values = QUICK | {
                    "byzantine": "1",
                    field: text_of(kind, entry, **{info.key: str(value)}),
                }
                yield Case(values, _small(info.key, value))


def _small(name: str, value: Any) -> bool:
    """Return True if a run with this value takes no time; the seed and the evaluations may be any
    number.
    """
    return not isinstance(value, int) or value <= MOST or name in ("seed", "eval_every")


def accepted(all_cases: Iterator[Case]) -> tuple[dict[str, tuple[Case, Run]], int]:
    """The runs of the cases that are accepted, by key, and the number of those that are refused."""
    found, refused = {}, 0
    for case in all_cases:
        try:
            run = resolve(RunSpec.from_text(case.values))
        except SpecError:
            refused += 1
            continue
        found[run.key] = case, run
    return found, refused


def events_of(case: Case, run: Run) -> Iterator[Any]:
    """The events of a run: simulated, or as large as the events of a run that would take too
    long.
    """
    if case.small:
        yield from simulate(RunSpec.from_text(case.values), device="cpu", threads=1, compile="off")
        return
    spec = run.spec
    started: Started = _started_event(run, Options(device="cpu", threads=1))
    samples = spec.budget * spec.batch_size * spec.workers
    yield dataclasses.replace(
        started, record=started.record | {"spec": canonical_json(run.mapping)}
    )
    yield Evaluated(spec.budget, spec.budget, samples, None, None, None, 1e308, None)
    yield Finished(None, None, 1e308, Totals(spec.budget, spec.budget, spec.budget, spec.budget))


@pytest.fixture
def database(request: pytest.FixtureRequest, folder: Path) -> str:
    return "results.db" if request.param == "sqlite" else str(request.getfixturevalue("postgres"))


@pytest.mark.parametrize(
    ("database", "step"),
    [
        pytest.param("sqlite", 5, marks=pytest.mark.thorough),
        pytest.param("sqlite", 1, marks=pytest.mark.slow),
        pytest.param("postgresql", 5, marks=pytest.mark.thorough),
        pytest.param("postgresql", 1, marks=pytest.mark.slow),
    ],
    indirect=["database"],
)
def test_extremes_are_refused_or_everywhere(database: str, step: int, dynabro: Dynabro) -> None:
    wanted, refused = accepted(itertools.islice(cases(), 0, None, step))
    assert min(len(wanted), refused) > 200 / step  # neither is empty by mistake
    engine = open_for_writing(database)
    recorder = Recorder(engine)
    for case, run in wanted.values():
        try:
            for event in events_of(case, run):
                recorder.record(event)
        except Exception as error:
            raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
    engine.dispose()
    named = ("--db", database)
    listed = dynabro("runs", "--json", "--limit", str(len(wanted) + 1), *named)
    assert (listed.code, len(json.loads(listed.out))) == (0, len(wanted))
    reader = open_read_only(database)
    for key, (case, run) in wanted.items():
        row = find_run(reader, key)
        assert {name: row[name] for name in fields()} == {
            name: getattr(run.spec, name) for name in fields()
        }, case
        assert json.loads(row["spec"]) == json.loads(canonical_json(run.mapping)), case
    for number in range(1, len(wanted) + 1, 10):
        assert dynabro("show", str(number), *named).code == 0
    assert dynabro("db", "check", *named).code == 0
    outcome = dynabro("db", "merge", database, "--db", "merged.db", "--json")
    assert (outcome.code, len(json.loads(outcome.out)["copied"])) == (0, len(wanted))
    assert dynabro("db", "check", "--db", "merged.db").code == 0
    for number in (1, len(wanted)):
        assert dynabro("plot", "curves", "--where", f"id = {number}", "--db", "merged.db").code == 0


OPTIONS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "jobs": ((0, 1, 2**31), (-1,)),
    "threads": ((1, 1024), (0, 1025)),
    "max_retries": ((0, 2**63), (-1,)),
    "jobs_per_gpu": ((1, 2**31), (0,)),
    "timeout": ((5e-324, 1e308), (0.0, math.inf, math.nan)),
    "checkpoint_every": ((5e-324, 1e308), (0.0, math.inf, math.nan)),
}
"""Legal and illegal values."""


@each_row("name", OPTIONS)
def test_options(name: str) -> None:
    legal, illegal = OPTIONS[name]
    for value in legal:
        check_options(Options(**{name: value}))
    for value in illegal:
        with pytest.raises(SpecError, match=f"{name}="):
            check_options(Options(**{name: value}))
