"""Runs made by hand, with the key of their spec and rows that agree, as ``dynabro db check``
requires.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dynabro_cli.core import events
from dynabro_cli.experiment.key import canonical_json, run_key
from dynabro_cli.runs.store.open.engine import open_for_writing
from tests.runs.store import made

ROUNDS = 6


def key(seed: int) -> str:
    """The key of the run with this seed."""
    return run_key({"seed": seed})


def beginning(seed: int, number: int = ROUNDS, **columns: Any) -> list[events.Event]:
    """A run's start, its first evaluation, and ``number`` rounds with an evaluation behind them."""
    spec = {"spec": canonical_json({"seed": seed}), "seed": seed, "budget": ROUNDS}
    return [
        made.started(key(seed), **spec | columns),
        made.evaluated(0),
        made.rounds(0, number - 1),
        made.evaluated(number),
    ]


def shared(seed: int) -> list[Any]:
    """A whole run whose seventeen workers have samples of their own: two of the worker's label, and
    one of the next.
    """
    spec = {"data": {"name": "sorted"}, "seed": seed}
    start, *others = run(seed, spec=canonical_json(spec), data="sorted")
    labels = [(worker, worker + more, 2 - more) for worker in range(17) for more in (0, 1)]
    return [events.Started(run_key(spec), start.record, None, tuple(labels)), *others]  # type: ignore[union-attr]


def thin(database: Path | str, run_id: int, every: int) -> None:
    """Thin a run where it is, as ``dynabro db thin`` has it in a copy."""
    counts = (
        "SELECT run_id, byzantine, COUNT(*) FROM rounds WHERE run_id = ? GROUP BY run_id, byzantine"
    )
    made.change(
        database, f"INSERT INTO byzantine_counts (run_id, byzantine, rounds) {counts}", run_id
    )
    last = "(SELECT MAX(round) FROM rounds WHERE run_id = ?)"
    made.change(
        database,
        f"DELETE FROM rounds WHERE run_id = ? AND MOD(round, ?) <> 0 AND round <> {last}",
        run_id,
        every,
        run_id,
    )
    made.change(database, "UPDATE runs SET rounds_every = ? WHERE id = ?", every, run_id)
    made.digest(database)


def stale_index(path: Path) -> None:
    """Store another run, and take an index back to what it was before: SQLite reads all of it
    without an error.
    """
    engine = open_for_writing(str(path))
    engine.dispose()
    ((page,),) = made.read(path, "SELECT rootpage FROM sqlite_master WHERE name = 'runs_cell'")
    place = slice(4096 * (page - 1), 4096 * page)
    before = path.read_bytes()[place]
    made.record(engine, run(99))
    content = bytearray(path.read_bytes())
    assert content[place] != before
    content[place] = before
    path.write_bytes(content)


def run(
    seed: int, accuracy: float = 0.5, number: int = ROUNDS, **columns: Any
) -> list[events.Event]:
    """A whole run."""
    return [
        *beginning(seed, number, **columns)[:-1],
        made.evaluated(number, accuracy),
        made.finished(number, accuracy),
    ]
