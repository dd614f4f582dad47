"""``store.check``: what a damaged database, or one changed by hand, is told to have; and nothing
where it has nothing.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine

from dynabro_cli.core import events
from dynabro_cli.core.errors import DatabaseError, NotFoundError
from dynabro_cli.core.limits import LARGEST_TEXT
from dynabro_cli.runs.store.care import check as soundness
from dynabro_cli.runs.store.care.check import check
from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.tables import runs
from dynabro_cli.runs.store.write import kappas, row_digests
from dynabro_cli.runs.store.write.recorder import Recorder
from dynabro_cli.runs.store.write.row_digests import LEFT_OUT, RUN_TABLES
from dynabro_cli.runs.store.write.side_files import SideFiles
from tests.postgres import empty_database
from tests.runs.store import made, sound
from tests.runs.store.made import change, record


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNABRO_STATE", str(tmp_path / "state"))


def fill(engine: Engine) -> None:
    """A run of every kind that there can be, and a finding."""
    record(engine, sound.run(1))
    record(
        engine,
        [
            *sound.beginning(2)[:-1],
            made.evaluated(6, 0.1),
            events.Diverged(5, 0.1, 0.9, None, made.totals(6)),
        ],
    )
    record(engine, sound.beginning(3, 4)).interrupted()
    record(engine, sound.beginning(4, 2)[:2]).failed("why")
    record(engine, sound.run(1)[:1])  # a repetition in progress
    record(engine, sound.beginning(5, 3))._commit({})
    record(engine, [made.started(sound.key(6), spec='{"seed":6}', seed=6, dimension=0)]).failed(
        "before its first round"
    )
    record(engine, thinned(8))
    sound.thin(location(engine), 8, 5)
    record(engine, sound.shared(9))
    start = sound.shared(10)[0]
    record(engine, [events.Started(start.run_key, start.record)]).failed("before it had data")
    kappas.store(engine, [made.finding()], "1.0")


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Databases that ``fill`` has filled, by kind, which each test copies."""
    with made.made_once(fill, tmp_path_factory.mktemp("original")) as original:
        yield original


@pytest.fixture
def filled(backend: str, originals: Callable[[str], str], path: Path) -> Iterator[str]:
    """A database that ``fill`` has filled, as ``--db`` takes it."""
    original = originals(backend)
    if backend == "sqlite":
        yield str(shutil.copy(original, path))
    else:
        with empty_database(like=original) as url:
            yield url


def location(engine: Engine) -> str:
    """The database as ``made`` takes it."""
    return (
        str(engine.url.database)
        if engine.dialect.name == "sqlite"
        else engine.url.render_as_string(hide_password=False)
    )


def thinned(seed: int) -> list[events.Event]:
    """A run of twelve rounds to be thinned, with other workers in each half, whose path is
    recorded.
    """
    begin, end = made.rounds(0, 6), made.rounds(7, 11, byzantine=3)
    start = made.started(
        sound.key(seed), spec=f'{{"seed":{seed}}}', seed=seed, budget=12, dimension=2
    )
    points = [
        made.evaluated(0, x=(3.0, -3.0)),
        made.evaluated(4, x=(0.5, -1e-05)),
        made.evaluated(12, x=(math.nan, 1.5e300)),
    ]
    return [start, points[0], begin, points[1], end, points[2], made.finished(12)]


@pytest.mark.thorough
@made.both
def test_a_sound_database_has_no_problem(filled: str) -> None:
    report = check(filled)
    assert report.problems == report.notes == []
    assert report.statuses == {
        "diverged": 1,
        "failed": 3,
        "finished": 3,
        "interrupted": 1,
        "running": 2,
    }
    assert (report.rounds, report.evaluations) == (6 + 6 + 4 + 3 + 4 + 6, 2 + 2 + 2 + 1 + 2 + 3 + 2)


DIGEST = "its rows are not as they were stored"
WRONG = [
    # of each table one row less, one more, and one that differs; all columns are tried below
    ("DELETE FROM rounds WHERE run_id = 1 AND round = 3", DIGEST),
    ("UPDATE rounds SET budget = budget + 3 WHERE run_id = 1", DIGEST),
    ("UPDATE rounds SET byzantine = -1 WHERE run_id = 1 AND round = 4", DIGEST),
    ("DELETE FROM rounds WHERE run_id = 8 AND round = 11", DIGEST),
    ("UPDATE rounds SET budget = 12 WHERE run_id = 8 AND round = 10", DIGEST),
    ("UPDATE byzantine_counts SET rounds = rounds - 1 WHERE byzantine = 3", DIGEST),
    ("DELETE FROM byzantine_counts", DIGEST),
    ("INSERT INTO byzantine_counts VALUES (8, 4, 0)", DIGEST),
    ("INSERT INTO byzantine_counts VALUES (1, 8, 6)", DIGEST),
    ("INSERT INTO worker_labels VALUES (1, 0, 0, 5)", DIGEST),
    ("DELETE FROM worker_labels", DIGEST),
    ("UPDATE worker_labels SET worker = 17 WHERE worker = 0", DIGEST),
    ("UPDATE evaluations SET x = '[1.0,{}]' WHERE run_id = 8 AND round = 4", DIGEST),
    ("UPDATE evaluations SET round = 5 WHERE run_id = 1 AND round = 6", DIGEST),
    ("DELETE FROM evaluations WHERE run_id = 1 AND round = 6", DIGEST),
    ("UPDATE runs SET rounds_every = 0 WHERE id = 8", DIGEST),
    ("UPDATE runs SET final_loss = NULL WHERE id = 2", DIGEST),
    (
        f"UPDATE runs SET run_key = '{'ab' * 32}' WHERE id = 1",
        "its key does not belong to its spec",
    ),
    ("UPDATE runs SET spec = '{\"seed\":99}' WHERE id = 1", "its key does not belong to its spec"),
    ("UPDATE runs SET spec = '[]' WHERE id = 1", "its spec is not valid JSON of a run"),
    ("UPDATE runs SET spec = '{\"seed\":NaN}' WHERE id = 1", "its spec is not valid JSON of a run"),
    (
        f"UPDATE runs SET spec = '{'[' * 50_000}' WHERE id = 1",
        "its spec is not valid JSON of a run",
    ),
    (
        "UPDATE runs SET run_key = run_key || '+rerun' WHERE id = 2",
        "its key ends in +rerun, though it is complete",
    ),
    ("UPDATE runs SET task = '\x1b[31mred' WHERE id = 1", DIGEST),
    (
        f"UPDATE runs SET error = '{'x' * (LARGEST_TEXT + 1)}' WHERE id = 1",
        "a value of runs.error is of another type, or too large",
    ),
]


ON_A_SERVER = {problem: (sql, problem) for sql, problem in reversed(WRONG)}.values()
"""The first of each kind; that any value of any column counts is shown below."""


@pytest.mark.parametrize(
    ("backend", "sql", "problem"),
    [*(("sqlite", *wrong) for wrong in WRONG), *(("postgresql", *wrong) for wrong in ON_A_SERVER)],
)
def test_what_does_not_agree_is_told(sql: str, problem: str, filled: str) -> None:
    change(filled, sql)
    found = check(filled).problems
    assert any(problem in line for line in found), found
    assert len({line.partition(":")[0] for line in found}) == 1  # the other runs are as they were


@pytest.mark.parametrize("versions", ["old", "[]", None])
def test_a_run_without_an_environment_is_told(versions: str | None, filled: str) -> None:
    if versions is not None:
        change(filled, f"INSERT INTO environments (id, versions) VALUES ('other', '{versions}')")
    change(filled, "UPDATE runs SET environment_id = 'other' WHERE id = 1")
    told = "run 1: the versions of its environment are missing, or are not valid JSON of a run"
    orphan = (
        "1 rows of runs have no environment; delete the rows whose environment_id is not "
        "in (SELECT id FROM environments)"
    )
    assert check(filled).problems == [told] if versions is not None else [orphan, told]


@pytest.mark.parametrize("backend", ["sqlite"])
def test_a_changed_value_of_any_column_is_noticed(filled: str) -> None:
    """One value at a time: a number with another last bit, a longer text, something for NULL."""
    real, text = "{0} * (1 + 3e-16) + 1e-300", "{0} || 'x'"
    other = (
        f"CASE TYPEOF({{0}}) WHEN 'real' THEN {real} WHEN 'text' THEN {text} ELSE "
        f"COALESCE({{0}} + 1000, 7) END"
    )
    count = 0
    for table in (runs, *RUN_TABLES):
        own, key = (
            "id" if table is runs else "run_id",
            ", ".join(column.name for column in table.primary_key.columns),
        )
        ((number,),) = made.read(
            filled, f"SELECT MAX({own}) FROM {table.name} WHERE {own} IN (1, 8, 9)"
        )
        first = f"({key}) = (SELECT {key} FROM {table.name} WHERE {own} = {number} LIMIT 1)"
        for name in sorted({*table.c.keys()} - {*LEFT_OUT, "run_id"} if number is not None else ()):
            # which takes it back
            with create_engine(f"sqlite:///{filled}").connect() as connection:
                connection.exec_driver_sql("PRAGMA ignore_check_constraints = ON")
                change = f"UPDATE {table.name} SET {name} = {other.format(name)} WHERE {first}"
                assert connection.exec_driver_sql(change).rowcount == 1
                found = row_digests.digest_problems(connection)
                # it has no result now
                assert found == ({} if name == "status" else {number: DIGEST}), (table.name, name)
            count += 1
    assert count > 80
    assert check(filled).problems == []


@pytest.mark.parametrize("value", ["'Infinity'", "'-Infinity'", "'NaN'"])
@pytest.mark.parametrize("backend", ["postgresql"])
def test_a_number_that_is_none_on_a_server(value: str, filled: str) -> None:
    change(filled, f"UPDATE rounds SET learning_rate = {value} WHERE run_id = 1 AND round = 2")
    assert check(filled).problems == [
        "run 1: a value of rounds.learning_rate is of another type, or too large"
    ]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("rounds.cost", "'many'"),
        ("rounds.cost", "3000000000"),
        ("rounds.level", "x'00'"),
        ("rounds.dynamic", "2"),
        ("rounds.learning_rate", "9e999"),
        ("rounds.gradient_norm", "'nan'"),
        ("evaluations.x", "x'00'"),
        ("evaluations.gap", "zeroblob(1000000)"),
        ("runs.seed", "1e300"),
        ("runs.run_key", f"'{'a' * 81}'"),
        ("runs.started_at", "5"),
    ],
)
@pytest.mark.parametrize("backend", ["sqlite"])
def test_a_value_of_another_type_is_told(column: str, value: str, filled: str) -> None:
    table, _, name = column.partition(".")
    change(
        filled,
        f"UPDATE {table} SET {name} = {value} WHERE {'id' if table == 'runs' else 'run_id'} = 1",
    )
    assert check(filled).problems == [
        f"run 1: a value of {column} is of another type, or too large"
    ]


@pytest.mark.parametrize(
    "value",
    ["'a b c d e f g h i j k l'", "'2026-13-01 00:00:00.000000'", "'2026-01-01T00:00:00+01'"],
)
@pytest.mark.parametrize("backend", ["sqlite"])
def test_a_time_that_is_none_is_told(value: str, filled: str) -> None:
    change(filled, f"UPDATE runs SET heartbeat_at = {value} WHERE id = 6")
    assert check(filled).problems == ["run 6: heartbeat_at is not a valid timestamp"]


@pytest.mark.parametrize("value", ["CAST(x'ff41' AS TEXT)", "CAST(x'410042' AS TEXT)"])
@pytest.mark.parametrize("backend", ["sqlite"])
def test_bytes_that_are_no_text_are_told(value: str, filled: str) -> None:
    change(filled, f"UPDATE runs SET host = {value} WHERE id = 1")
    assert check(filled).problems == [f"run 1: {DIGEST}"]


@pytest.mark.parametrize("backend", ["sqlite"])
def test_rows_of_no_run_are_told(filled: str) -> None:
    change(filled, "UPDATE rounds SET run_id = 'nobody' WHERE run_id = 1 AND round < 2")
    change(filled, "UPDATE evaluations SET run_id = 77 WHERE run_id = 1 AND round = 0")
    problems = check(filled).problems
    what = "have no run; delete the rows whose run_id is not in (SELECT id FROM runs)"
    assert problems[:2] == [f"1 rows of evaluations {what}", f"2 rows of rounds {what}"]
    assert all(line.startswith("run 1: ") for line in problems[2:])


@pytest.mark.parametrize("backend", ["sqlite"])
def test_a_status_that_is_none_is_told(filled: str) -> None:
    with contextlib.closing(sqlite3.connect(filled, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("UPDATE runs SET status = 'done' WHERE id = 1")
    problems = check(filled).problems
    assert "run 1: unknown status" in problems


# --- what is no problem


def test_a_run_that_a_dead_process_left_is_a_note(filled: str) -> None:
    change(
        filled,
        "UPDATE runs SET owner = 'elsewhere:1:2:3', heartbeat_at = '2026-01-01 "
        "00:00:00.000000' WHERE id = 6",
    )
    change(filled, "UPDATE runs SET heartbeat_clock = NULL")
    report = check(filled)
    assert report.problems == []
    assert report.notes == [
        "run 6 is in progress in a process that is presumed dead; the same command resumes it"
    ]


def test_checkpoints_that_are_missing_or_of_no_run_are_notes(
    engine: Engine, database: str, tmp_path: Path
) -> None:
    files = SideFiles.of(database)
    recorder = Recorder(engine)
    for event in (*sound.beginning(1, 3), events.Checkpointed(made.totals(3), b"data")):
        recorder.record(event)
    live = SideFiles(files.folder).save(sound.key(1), 4, recorder.owner, b"not named yet")
    assert check(database).notes == []
    recorder.interrupted()
    (kept,) = [path for path in files.checkpoints() if path.name != live]
    place = tmp_path / "state" / "checkpoints"
    unneeded = (
        f"1 checkpoint files ({(place / live).stat().st_size} bytes) in {place} are not "
        "used by any run; they can be removed"
    )
    assert check(database).notes == [unneeded]
    (place / live).unlink()
    kept.write_bytes(kept.read_bytes()[:-1])
    assert check(database).notes == [
        "run 1: its checkpoint is missing or damaged; the same command starts it from the beginning"
    ]


# --- damage


@pytest.mark.parametrize("backend", ["sqlite"])
def test_damage_is_told_and_never_more_than_a_line(filled: str) -> None:
    """Every page overwritten in turn, and the file cut at every page: a report or an error, and no
    page goes unnoticed.
    """
    with contextlib.closing(sqlite3.connect(filled)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("VACUUM")  # a page that nothing is on may hold anything
    whole = Path(filled).read_bytes()
    pages = len(whole) // 4096
    damaged = [
        whole[: 4096 * page] + b"\xa5" * 4096 + whole[4096 * (page + 1) :]
        for page in range(1, pages)
    ]
    cut = [whole[: 4096 * page - 100] for page in range(1, pages + 1)]
    for content in damaged + cut:
        Path(filled).write_bytes(content)
        try:
            report = check(filled)
        except DatabaseError as error:
            assert len(str(error).splitlines()) == 1  # noqa: PT017
        else:
            assert report.problems
            assert not any(len(line.splitlines()) > 1 for line in report.problems)


@pytest.mark.parametrize("backend", ["sqlite"])
def test_damage_that_only_sqlite_sees(engine: Engine, path: Path) -> None:
    record(engine, sound.run(1))
    sound.stale_index(path)
    report = check(str(path))
    assert report.statuses == {}
    assert any("runs_cell" in line for line in report.problems)


def view_for_a_table(path: Path) -> None:
    change(path, "ALTER TABLE rounds RENAME TO others")
    change(path, "CREATE VIEW rounds AS SELECT * FROM others")


def no_table(path: Path) -> None:
    change(path, "DROP TABLE sweeps")


def no_column(path: Path) -> None:
    change(path, "DROP VIEW final_accuracy")
    change(path, "ALTER TABLE runs DROP COLUMN host")


@pytest.mark.parametrize("backend", ["sqlite"])
@pytest.mark.parametrize(
    ("spoil", "what"), [(view_for_a_table, "rounds"), (no_table, "sweeps"), (no_column, "host")]
)
def test_another_schema_is_refused(
    spoil: Callable[[Path], None], what: str, engine: Engine, path: Path
) -> None:
    spoil(path)
    with pytest.raises(DatabaseError, match=f"has no .*{what}.*Try: restore a backup"):
        check(str(path))


def test_what_is_not_there(path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no database"):
        check(str(path))


@made.both
def test_a_check_sees_one_moment_only(filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = soundness.wrong_types_sql
    waiting = [11]

    def meanwhile(table: object, run_id: str, dialect: str) -> str:
        if run_id == "run_id" and waiting:
            record(open_for_writing(filled), sound.run(waiting.pop()))
        return real(table, run_id, dialect)  # type: ignore[arg-type]

    monkeypatch.setattr(soundness, "wrong_types_sql", meanwhile)
    report = check(filled)
    assert (report.problems, sum(report.statuses.values())) == ([], 10)
    assert sum(check(filled).statuses.values()) == 11
