"""``store.merge``: whose result stays, what a stranger's database cannot do, and that a run is
there whole or not at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from dynabro_cli.answers.analysis.searches import read_searches
from dynabro_cli.core import events
from dynabro_cli.core.errors import BusyError, DatabaseError, NotFoundError, SpecError
from dynabro_cli.experiment.grid import search_file
from dynabro_cli.runs.store.care import merge as merge_module
from dynabro_cli.runs.store.care.check import check
from dynabro_cli.runs.store.care.merge import Merged, merge
from dynabro_cli.runs.store.environments import VERSIONS
from dynabro_cli.runs.store.open.engine import open_for_writing, open_read_only
from dynabro_cli.runs.store.write import trials
from dynabro_cli.runs.store.write.origin import Origin, diff_of
from dynabro_cli.runs.store.write.side_files import SideFiles
from dynabro_cli.runs.store.write.sweep_entry import SweepEntry
from tests.postgres import empty_database
from tests.runs.store import made, sound
from tests.runs.store.made import change, read, record

ROOT = Path(__file__).parents[3]
PAIRS = ["sqlite-sqlite", "sqlite-postgresql", "postgresql-sqlite"]


@pytest.fixture
def backend() -> str:
    """What most tests merge into; ``pair`` has others."""
    return "sqlite"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNABRO_STATE", str(tmp_path / "state"))


@pytest.fixture
def other(tmp_path: Path) -> str:
    """Another database's file, which is not there yet."""
    return str(tmp_path / "other.db")


@pytest.fixture(params=PAIRS)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Two databases without tables: the other one, and the own one."""
    if request.param == "sqlite-sqlite":
        yield str(tmp_path / "a.db"), str(tmp_path / "b.db")
        return
    with empty_database() as url:
        file = str(tmp_path / "a.db")
        yield (url, file) if request.param == "postgresql-sqlite" else (file, url)


def fill(database: str) -> None:
    """A run of each status; the last is in progress."""
    engine = open_for_writing(database)
    record(engine, sound.run(1, sweep="s"))
    record(
        engine,
        [
            *sound.beginning(2)[:-1],
            made.evaluated(6, 0.1),
            events.Diverged(5, 0.1, 0.9, None, made.totals(6)),
        ],
    )
    record(engine, [*sound.beginning(3, 4), made.checkpointed(4)]).interrupted()
    record(engine, sound.beginning(4, 2)[:2]).failed("why")
    record(engine, sound.beginning(5, 3))._commit({})
    record(engine, sound.run(1)[:1])  # a repetition
    engine.dispose()


def statuses(database: str) -> dict[str, str]:
    return {key: status for key, status in read(database, "SELECT run_key, status FROM runs")}  # noqa: C416


@pytest.mark.thorough
def test_everything_comes_over(pair: tuple[str, str]) -> None:
    other, database = pair
    fill(other)
    before = read(other, "SELECT * FROM runs ORDER BY id")
    merged = merge(other, database)
    assert [sound.key(seed) for seed in range(1, 6)] == merged.copied
    assert (merged.left, merged.here, merged.replaced, merged.held, merged.unsound) == (
        1,
        0,
        [],
        [],
        {},
    )
    assert statuses(database) == {
        sound.key(1): "finished",
        sound.key(2): "diverged",
        sound.key(3): "interrupted",
        sound.key(4): "failed",
        sound.key(5): "interrupted",
    }
    assert read(
        database, "SELECT COUNT(owner) + COUNT(heartbeat_at) + COUNT(checkpoint) FROM runs"
    ) == [(0,)]
    assert read(database, "SELECT DISTINCT sweep FROM runs WHERE sweep IS NOT NULL") == read(
        other, "SELECT DISTINCT sweep FROM runs WHERE sweep IS NOT NULL"
    )
    for columns, table in (
        (
            (
                "level, cost, t.byzantine, switched, dynamic, accepted, t.learning_rate, "
                "gradient_norm, aggregation_error"
            ),
            "rounds",
        ),
        ("samples, test_accuracy, test_loss, train_loss, gap", "evaluations"),
    ):
        sql = f"""
            SELECT seed, round, t.budget, {columns} FROM {table} t JOIN runs ON runs.id = run_id
            WHERE run_key NOT LIKE '%+rerun' ORDER BY 1, 2
        """
        assert read(database, sql) == read(other, sql)
    assert read(other, "SELECT * FROM runs ORDER BY id") == before
    assert check(database).problems == []


@pytest.mark.thorough
def test_a_second_merge_does_nothing(pair: tuple[str, str]) -> None:
    other, database = pair
    fill(other)
    merge(other, database)
    tables = ("runs", "rounds", "evaluations")
    before = [read(database, f"SELECT * FROM {table} ORDER BY 1, 2") for table in tables]
    assert merge(other, database) == Merged(here=2, left=4)
    assert [read(database, f"SELECT * FROM {table} ORDER BY 1, 2") for table in tables] == before


def test_times_and_texts_are_as_they_were(pair: tuple[str, str]) -> None:
    other, database = pair
    record(open_for_writing(other), sound.run(1))
    merge(other, database)
    columns = (
        "started_at, finished_at, wall_seconds, learning_rate, spec, device, host, pid, git_commit"
    )
    ours, theirs = (
        read(name, f"SELECT {columns}, {VERSIONS} FROM runs")[0] for name in (database, other)
    )
    assert list(map(str, ours))[:2] == list(map(str, theirs))[:2]
    assert ours[2:] == theirs[2:]


def test_a_result_takes_the_place_of_a_run_without_one(
    engine: Engine, database: str, other: str
) -> None:
    record(open_for_writing(other), sound.run(1))
    record(engine, [*sound.beginning(1, 3), made.checkpointed(3)]).interrupted()
    assert SideFiles.of(database).checkpoints()
    assert merge(other, database) == Merged(replaced=[sound.key(1)])
    assert statuses(database) == {sound.key(1): "finished"}
    assert check(database).problems == []
    assert not SideFiles.of(database).checkpoints()


def test_a_run_in_progress_here_is_left_alone(engine: Engine, database: str, other: str) -> None:
    record(open_for_writing(other), sound.run(1))
    recorder = record(engine, sound.beginning(1, 3))
    assert merge(other, database) == Merged(held=[sound.key(1)])
    assert merge(other, database, dry_run=True) == Merged(held=[sound.key(1)])
    recorder.record(made.rounds(3, 5))
    made.silent(database, recorder)
    assert merge(other, database) == Merged(replaced=[sound.key(1)])


def test_a_run_that_begins_while_merging_is_left_alone(
    engine: Engine, database: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(open_for_writing(other), [*sound.run(1), *sound.run(2)])
    merge(
        other,
        database,
        progress=lambda done, _: record(engine, sound.beginning(2, 3)) if done == 0 else None,
    )
    assert statuses(database) == {sound.key(1): "finished", sound.key(2): "running"}


def test_a_run_that_gets_its_result_while_merging_is_here(
    engine: Engine, database: str, other: str
) -> None:
    record(open_for_writing(other), sound.run(1))
    merged = merge(
        other,
        database,
        progress=lambda done, _: record(engine, sound.run(1)) if done == 0 else None,
    )
    assert merged == Merged(here=1)


def test_a_database_that_is_locked_while_merging_is_called_busy(
    engine: Engine, path: Path, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(open_for_writing(other), sound.run(1))
    monkeypatch.setenv("DYNABRO_BUSY_SECONDS", "0.01")
    with (
        contextlib.closing(sqlite3.connect(path, isolation_level=None)) as another,
        pytest.raises(BusyError, match="was locked by another program") as caught,
    ):
        merge(other, str(path), progress=lambda *_: another.execute("BEGIN IMMEDIATE"))
    assert str(caught.value).startswith(str(path))


def test_a_result_here_stays_and_what_differs_is_told(
    engine: Engine, database: str, other: str
) -> None:
    record(open_for_writing(other), [*sound.run(1, 0.75), *sound.run(2, 0.5)])
    record(engine, [*sound.run(1, 0.5), *sound.run(2, 0.5)])
    merged = merge(other, database)
    assert merged.here == 2
    (different,) = merged.different
    assert different.run_key == sound.key(1)
    assert (different.here["final_accuracy"], different.there["final_accuracy"]) == (0.5, 0.75)
    assert read(database, "SELECT final_accuracy FROM runs") == [(0.5,), (0.5,)]


@pytest.mark.parametrize("end", ["interrupted", "failed"])
def test_a_run_without_a_result_comes_only_where_there_is_nothing_of_it(
    end: str, engine: Engine, database: str, other: str
) -> None:
    there = record(open_for_writing(other), sound.beginning(1, 3))
    there.interrupted() if end == "interrupted" else there.failed("there")
    record(engine, sound.beginning(1, 2)[:2]).failed("here")
    assert merge(other, database) == Merged(left=1)
    assert read(database, "SELECT status, rounds, error FROM runs") == [("failed", 0, "here")]


@pytest.mark.thorough
def test_a_rehearsal_says_what_would_be_done_and_writes_nothing(pair: tuple[str, str]) -> None:
    other, database = pair
    fill(other)
    if "://" not in database:
        assert merge(other, database, dry_run=True).copied == [
            sound.key(seed) for seed in range(1, 6)
        ]
        assert not Path(database).exists()
    engine = open_for_writing(database)
    record(engine, sound.run(1, 0.75))
    record(engine, sound.beginning(2, 3)).interrupted()
    rehearsed = merge(other, database, dry_run=True)
    assert len(statuses(database)) == 2
    assert merge(other, database) == rehearsed
    assert len(rehearsed.copied) == 3


SPOILED = [
    ("UPDATE runs SET seed = 99 WHERE id = 1", "its rows are not as they were stored"),
    ("UPDATE runs SET spec = '{\"seed\":99}' WHERE id = 1", "its key does not belong to its spec"),
    (
        "UPDATE runs SET started_at = 'aaaaaaaaaaaaaaaaaaaaa' WHERE id = 1",
        "started_at is not a valid timestamp",
    ),
    ("UPDATE runs SET host = x'00' WHERE id = 1", "runs.host"),
    (
        "UPDATE runs SET host = CAST(x'ff41' AS TEXT) WHERE id = 1",
        "its rows are not as they were stored",
    ),
    ("UPDATE runs SET run_key = zeroblob(10000000) WHERE id = 1", "runs.run_key"),
    ("UPDATE rounds SET cost = 'x' WHERE run_id = 1 AND round = 2", "rounds.cost"),
    ("UPDATE rounds SET cost = -9223372036854775808 WHERE run_id = 1", "rounds.cost"),
    (
        "UPDATE rounds SET learning_rate = 9e999 WHERE run_id = 1 AND round = 2",
        "rounds.learning_rate",
    ),
    ("UPDATE evaluations SET test_loss = zeroblob(1000) WHERE run_id = 1", "evaluations.test_loss"),
    ("DELETE FROM rounds WHERE run_id = 1 AND round = 2", "its rows are not as they were stored"),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("sql", "problem"), SPOILED)
def test_an_unsound_run_is_left_out(sql: str, problem: str, database: str, other: str) -> None:
    record(open_for_writing(other), [*sound.run(1), *sound.run(2)])
    change(other, sql)
    merged = merge(other, database)
    assert merged.copied == [sound.key(2)]
    assert problem in "; ".join(merged.unsound[1])
    assert statuses(database) == {sound.key(2): "finished"}


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        (
            "UPDATE sweeps SET runs = 99999999999",
            "sweep 1: a value of sweeps.runs is of another type, or too large",
        ),
        (
            "UPDATE sweeps SET yaml = CAST(yaml AS BLOB)",
            "sweep 1: a value of sweeps.yaml is of another type, or too large",
        ),
        (
            "UPDATE sweeps SET started_at = '2026-13-01 00:00:00'",
            "sweep 1: started_at is not a valid timestamp",
        ),
        ("UPDATE sweeps SET status = 'odd'", "sweep 1: unknown status"),
        (
            "UPDATE trials SET value = 'best'",
            "trial 0 of s: a value of trials.value is of another type, or too large",
        ),
        (
            "UPDATE trials SET parameters = x'7b7d'",
            "trial 0 of s: a value of trials.parameters is of another type, or too large",
        ),
        (
            "UPDATE trials SET run_keys = '[7]'",
            "trial 0 of s: its parameters or run keys cannot be read",
        ),
        ("UPDATE trials SET status = 'odd'", "trial 0 of s: unknown status"),
        ("INSERT INTO trials SELECT * FROM trials", "searches and findings: they cannot be stored"),
    ],
)
def test_an_unsound_search_is_left_out(sql: str, problem: str, database: str, other: str) -> None:
    searched(other)
    # a stranger's tables have neither keys nor checks
    with contextlib.closing(sqlite3.connect(other)) as raw, raw:
        raw.executescript(
            "CREATE TABLE copy AS SELECT * FROM trials; DROP TABLE trials; ALTER TABLE copy "
            "RENAME TO trials"
        )
        raw.execute("PRAGMA ignore_check_constraints = ON")
        raw.execute(sql)
    merged = merge(other, database)
    assert merged.copied == [sound.key(1)]
    first, *others = merged.unsound_rows
    assert first.partition(" (")[0] == problem
    lost = ["trial 0 of s: its search cannot be read (its text is missing)"]
    assert others == (lost if problem.startswith("sweep") else [])
    assert read(database, "SELECT COUNT(*) FROM sweeps") == [(0,)]
    assert read(database, "SELECT COUNT(*) FROM trials") == [(0,)]
    assert check(database).problems == []


TEXT = """name: s
search: {attack: [sf, "ipm:epsilon={0.5..20 log}"], learning_rate: ["{0.001..0.1 log}"]}
minimize: final_accuracy
trials: 3
"""
CHOICES = {"attack": "sf", "learning_rate": 0.01}


def searched(
    path: str, text: str = TEXT, parameters: dict[str, Any] | None = None, number: int = 1
) -> None:
    """Write a database with one run, of one trial of a search."""
    engine = open_for_writing(path)
    with SweepEntry(
        engine, name="s", runs=1, listed={}, jobs=1, executor="local", text=lambda _: text
    ) as entry:
        record(engine, sound.run(number))
        with engine.begin() as connection:
            keys = [sound.key(number)]
            trials.begin(connection, "s", 0, entry.id, parameters or CHOICES, keys)
    engine.dispose()


def grown(levels: int) -> str:
    """A short text whose aliases stand for a list of ten to the power of so many values."""
    lines = ["y0: &y0 1"]
    lines += [f"y{n}: &y{n} [{', '.join([f'*y{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join([TEXT, *lines, ""])


FOREIGN = [
    (grown(16), "s:6: aliases (*name) are not read here"),
    (TEXT + "description: &a [*a]\n", "s:5: aliases (*name) are not read here"),
    (TEXT.replace("final_accuracy", "[1]"), "s:3: minimize must be a text"),
    (TEXT.replace("final_accuracy", "5"), "s:3: minimize=5 is not legal"),
    (TEXT.replace("final_accuracy", ""), "s:3: minimize must be a text"),
    (TEXT.replace("final_accuracy", "2026-01-01"), "s:3: minimize=2026-01-01 is not legal"),
    (TEXT + "then: [1]\n", "s:5: then: it has no seeds"),
    (TEXT + "then: {seeds: x}\n", "s:5: seeds=x is not legal"),
    (TEXT + "base: " + "{a: " * 400 + "}" * 400, "s: it is nested too deeply"),
    (TEXT + "base: " + "[" * 100_000, "s: it is nested too deeply"),
    ("a\nsearch: " + "x" * 1_000_001, "s: it has more than 1,000,000 characters"),
    ("\nsearch: !!python/object/apply:os.getcwd []\n", "s:2: tags such as"),
]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("text", "problem"), FOREIGN, ids=[str(n) for n in range(len(FOREIGN))])
def test_a_foreign_search_is_read_as_a_file_is(
    text: str, problem: str, database: str, other: str
) -> None:
    """A search that is refused as a file is left out, and never reaches a reader of results."""
    searched(database)
    searched(other, text)
    (found,) = check(other).problems
    assert found.startswith(f"trial 0 of s: its search cannot be read ({problem}"), found
    for dry_run in (True, False):
        merged = merge(other, database, dry_run=dry_run)
        assert (merged.trials, merged.unsound_rows) == (0, [found])
    engine = open_read_only(other)
    with (
        pytest.warns(
            UserWarning, match="1 trial left out, first trial 0 of s: its search cannot be"
        ),
        pytest.raises(NotFoundError, match="no trial of the search can be read"),
    ):
        read_searches(engine, None)


@pytest.mark.parametrize(
    "parameters",
    [
        {"attack": "sf", "learning_rate": "x"},
        {"attack": "sf", "learning_rate": True},
        {"attack": "sf", "learning_rate": 1e300},
        {"attack": "sf", "learning_rate": [0.01]},
        {"attack": "sf", "learning_rate": None},
        {"attack": "sf"},
        {"attack": 0, "learning_rate": 0.01},
        {"attack": "alie", "learning_rate": 0.01},
        CHOICES | {"budget": 7},
        {"attack": "ipm:epsilon={0.5..20 log}", "learning_rate": 0.01},
    ],
    ids=str,
)
def test_choices_that_the_search_does_not_have_are_left_out(
    parameters: dict[str, Any], database: str, other: str
) -> None:
    searched(other, TEXT, parameters)
    (found,) = check(other).problems
    assert found.startswith("trial 0 of s: its parameters are not of its search: ")
    merged = merge(other, database)
    assert (merged.trials, merged.unsound_rows) == (0, [found])


def test_texts_of_searches_are_read_before_the_database_is_held(
    database: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a long text takes seconds, in which no other command could write."""
    searched(database, TEXT)
    searched(other, TEXT.replace("trials: 3", "trials: 4"), number=2)
    parse, held = search_file.parse_search, []

    def parsed(text: str, name: str) -> Any:
        with contextlib.closing(sqlite3.connect(database, timeout=0)) as raw:
            try:
                raw.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                held.append(text)
        return parse(text, name)

    trials._parsed.cache_clear()
    monkeypatch.setattr(search_file, "parse_search", parsed)
    assert merge(other, database).trials == 1
    assert held == []
    assert trials._parsed.cache_info().misses == 2


@pytest.mark.thorough
@pytest.mark.parametrize("content", [b"", b"no zlib", zlib.compress(b"other changes")])
def test_changes_that_are_not_what_the_run_names(content: bytes, database: str, other: str) -> None:
    record(open_for_writing(other), sound.run(1), origin=Origin("c", b"changes"))
    record(open_for_writing(other), sound.run(2))
    assert (
        diff_of(
            open_read_only(other), {"id": 1, "git_diff": hashlib.sha256(b"changes").hexdigest()}
        )
        == b"changes"
    )
    change(other, "UPDATE diffs SET content = ?", content)
    problem = (
        "the changes of its checkout cannot be unpacked, or do not have the SHA-256 that "
        "the run names"
    )
    assert check(other).problems == [f"run 1: {problem}"]
    assert merge(other, database).unsound == {1: [problem]}
    with pytest.raises(DatabaseError, match=f"run 1: {problem}"):
        diff_of(
            open_read_only(other), {"id": 1, "git_diff": hashlib.sha256(b"changes").hexdigest()}
        )


def test_a_key_that_comes_twice_counts_once(database: str, other: str) -> None:
    record(open_for_writing(other), [*sound.run(1), *sound.run(2)])
    change(other, "CREATE TABLE copy AS SELECT * FROM runs")
    change(other, "PRAGMA writable_schema = ON")
    change(
        other,
        "UPDATE copy SET id = 9, run_key = (SELECT run_key FROM copy WHERE id = 1) WHERE id = 2",
    )
    change(other, "ALTER TABLE runs RENAME TO old")
    change(other, "ALTER TABLE copy RENAME TO runs")
    merged = merge(other, database)
    assert merged.copied == [sound.key(1)]


def view_that_calls(path: str) -> None:
    change(path, "ALTER TABLE rounds RENAME TO others")
    change(
        path, "CREATE VIEW rounds AS SELECT others.* FROM others, (SELECT load_extension('evil'))"
    )


def not_a_database(path: str) -> None:
    Path(path).write_text("import os\n")


def old(path: str) -> None:
    change(path, "PRAGMA user_version = 3")


def stale_index(path: str) -> None:
    sound.stale_index(Path(path))


def cut(path: str) -> None:
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[: len(content) // 8192 * 4096])


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (view_that_calls, "has no table rounds"),
        (not_a_database, "is not a dynabro database"),
        (old, "has schema version 3"),
        (cut, "is damaged"),
        (stale_index, "is damaged"),
    ],
)
def test_a_stranger_is_refused_and_nothing_is_made(
    spoil: Callable[[str], None], problem: str, path: Path, other: str
) -> None:
    record(open_for_writing(other), [*sound.run(1), *sound.run(2)])
    spoil(other)
    with pytest.raises(DatabaseError, match=problem) as caught:
        merge(other, str(path))
    assert other in str(caught.value)
    assert not path.exists()


def test_a_trigger_of_the_other_database_does_nothing(database: str, other: str) -> None:
    record(open_for_writing(other), sound.run(1))
    change(other, "CREATE TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM rounds; END")
    before = Path(other).read_bytes()
    merge(other, database)
    assert Path(other).read_bytes() == before
    assert check(database).problems == check(database).notes == []


def test_what_is_not_there(path: Path, other: str) -> None:
    with pytest.raises(NotFoundError, match="there is no database"):
        merge(other, str(path))
    assert not path.exists()


def test_a_database_is_not_merged_into_itself(database: str, path: Path, tmp_path: Path) -> None:
    record(open_for_writing(database), sound.run(1))
    link = tmp_path / "link.db"
    link.symlink_to(path)
    hard = tmp_path / "hard.db"
    os.link(path, hard)
    for name in (database, str(link), str(hard), f"sqlite:///{path}"):
        with pytest.raises(SpecError, match="merged into itself"):
            merge(name, database)


def test_a_server_database_is_not_merged_into_itself(postgres: str) -> None:
    open_for_writing(postgres)
    for name in (postgres, postgres.replace("postgresql+psycopg", "postgresql")):
        with pytest.raises(SpecError, match="merged into itself"):
            merge(name, postgres)


KILLED = [
    ("mid-merge", 0),
    ("after-merge", 1),
    ("mid-merge:8", 1),
    ("mid-merge:14", 1),
    ("after-merge:2", 2),
]
"""Where a merge is killed, and how many of three runs it has stored whole by then."""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("pair", "place", "whole"),
    [*(("sqlite-sqlite", *where) for where in KILLED), *((pair, *KILLED[3]) for pair in PAIRS[1:])],
    indirect=["pair"],
)
def test_a_merge_that_is_killed_can_be_repeated(
    place: str, whole: int, pair: tuple[str, str]
) -> None:
    other, database = pair
    record(open_for_writing(other), [*sound.run(1), *sound.run(2), *sound.run(3)])
    record(open_for_writing(database), sound.beginning(2, 3)).interrupted()
    program = (
        "import sys; from dynabro_cli.runs.store.care.merge import merge; merge(*sys.argv[1:])"
    )
    environment = os.environ | {"DYNABRO_FAILPOINT": f"{place}=KILL"}
    killed = subprocess.run(
        [sys.executable, "-c", program, other, database], env=environment, cwd=ROOT, check=False
    )
    assert killed.returncode == -9
    assert list(statuses(database).values()).count("finished") == whole
    assert check(database).problems == []
    merged = merge(other, database)
    assert len(merged.copied) + len(merged.replaced) == 3 - whole
    assert merged.here == whole
    assert statuses(database) == {sound.key(seed): "finished" for seed in (1, 2, 3)}
    assert check(database).problems == []


def test_a_locked_database_is_called_busy(
    engine: Engine, database: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(open_for_writing(other), sound.run(1))
    monkeypatch.setenv("DYNABRO_BUSY_SECONDS", "0.01")
    with engine.begin(), pytest.raises(BusyError, match="was locked by another program") as caught:
        merge(other, database)
    assert database in str(caught.value)


def test_more_rounds_than_a_batch(pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    other, database = pair
    record(open_for_writing(other), sound.run(1))
    monkeypatch.setattr(merge_module, "BATCH_ROWS", 4)
    seen: list[tuple[int, int]] = []
    merge(other, database, progress=lambda done, total: seen.append((done, total)))
    assert read(database, "SELECT COUNT(*) FROM rounds") == [(6,)]
    assert seen == [(0, 1), (1, 1)]
