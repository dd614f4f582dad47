"""``worker_labels``: stored with the beginning of a run, gone with it, and with it in every
copy.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine

from dynabro_cli.core import events
from dynabro_cli.runs.store.care.check import check
from dynabro_cli.runs.store.care.merge import merge
from dynabro_cli.runs.store.care.thin import thin
from dynabro_cli.runs.store.open.engine import open_for_writing
from tests.runs.store import made, sound
from tests.runs.store.made import both, change, read, record

ALL = "SELECT worker, label, count FROM worker_labels ORDER BY worker, label"


@pytest.fixture
def rows() -> list[tuple[int, ...]]:
    return [(worker, worker + more, 2 - more) for worker in range(17) for more in (0, 1)]


def test_they_are_there_from_the_beginning_and_once(
    engine: Engine, database: str, rows: list[tuple[int, ...]]
) -> None:
    start, *_ = sound.shared(1)
    record(engine, [start])
    assert read(database, ALL) == rows
    change(database, "UPDATE runs SET status = 'failed', owner = NULL")
    record(engine, sound.shared(1))  # begins again
    assert read(database, ALL) == rows
    assert check(database).problems == []
    change(database, "DELETE FROM worker_labels")
    record(engine, sound.run(2))
    assert read(database, ALL) == []


@both
def test_a_run_that_goes_on_has_them_already(
    engine: Engine, database: str, rows: list[tuple[int, ...]]
) -> None:
    start, first, *_ = sound.shared(1)
    recorder = record(engine, [start, first, made.rounds(0, 2), made.checkpointed(3)])
    recorder.interrupted()
    again = record(engine, [])
    assert again.checkpoint(start.run_key) is not None
    resumed = replace(start, resumed=made.totals(3))
    for event in (resumed, made.rounds(3, 5), made.evaluated(6), made.finished(6)):
        again.record(event)
    assert read(database, ALL) == rows
    assert check(database).problems == []


def test_they_go_with_their_run(engine: Engine, database: str) -> None:
    record(engine, sound.shared(1))
    with engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM runs")
    assert read(database, ALL) == []


@pytest.mark.parametrize("backend", ["sqlite"])
def test_copies_have_them(engine: Engine, path: Path, rows: list[tuple[int, ...]]) -> None:
    record(engine, [*sound.run(1), *sound.shared(2)])
    small, other = path.with_name("small.db"), path.with_name("other.db")
    thin(str(path), small, 5)
    record(open_for_writing(str(other)), sound.run(3))
    merge(str(path), str(other))
    for copy in (small, other):
        assert read(copy, ALL) == ([] if copy is small else rows)  # thin leaves them out
        assert read(copy, "SELECT data, validation FROM runs ORDER BY data") == [("iid", 0.0)] * (
            1 if copy is small else 2
        ) + [("sorted", 0.0)]
        assert check(str(copy)).problems == []


def test_validation_numbers_are_stored(engine: Engine, database: str) -> None:
    start, *_ = sound.beginning(1)
    score = events.Evaluated(0, 0, 0, 0.5, 0.25, None, None, None, 0.75, float("nan"))
    record(engine, [start, score]).interrupted()
    assert read(
        database, "SELECT test_accuracy, validation_accuracy, validation_loss FROM evaluations"
    ) == [(0.5, 0.75, None)]
