"""Events made by hand, so that the database is tested without a simulation."""

from __future__ import annotations

import functools
import platform
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine

from dynabro_cli.core import events
from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.write import row_digests
from dynabro_cli.runs.store.write.recorder import Recorder
from tests import postgres

both = pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
"""A test with ``database`` or ``engine`` is for a file and for a server: where the two differ in
SQL, types or locks.
"""
a_file = pytest.mark.parametrize("backend", ["sqlite"])
"""In a test file that is for both: a test of what happens before or beside the SQL."""
KEY = "ab" * 32
RECORD: dict[str, Any] = {
    "task": "digits",
    "model": "logistic",
    "method": "momentum:beta=0.99",
    "aggregator": "cwtm",
    "pre_aggregators": "none",
    "attack": "sf",
    "attack_entry": "gradient",
    "switching": "periodic:K=20",
    "clock": "round",
    "workers": 17,
    "byzantine": 8,
    "budget": 50,
    "batch_size": 16,
    "learning_rate": 0.01,
    "lr_rule": "fixed",
    "lr_drop": "0.8:0.1",
    "weight_decay": 1e-4,
    "eval_every": 10,
    "seed": 3,
    "precision": "fp32",
    "participation": 1.0,
    "data": "iid",
    "validation": 0.0,
    "spec": '{"task":{"name":"digits"}}',
    "dimension": 650,
    "noise_bound": None,
    "device": "cpu",
    "host": platform.node(),
    "versions": '{"dynabro":"0"}',
}


class Clock:
    """Seconds that pass only when a test says so."""

    now = 100.0

    def monotonic(self) -> float:
        """Return the seconds that have passed, beginning anywhere."""
        return self.now


def started(key: str = KEY, **columns: Any) -> events.Started:
    """The start of a run; ``columns`` replace those of ``RECORD``."""
    return events.Started(key, RECORD | columns)


def a_round(number: int, **values: Any) -> events.Round:
    """Round ``number`` of a method that spends one computation a round."""
    plain: dict[str, Any] = {
        "round": number,
        "budget": number + 1,
        "level": None,
        "cost": 1,
        "byzantine": 8,
        "switched": number > 0 and number % 20 == 0,
        "dynamic": False,
        "accepted": None,
        "learning_rate": 0.01,
        "gradient_norm": 1 / (number + 1),
        "aggregation_error": 0.25,
    }
    return events.Round(**plain | values)


def rounds(first: int, last: int, **values: Any) -> events.RoundsDone:
    """Rounds ``first`` to ``last``, both included."""
    return events.RoundsDone(
        tuple(a_round(number, **values) for number in range(first, last + 1)), totals(last + 1)
    )


def evaluated(
    number: int,
    accuracy: float | None = 0.5,
    gap: float | None = None,
    x: tuple[float, ...] | None = None,
) -> events.Evaluated:
    """The evaluation after ``number`` rounds."""
    loss = None if accuracy is None else 1 - accuracy
    return events.Evaluated(number, number, number * 16 * 17, accuracy, loss, loss, gap, x)


def checkpointed(number: int, data: bytes = b"state") -> events.Checkpointed:
    """A checkpoint after so many rounds."""
    return events.Checkpointed(totals(number), data)


def finished(
    number: int, accuracy: float | None = 0.5, gap: float | None = None
) -> events.Finished:
    """The end of a run of ``number`` rounds."""
    return events.Finished(
        accuracy, None if accuracy is None else 1 - accuracy, gap, totals(number)
    )


def diverged(
    number: int, accuracy: float | None = 0.1, loss: float | None = float("nan")
) -> events.Diverged:
    """The end of a run that left the numbers in its last round."""
    return events.Diverged(number - 1, accuracy, loss, None, totals(number))


def finding(**values: Any) -> dict[str, Any]:
    """What a search for the worst case of the median of three numbers has found, as
    ``store.kappas`` takes it.
    """
    plain: dict[str, Any] = {
        "rule": "cwmed",
        "workers": 3,
        "byzantine": 1,
        "dimension": 1,
        "restarts": 2,
        "steps": 30,
        "seed": 0,
        "empirical": 1.0,
        "unbounded": False,
        "proved": 16.0,
        "evaluations": 100,
        "complete": True,
        "worst": [[9.0], [0.0], [2.0]],
    }
    return plain | values


def totals(number: int) -> events.Totals:
    return events.Totals(
        rounds=number, budget_spent=number, switches=number // 20, dynamic_rounds=0
    )


def whole_run(
    number: int = 3, accuracy: float = 0.5, key: str = KEY, **columns: Any
) -> list[events.Event]:
    """A run of ``number`` rounds from start to end."""
    return [
        started(key, **columns),
        rounds(0, number - 1),
        evaluated(number, accuracy),
        finished(number, accuracy),
    ]


def record(engine: Engine, happenings: Iterable[events.Event], **settings: Any) -> Recorder:
    """Give events to a new recorder, and return it."""
    recorder = Recorder(engine, **settings)
    for event in happenings:
        recorder.record(event)
    return recorder


@contextmanager
def made_once(fill: Callable[[Engine], None], folder: Path) -> Iterator[Callable[[str], str]]:
    """A function from a kind of database to one that ``fill`` has filled: made in ``folder`` when
    it is first asked for.
    """
    with ExitStack() as stack:

        @functools.cache
        def original(kind: str) -> str:
            path = folder / "results.db"
            database = (
                str(path) if kind == "sqlite" else stack.enter_context(postgres.empty_database())
            )
            engine = open_for_writing(database)
            fill(engine)
            engine.dispose()
            assert kind != "sqlite" or [*folder.iterdir()] == [path]  # a copy of it is complete
            return database

        yield original


def silent(database: Path | str, recorder: Recorder) -> Recorder:
    """Have a recorder be one of another machine that was last heard of long ago; it goes on all the
    same.
    """
    recorder.owner = f"elsewhere:1:2:{recorder.owner.rpartition(':')[2]}"
    changes = "owner = ?, heartbeat_at = '2020-02-02 00:00:00.000000', heartbeat_clock = NULL"
    change(database, f"UPDATE runs SET {changes} WHERE id = {recorder.run_id}", recorder.owner)
    return recorder


def read(database: Path | str, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """Read a file or a server's database with a connection of its own, past everything that is
    under test.
    """
    with closing(_connect(database)) as connection:
        rows: list[tuple[Any, ...]] = _execute(connection, sql, values).fetchall()
        return rows


def schema(path: Path) -> list[tuple[Any, ...]]:
    """Tables, columns in their order, indexes and views of a file, however its statements are
    spaced; and its version.
    """
    statements = [
        (kind, name, " ".join((sql or "").lower().split()))
        for kind, name, sql in read(path, "SELECT type, name, sql FROM sqlite_master")
    ]
    stamps = [
        read(path, sql)[0] for sql in ("PRAGMA application_id", "SELECT * FROM alembic_version")
    ]
    return [*sorted(statements), *stamps]


def change(database: Path | str, sql: str, *values: Any) -> None:
    """Change a file or a server's database with a connection of its own."""
    with closing(_connect(database)) as connection, connection:
        _execute(connection, sql, values)


def digest(database: Path | str) -> None:
    """Store new digests of the rows of all runs with a result, after they were changed by hand."""
    url = str(database) if "://" in str(database) else f"sqlite:///{database}"
    engine = create_engine(url)
    with engine.begin() as connection:
        row_digests.store(connection)
    engine.dispose()


def _connect(database: Path | str) -> Any:
    return postgres.connect(str(database)) if "://" in str(database) else sqlite3.connect(database)


def _execute(connection: Any, sql: str, values: tuple[Any, ...]) -> Any:
    if isinstance(connection, sqlite3.Connection):
        return connection.execute(sql, values)
    return connection.execute(sql.replace("?", "%s") if values else sql, values or None)
