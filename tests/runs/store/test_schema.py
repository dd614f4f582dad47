"""Triggers on dynabro's tables, other views than dynabro's, and missing tables and columns."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine

from dynabro_cli.core.errors import DatabaseError
from dynabro_cli.runs.store.care.check import check
from dynabro_cli.runs.store.care.merge import merge
from dynabro_cli.runs.store.care.thin import thin
from dynabro_cli.runs.store.open.engine import open_for_writing, open_read_only
from dynabro_cli.runs.store.read.queries import list_runs
from tests.runs.store import made, sound
from tests.runs.store.made import change, read, record

TRIGGERS = {
    "sqlite": "CREATE TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM rounds; END",
    "postgresql": (
        "CREATE FUNCTION f() RETURNS trigger AS $$BEGIN DELETE FROM rounds; RETURN NEW; END$$ "
        "LANGUAGE plpgsql; "
        "CREATE TRIGGER t AFTER INSERT ON runs FOR EACH ROW EXECUTE FUNCTION f()"
    ),
}
NO_VIEW = (["DROP VIEW final_accuracy"], "view final_accuracy is missing")
OTHER_VIEW = (
    [*NO_VIEW[0], "CREATE VIEW final_accuracy AS SELECT 1 AS mean"],
    "view final_accuracy has another definition than dynabro's",
)
LACKING = [
    (["DROP TABLE recovery"], "has no table recovery"),
    (
        ["ALTER TABLE recovery RENAME TO old", "CREATE VIEW recovery AS SELECT * FROM old"],
        "has no table recovery",
    ),
    ([*NO_VIEW[0], "ALTER TABLE runs DROP COLUMN host"], "has no column host in its table runs"),
]


@pytest.mark.thorough
@made.both
def test_a_trigger_empties_nothing(engine: Engine, database: str, tmp_path: Path) -> None:
    record(engine, sound.run(1))
    change(database, TRIGGERS[engine.dialect.name])
    other = str(tmp_path / "other.db")
    record(open_for_writing(other), sound.run(2))
    message = "trigger 't' on runs acts whenever something is stored"
    for write in (
        lambda: open_for_writing(database),
        lambda: merge(other, database),
        lambda: merge(other, database, dry_run=True),
    ):
        with pytest.raises(DatabaseError, match=f"{message}. Try: dynabro db merge"):
            write()
    assert read(database, "SELECT COUNT(*) FROM rounds") == [(sound.ROUNDS,)]
    assert len(list(list_runs(open_read_only(database)).rows)) == 1
    assert check(database).problems == [message]


@pytest.mark.parametrize(
    ("backend", "statements", "problem"),
    [("sqlite", *NO_VIEW), ("postgresql", *NO_VIEW), ("sqlite", *OTHER_VIEW)],
)
def test_another_view_is_not_read(
    statements: list[str], problem: str, engine: Engine, database: str, tmp_path: Path
) -> None:
    record(engine, sound.run(1))
    for statement in statements:
        change(database, statement)
    for opened in (open_read_only, open_for_writing):
        with pytest.raises(DatabaseError, match=f"{problem}. Try: dynabro db merge"):
            opened(database)
    assert check(database).problems == [problem]
    new = str(tmp_path / "new.db")
    assert merge(database, new).copied == [sound.key(1)]
    assert check(new).problems == []


@made.both
@pytest.mark.parametrize(("statements", "problem"), LACKING)
def test_a_database_without_a_table_or_a_column_is_refused(
    statements: list[str], problem: str, engine: Engine, database: str, tmp_path: Path
) -> None:
    record(engine, sound.run(1))
    for statement in statements:
        change(database, statement)
    for operation in (
        open_read_only,
        open_for_writing,
        check,
        lambda name: merge(name, str(tmp_path / "new.db")),
    ):
        with pytest.raises(DatabaseError, match=f"{problem}. Try: restore a backup"):
            operation(database)


@made.both
def test_what_users_add_for_themselves_stays_legal(engine: Engine, database: str) -> None:
    record(engine, sound.run(1))
    for statement in (
        "CREATE TABLE notes (run_id INTEGER REFERENCES runs (id), note TEXT)",
        "CREATE UNIQUE INDEX notes_of ON notes (run_id)",
        "CREATE VIEW best AS SELECT task, MAX(final_accuracy) FROM runs GROUP BY task",
        "ALTER TABLE runs ADD COLUMN remark TEXT",
        "CREATE INDEX by_host ON runs (host, seed)",
        "DROP INDEX runs_cell",
        "ANALYZE",
    ):
        change(database, statement)
    record(open_for_writing(database), sound.run(2))
    assert len(list(list_runs(open_read_only(database)).rows)) == 2
    assert check(database).problems == []


def test_a_copy_has_dynabros_own_views(engine: Engine, path: Path, tmp_path: Path) -> None:
    record(engine, sound.run(1))
    for statement in OTHER_VIEW[0]:
        change(path, statement)
    with pytest.raises(DatabaseError, match="another definition"):
        thin(str(path), tmp_path / "thin.db", 5)
