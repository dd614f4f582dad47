"""Which stored runs a sweep makes again, in a database of either kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy import Engine

from dynabro_cli.core.errors import AlreadyStoredError, RunHeldError
from dynabro_cli.core.registration.digests import DIGITS
from dynabro_cli.experiment.comparison import CodeComparison
from dynabro_cli.runs.store.write.recorder import Recorder
from dynabro_cli.runs.store.write.standing import (
    Standing,
    UpTo,
    changed,
    never,
    read_standing,
    repeat_of,
    state_of,
)
from dynabro_cli.runs.store.write.sweep_entry import SweepEntry
from tests.runs.store.made import both, read, record, started, whole_run

OTHER = json.dumps({"attacks/sf": "0" * DIGITS})
KEYS = {letter: letter * 64 for letter in "abcdef"}


def fill(engine: Engine) -> None:
    """a and b: results, b of other code; c: a failure; d: an interrupted run; e: a result, and a
    repetition that failed.
    """
    record(engine, whole_run(key=KEYS["a"]))
    record(engine, whole_run(key=KEYS["b"], code_digests=OTHER))
    record(engine, [started(KEYS["c"])]).failed("bang")
    record(engine, [started(KEYS["d"])]).interrupted()
    record(engine, whole_run(key=KEYS["e"]))
    record(engine, [started(KEYS["e"])]).failed("bang")


@both
def test_what_is_made_again(engine: Engine, database: str) -> None:
    fill(engine)
    expected = {
        never: ("stored", "stored", "failed", None, "stored", None),
        changed: ("stored", None, "failed", None, "stored", None),
        UpTo(0): ("stored", "stored", "failed", None, "stored", None),
        UpTo(2): (None, None, "failed", None, "stored", None),
        UpTo(5): (None, None, None, None, "failed", None),
        UpTo(6): (None, None, None, None, None, None),
    }
    with engine.connect() as connection:
        standing = {repeat: Standing(connection, repeat) for repeat in expected}
        for repeat, ends in expected.items():
            found = standing[repeat]
            assert tuple(found.end_of(key) for key in KEYS.values()) == ends, repeat
        assert found.compare(KEYS.values()) == CodeComparison(3, 1, {"attacks/sf": 1}, 0, 2)
    for repeat, ends in expected.items():
        for retry_failed, ending in ((False, (None,)), (True, (None, "failed"))):
            made = standing[repeat].to_make(KEYS.values(), retry_failed=retry_failed)
            assert list(made) == [
                key for key, end in zip(KEYS.values(), ends, strict=True) if end in ending
            ]
        recorder = Recorder(engine, repeat=repeat)
        assert tuple(recorder.state(key).end for key in KEYS.values()) == ends


def test_a_rerun_of_all_goes_on_until_it_is_complete(engine: Engine, database: str) -> None:
    fill(engine)

    def begun(name: str = "s") -> object:
        with engine.connect() as connection:
            return repeat_of(connection, name, "all")

    def entry(name: str = "s", rerun_after: int | None = None) -> SweepEntry:
        return SweepEntry(
            engine, name=name, runs=1, listed={}, jobs=1, executor="local", rerun_after=rerun_after
        )

    assert begun() == UpTo(6)
    with pytest.raises(ZeroDivisionError), entry(rerun_after=3) as first:
        first.complete = 1 // 0 == 0
    assert begun() == UpTo(3, goes_on=True)
    assert begun("t") == UpTo(6)
    with entry("t"):
        pass
    with entry(rerun_after=3):  # it ends, and some runs are left
        assert begun() == UpTo(3, goes_on=True)
    assert begun() == UpTo(3, goes_on=True)
    assert read_standing(database, "s", "all").goes_on
    with entry(rerun_after=3) as last:
        last.complete = True
    assert begun() == UpTo(6)
    assert read(database, "SELECT rerun_after FROM sweeps ORDER BY id") == [
        (3,),
        (None,),
        (3,),
        (None,),
    ]
    with engine.connect() as connection:
        assert repeat_of(connection, "s", "none") is never
        assert getattr(repeat_of(connection, "s", "changed"), "func", None) is changed


@both
def test_without_tables_there_is_nothing_to_make_again(database: str) -> None:
    found = read_standing(database, "s", "all")
    assert found.repeat == UpTo(0)
    assert found.end_of(KEYS["a"]) is None
    assert found.compare(KEYS.values()) == CodeComparison()
    assert "postgresql" in database or not Path(database).exists()


def test_in_an_empty_file_there_is_nothing_to_make_again(path: Path) -> None:
    path.touch()
    assert read_standing(str(path), "s", "all").end_of(KEYS["a"]) is None


def test_an_empty_database_has_no_result(engine: Engine) -> None:
    with engine.connect() as connection:
        assert repeat_of(connection, "s", "all") == UpTo(0)


def test_a_result_that_is_made_again_elsewhere_is_waited_for(engine: Engine) -> None:
    record(engine, whole_run(key=KEYS["a"]))
    record(engine, [started(KEYS["a"])])  # a repetition in progress
    assert state_of(engine, KEYS["a"]).end == "stored"
    with pytest.raises(RunHeldError):
        state_of(engine, KEYS["a"], UpTo(1))


def test_what_another_has_made_again_in_between_stays(engine: Engine) -> None:
    record(engine, whole_run(key=KEYS["a"]))
    recorder = Recorder(engine, repeat=UpTo(1))
    assert recorder.state(KEYS["a"]).end is None
    record(engine, whole_run(key=KEYS["a"]), repeat=UpTo(1))
    with pytest.raises(AlreadyStoredError):
        recorder.record(started(KEYS["a"]))
    assert recorder.state(KEYS["a"]).end == "stored"


def test_a_repetition_that_fails_before_it_starts_is_stored_beside_the_result(
    engine: Engine, database: str
) -> None:
    record(engine, whole_run(key=KEYS["a"]))
    recorder = Recorder(engine, repeat=UpTo(1))
    assert not recorder.failed_before_going_on(KEYS["a"], "bang")
    recorder.record(started(KEYS["a"]))
    recorder.failed("bang")
    assert read(database, "SELECT status FROM runs ORDER BY id") == [("finished",), ("failed",)]
