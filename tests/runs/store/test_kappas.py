"""``store.kappas``: what is stored of searches, what is wrong with it, and how it gets into other
databases.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine

from dynabro_cli.runs.store.care.check import check
from dynabro_cli.runs.store.care.merge import merge
from dynabro_cli.runs.store.care.thin import thin
from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.write import kappas
from tests.runs.store import made, sound
from tests.runs.store.made import both, change, finding, read

COLUMNS = (
    "rule, workers, byzantine, dimension, restarts, steps, seed, empirical, proved, "
    "evaluations, worst, version"
)


@both
def test_what_is_stored(engine: Engine, database: str) -> None:
    kappas.store(engine, [finding(), finding(rule="mean", unbounded=True, proved=None)], "1.0")
    assert read(database, f"SELECT {COLUMNS} FROM verified_kappa ORDER BY id") == [
        ("cwmed", 3, 1, 1, 2, 30, 0, 1.0, 16.0, 100, "[[9.0],[0.0],[2.0]]", "1.0"),
        ("mean", 3, 1, 1, 2, 30, 0, 1.0, None, 100, "[[9.0],[0.0],[2.0]]", "1.0"),
    ]
    assert [
        tuple(map(bool, row))
        for row in read(database, "SELECT unbounded, complete FROM verified_kappa ORDER BY id")
    ] == [
        (False, True),
        (True, True),
    ]
    assert check(database).problems == []


def test_a_search_is_stored_once(engine: Engine, database: str) -> None:
    """A repetition takes the place of the first; another seed, version, m or effort is another
    search.
    """
    kappas.store(engine, [finding(), finding(empirical=2.0)], "1.0")
    assert read(database, "SELECT empirical FROM verified_kappa") == [(2.0,)]
    kappas.store(
        engine, [finding(seed=1), finding(steps=31), finding(workers=4, worst=[[0.0]] * 4)], "1.0"
    )
    kappas.store(engine, [finding()], "1.1")
    assert read(database, "SELECT COUNT(*) FROM verified_kappa") == [(5,)]


def test_an_input_that_is_too_large_is_not_kept(engine: Engine, database: str) -> None:
    kappas.store(engine, [finding(workers=3, dimension=2000, worst=[[0.1] * 2000] * 3)], "1.0")
    assert read(database, "SELECT worst FROM verified_kappa") == [(None,)]
    assert check(database).problems == []


WRONG = [
    ("created_at = '2026-13-01 00:00:00'", "created_at is not a valid timestamp"),
    ("empirical = 'much'", "a value of verified_kappa.empirical is of another type, or too large"),
]


@pytest.mark.parametrize(("changed", "problem"), WRONG, ids=[changed for changed, _ in WRONG])
def test_what_is_wrong_is_told_and_not_merged(changed: str, problem: str, path: Path) -> None:
    engine = open_for_writing(str(path))
    kappas.store(engine, [finding(), finding(seed=1)], "1.0")
    engine.dispose()
    change(path, f"UPDATE verified_kappa SET {changed} WHERE seed = 1")
    assert check(str(path)).problems == [f"kappa 2: {problem}"]
    target = path.with_name("other.db")
    merged = merge(str(path), str(target))
    assert merged.unsound_kappas == {2: [problem]}
    assert read(target, "SELECT seed FROM verified_kappa") == [(0,)]
    assert check(str(target)).problems == []


@pytest.mark.thorough
@both
def test_merging(engine: Engine, database: str, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    theirs = open_for_writing(str(other))
    kappas.store(theirs, [finding(empirical=7.0), finding(seed=1)], "1.0")
    made.record(theirs, sound.run(1))
    theirs.dispose()
    kappas.store(engine, [finding()], "1.0")
    assert merge(str(other), database, dry_run=True).kappas == 1
    assert read(database, "SELECT COUNT(*) FROM verified_kappa") == [(1,)]
    assert merge(str(other), str(tmp_path / "none.db"), dry_run=True).kappas == 2
    merged = merge(str(other), database)
    assert (merged.kappas, len(merged.copied), merged.unsound_kappas) == (1, 1, {})
    assert read(database, "SELECT seed, empirical FROM verified_kappa ORDER BY seed") == [
        (0, 1.0),
        (1, 1.0),
    ]
    times = [
        read(place, "SELECT created_at FROM verified_kappa WHERE seed = 1")
        for place in (database, str(other))
    ]
    assert str(times[0][0][0]) == str(times[1][0][0])
    assert merge(str(other), database).kappas == 0


def test_thinning_keeps_them(path: Path) -> None:
    engine = open_for_writing(str(path))
    kappas.store(engine, [finding()], "1.0")
    made.record(engine, sound.run(1))
    engine.dispose()
    target = path.with_name("thin.db")
    thin(str(path), target, 2, anonymous=True)
    assert read(target, "SELECT * FROM verified_kappa") == read(
        path, "SELECT * FROM verified_kappa"
    )
    assert check(str(target)).problems == []
