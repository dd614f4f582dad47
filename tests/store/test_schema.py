"""Triggers of strangers, and what takes the place of dynabro's tables, views and indexes."""

from __future__ import annotations

import contextlib
import functools
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine

from dynabro_cli.errors import DatabaseError
from dynabro_cli.store.care.check import check
from dynabro_cli.store.care.merge import merge
from dynabro_cli.store.care.thin import thin
from dynabro_cli.store.open.engine import open_for_writing, open_read_only
from dynabro_cli.store.open.schema import entries, strangers
from dynabro_cli.store.read.queries import list_runs
from tests.store import sound
from tests.store.made import change, read, record

TRIGGER = "CREATE TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM rounds; END"


def sql(*statements: str) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        for statement in statements:
            change(path, statement)

    return spoil


def rewritten(name: str, old: str, new: str) -> Callable[[Path], None]:
    """Change the statement that made a table, as a stranger's program can."""

    def spoil(path: Path) -> None:
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("PRAGMA writable_schema = ON")
            statement = "UPDATE sqlite_master SET sql = replace(sql, ?, ?) WHERE name = ?"
            assert connection.execute(statement, (old, new, name)).rowcount == 1
            assert (
                new
                in connection.execute(
                    "SELECT sql FROM sqlite_master WHERE name = ?", (name,)
                ).fetchone()[0]
            )

    return spoil


ACTING = [
    (sql(TRIGGER), "trigger 't' on 'runs'"),
    (
        sql("CREATE TRIGGER t INSTEAD OF INSERT ON final_accuracy BEGIN SELECT 1; END"),
        "trigger 't' on 'final_accuracy'",
    ),
    (
        sql(
            "CREATE TABLE mine (x)",
            "CREATE TRIGGER t AFTER DELETE ON mine BEGIN DELETE FROM rounds; END",
        ),
        "trigger 't'",
    ),
    (
        sql('CREATE TRIGGER "\x1b[31m" AFTER INSERT ON runs BEGIN SELECT 1; END'),
        r"trigger '\x1b[31m'",
    ),
    (sql("CREATE UNIQUE INDEX i ON runs (task)"), "index 'i' on 'runs'"),
    (sql("CREATE INDEX i ON rounds (round) WHERE abs(round) > 3"), "index 'i' on 'rounds'"),
    (sql("CREATE INDEX i ON runs (lower(spec))"), "index 'i' on 'runs'"),
    (
        sql("DROP INDEX runs_cell", "CREATE UNIQUE INDEX RUNS_CELL ON runs (host)"),
        "index 'RUNS_CELL'",
    ),
]
"""Objects that act when dynabro writes, but not when it reads."""

IN_PLACE = [
    (
        sql("ALTER TABLE runs RENAME TO old", "CREATE VIEW runs AS SELECT * FROM old"),
        "table 'runs'",
    ),
    (
        sql("ALTER TABLE runs RENAME TO old", "CREATE VIEW RUNS AS SELECT * FROM old"),
        "table 'RUNS'",
    ),
    (
        sql(
            "ALTER TABLE evaluations RENAME TO old", "CREATE VIEW evaluations AS SELECT * FROM old"
        ),
        "table 'evaluations'",
    ),
    (
        sql("DROP TABLE recovery", "CREATE VIRTUAL TABLE recovery USING fts5(run_id)"),
        "table 'recovery'",
    ),
    (sql("DROP TABLE recovery"), "table 'recovery' is missing"),
    (
        sql("DROP VIEW final_accuracy", "CREATE TABLE final_accuracy (task, mean)"),
        "view 'final_accuracy' is a table",
    ),
    (
        sql("DROP VIEW final_accuracy", "CREATE VIEW final_accuracy AS SELECT 1 AS mean"),
        "view 'final_accuracy'",
    ),
    (sql("ALTER TABLE rounds ADD COLUMN y INTEGER AS (round + 1)"), "table 'rounds'"),
    (sql("ALTER TABLE runs ADD COLUMN y TEXT DEFAULT 'a'"), "table 'runs'"),
    (sql("ALTER TABLE runs ADD COLUMN y TEXT CHECK (y > 5)"), "table 'runs'"),
    (sql("ALTER TABLE runs ADD COLUMN y INTEGER REFERENCES sweeps (id)"), "table 'runs'"),
    (sql("ALTER TABLE evaluations ADD COLUMN host TEXT"), "table 'evaluations'"),
    (rewritten("runs", "UNIQUE (run_key)", "UNIQUE (run_key) ON CONFLICT REPLACE"), "table 'runs'"),
    (rewritten("runs", "host TEXT NOT NULL", "host TEXT COLLATE NOCASE NOT NULL"), "table 'runs'"),
    (rewritten("runs", "host TEXT NOT NULL", "host TEXT NOT NULL AS ('x')"), "table 'runs'"),
    (
        rewritten("runs", "CHECK (status IN ('running',", "CHECK (status IN ('Running',"),
        "table 'runs'",
    ),
    (rewritten("rounds", "ON DELETE CASCADE", "ON DELETE RESTRICT"), "table 'rounds'"),
    (
        rewritten("sweeps", "PRIMARY KEY (id)", "PRIMARY KEY (id), CHECK (jobs < 9)"),
        "table 'sweeps'",
    ),
]
"""Objects that a reader must not meet, either."""


@pytest.mark.parametrize("backend", ["sqlite"])
def test_what_dynabro_makes_is_no_stranger(engine: Engine, path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert strangers(entries(connection)) == []


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["sqlite"])
@pytest.mark.parametrize(("spoil", "what"), ACTING + IN_PLACE)
def test_no_writer_touches_a_database_with_a_stranger(
    spoil: Callable[[Path], None], what: str, engine: Engine, path: Path, tmp_path: Path
) -> None:
    other = str(tmp_path / "other.db")
    record(engine, sound.run(1))
    record(open_for_writing(other), sound.run(2))
    engine.dispose()
    spoil(path)
    before = read(path, "SELECT type, name, sql FROM sqlite_master ORDER BY name")
    for writer in (
        open_for_writing,
        functools.partial(merge, other),
        functools.partial(merge, other, dry_run=True),
    ):
        with pytest.raises(DatabaseError) as caught:
            writer(str(path))
        # the last two: it cannot even be read
        told = (what, "more; dynabro db check", "has no ", "has an additional column")
        assert any(words in str(caught.value) for words in told)
        assert "Try: " in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1
    assert read(path, "SELECT type, name, sql FROM sqlite_master ORDER BY name") == before
    problems = check(str(path)).problems
    assert any(what in problem for problem in problems), problems


@pytest.mark.parametrize("backend", ["sqlite"])
@pytest.mark.parametrize(("spoil", "what"), IN_PLACE)
def test_a_reader_reads_dynabros_own_tables_or_nothing(
    spoil: Callable[[Path], None], what: str, engine: Engine, path: Path, tmp_path: Path
) -> None:
    record(engine, sound.run(1))
    engine.dispose()
    spoil(path)
    for reader in (open_read_only, lambda name: thin(name, tmp_path / "thin.db", 5)):
        with pytest.raises(DatabaseError) as caught:
            reader(str(path))
        assert what in str(caught.value) or "more; dynabro db check" in str(caught.value)


@pytest.mark.parametrize("backend", ["sqlite"])
@pytest.mark.parametrize(("spoil", "what"), ACTING)
def test_what_acts_on_writes_only_does_not_keep_from_reading(
    spoil: Callable[[Path], None], what: str, engine: Engine, path: Path
) -> None:
    record(engine, sound.run(1))
    engine.dispose()
    spoil(path)
    assert len(list(list_runs(open_read_only(str(path))).rows)) == 1


@pytest.mark.parametrize("backend", ["sqlite"])
@pytest.mark.parametrize(("spoil", "what"), [*ACTING, IN_PLACE[6], IN_PLACE[12], IN_PLACE[17]])
def test_the_runs_alone_go_to_a_new_database(
    spoil: Callable[[Path], None], what: str, engine: Engine, path: Path, tmp_path: Path
) -> None:
    record(engine, sound.run(1))
    engine.dispose()
    spoil(path)
    new = str(tmp_path / "new.db")
    assert merge(str(path), new).copied == [sound.key(1)]
    assert check(new).problems == []
    record(open_for_writing(new), sound.run(2))


@pytest.mark.parametrize("backend", ["sqlite"])
def test_what_users_add_for_themselves_stays_legal(engine: Engine, path: Path) -> None:
    record(engine, sound.run(1))
    for statement in (
        "CREATE TABLE notes (run_id INTEGER REFERENCES runs (id), note TEXT)",
        "CREATE UNIQUE INDEX notes_of ON notes (run_id)",
        "CREATE VIEW best AS SELECT task, MAX(final_accuracy) FROM runs GROUP BY task",
        "ALTER TABLE runs ADD COLUMN remark TEXT",
        'ALTER TABLE runs ADD COLUMN "mine" NUMERIC(8, 2)',
        "CREATE INDEX by_host ON runs (host COLLATE NOCASE DESC, seed)",
        "DROP INDEX runs_cell",
        "ANALYZE",
    ):
        change(path, statement)
    record(open_for_writing(str(path)), sound.run(2))
    assert len(list(list_runs(open_read_only(str(path))).rows)) == 2
    assert check(str(path)).problems == []


@pytest.mark.parametrize("backend", ["sqlite"])
def test_the_trigger_of_a_stranger_empties_nothing(engine: Engine, path: Path) -> None:
    record(engine, sound.run(1))
    engine.dispose()
    change(path, TRIGGER)
    with pytest.raises(DatabaseError, match="Try: dynabro db merge"):
        record(open_for_writing(str(path)), sound.run(2))
    assert read(path, "SELECT COUNT(*) FROM rounds") == [(sound.ROUNDS,)]


SERVER_ACTING = [
    (
        """
        CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN DELETE FROM rounds; RETURN NEW; END';
        CREATE TRIGGER t AFTER INSERT ON runs FOR EACH ROW EXECUTE FUNCTION f()
        """,  # noqa: E501
        "trigger 't' on runs",
    ),
    (
        "CREATE RULE r AS ON INSERT TO rounds DO ALSO DELETE FROM evaluations",
        "trigger 'r' on rounds is a rule",
    ),
    ("ALTER TABLE runs ADD CONSTRAINT c CHECK (task <> 'x')", "trigger 'c' is a check on runs"),
    ("CREATE UNIQUE INDEX i ON runs (seed)", "index 'i' on runs"),
    ("CREATE INDEX i ON runs (lower(task))", "index 'i' on runs"),
]
SERVER_IN_PLACE = [
    (
        "ALTER TABLE recovery RENAME TO old; CREATE VIEW recovery AS SELECT * FROM old",
        "table 'recovery'",
    ),
    ("DROP VIEW final_accuracy; CREATE TABLE final_accuracy (task text)", "table 'final_accuracy'"),
    ("CREATE TABLE more () INHERITS (runs)", "table 'runs' has another table"),
    ("ALTER TABLE runs ENABLE ROW LEVEL SECURITY", "table 'runs' hides rows"),
    (
        "ALTER TABLE rounds ADD COLUMN y integer GENERATED ALWAYS AS (round + 1) STORED",
        "table 'rounds' computes",
    ),
    ("DROP TABLE recovery", "table 'recovery' is missing"),
]


@pytest.mark.parametrize("backend", ["postgresql"])
@pytest.mark.parametrize(("statement", "what"), SERVER_ACTING + SERVER_IN_PLACE)
def test_strangers_of_a_server(statement: str, what: str, engine: Engine, database: str) -> None:
    record(engine, sound.run(1))
    change(database, statement)
    with pytest.raises(DatabaseError) as caught:
        open_for_writing(database)
    assert what in str(caught.value)
    if (statement, what) in SERVER_ACTING:
        open_read_only(database)
        assert any(what in problem for problem in check(database).problems)
    else:
        with pytest.raises(DatabaseError):
            open_read_only(database)


@pytest.mark.parametrize("backend", ["postgresql"])
def test_a_server_database_that_dynabro_made_has_none(engine: Engine, database: str) -> None:
    record(engine, sound.run(1))
    change(database, "CREATE TABLE notes (run_id integer REFERENCES runs (id), note text)")
    change(database, "CREATE INDEX by_host ON runs (host, seed)")
    record(open_for_writing(database), sound.run(2))
    assert len(list(list_runs(open_read_only(database)).rows)) == 2
    assert check(database).problems == []
