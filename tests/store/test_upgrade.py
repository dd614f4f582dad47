"""``upgrade_file`` on real databases of every schema before this one: all of it or nothing, and a copy of what was."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dynabro_cli.errors import BusyError, DatabaseError
from dynabro_cli.store import engine as engine_module
from dynabro_cli.store.check import check
from dynabro_cli.store.engine import open_for_writing, open_read_only
from dynabro_cli.store.recorder import Recorder
from dynabro_cli.store.tables import SCHEMA_VERSION
from dynabro_cli.store.upgrade import upgrade_file
from tests.store import sound
from tests.store.made import change, read, record, schema

ROOT = Path(__file__).parents[2]
MIGRATIONS = Path(engine_module.__file__).with_name("migrations")
OLD = list(range(1, SCHEMA_VERSION))
STATE = ("SELECT * FROM runs", "SELECT type, name, sql FROM sqlite_master ORDER BY name", "PRAGMA user_version")


def migrations(folder: Path, version: int) -> Path:
    """An engine's file whose migrations are those up to ``version``."""
    shutil.copytree(MIGRATIONS, folder / "migrations")
    for file in (folder / "migrations" / "versions").glob("0*.py"):
        if int(file.name[:4]) > version:
            file.unlink()
    return folder / "engine.py"


@pytest.fixture(params=OLD)
def old(request: pytest.FixtureRequest, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """``path`` made by the migrations of an older version, with a finished run and one that was left in progress."""
    version: int = request.param
    with monkeypatch.context() as before:
        before.setattr(engine_module, "SCHEMA_VERSION", version)
        before.setattr(engine_module, "__file__", str(migrations(tmp_path / "store", version)))
        before.setattr(engine_module, "create_tables", engine_module.migrate)
        open_for_writing(str(path))
    present = path.with_name("present.db")
    engine = open_for_writing(str(present))
    record(engine, sound.run(1))
    record(engine, sound.beginning(2, 3))._commit({})
    engine.dispose()
    for table in ("runs", "rounds", "evaluations"):
        columns = ", ".join(row[0] for row in read(path, "SELECT name FROM pragma_table_info(?)", table))
        for row in read(present, f"SELECT {columns} FROM {table}"):
            change(path, f"INSERT INTO {table} ({columns}) VALUES ({', '.join('?' * len(row))})", *row)
    if version >= 3:  # whose owner may be of another machine, and was not heard of for long
        silence = "owner = 'elsewhere:1:2:3', heartbeat_at = '2026-01-01 00:00:00.000000'"
        silence += ", heartbeat_clock = NULL" if version >= 9 else ""
        change(path, f"UPDATE runs SET {silence} WHERE heartbeat_at IS NOT NULL")
    for left in path.parent.glob("present.db*"):
        left.unlink()
    assert read(path, "SELECT version_num FROM alembic_version") == [(f"{version:04}",)]
    return version


def test_an_older_database_names_the_command(old: int, path: Path) -> None:
    before = path.read_bytes()
    for operation in (open_for_writing, open_read_only, check):
        with pytest.raises(DatabaseError) as caught:
            operation(str(path))
        assert str(caught.value) == (
            f"{path} has schema version {old}, and this dynabro needs {SCHEMA_VERSION}. Try: dynabro db upgrade --db {path}"
        )
    assert path.read_bytes() == before


def test_an_upgraded_database_is_as_a_new_one(old: int, path: Path) -> None:
    before = [read(path, sql) for sql in STATE]
    assert upgrade_file(str(path)) == (
        f"{path} upgraded from schema version {old} to {SCHEMA_VERSION}; the old one is {path}.v{old}"
    )
    assert [read(path.with_name(f"{path.name}.v{old}"), sql) for sql in STATE] == before
    new = path.with_name("new.db")
    open_for_writing(str(new))
    assert schema(path) == schema(new)
    assert read(path, STATE[2]) == [(SCHEMA_VERSION,)]
    assert read(path, "SELECT DISTINCT rounds_every FROM runs") == [(1,)]
    assert read(path, "SELECT DISTINCT x FROM evaluations") == [(None,)]
    assert read(path, "SELECT * FROM byzantine_histogram") == [(1, 8, sound.ROUNDS), (2, 8, 3)]
    report = check(str(path))
    assert report.problems == []
    assert report.notes == ["run 2 is in progress in a process that is presumed dead; the same command resumes it"]
    recorder = Recorder(open_for_writing(str(path)))
    assert recorder.stored(sound.key(1)) is not None
    for event in sound.run(2):
        recorder.record(event)
    assert read(path, "SELECT status FROM runs ORDER BY id") == [("finished",), ("finished",)]


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("CREATE TRIGGER t AFTER UPDATE ON runs BEGIN DELETE FROM rounds; END", "trigger 't'"),
        ("CREATE UNIQUE INDEX i ON runs (seed)", "index 'i'"),
        ("DROP VIEW final_accuracy", "view 'final_accuracy' is missing"),
        ("ALTER TABLE rounds ADD COLUMN y INTEGER CHECK (y > 1)", "table 'rounds'"),
    ],
)
def test_an_older_database_with_a_stranger_is_not_upgraded(statement: str, what: str, old: int, path: Path) -> None:
    change(path, statement)
    before = [read(path, sql) for sql in STATE]
    with pytest.raises(DatabaseError) as caught:
        upgrade_file(str(path))
    assert what in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert [read(path, sql) for sql in STATE] == before
    assert not path.with_name(f"{path.name}.v{old}").exists()


def test_a_migration_that_fails_in_the_middle_changes_nothing(
    old: int, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [read(path, sql) for sql in STATE]
    engine = migrations(tmp_path / "failing", SCHEMA_VERSION)
    (last,) = (engine.parent / "migrations" / "versions").glob(f"{SCHEMA_VERSION:04}_*.py")
    last.write_text(
        last.read_text() + "    op.execute('CREATE TABLE more (id INTEGER)')\n    op.execute('INSERT INTO nowhere')\n"
    )
    monkeypatch.setattr(engine_module, "__file__", str(engine))
    with pytest.raises(DatabaseError) as caught:
        upgrade_file(str(path))
    assert len(str(caught.value).splitlines()) == 1
    assert [read(path, sql) for sql in STATE] == before
    assert read(path, "SELECT version_num FROM alembic_version") == [(f"{old:04}",)]


@pytest.mark.parametrize("place", ["before the last", "in the last"])
def test_an_upgrade_that_is_killed_changes_nothing(place: str, old: int, path: Path, tmp_path: Path) -> None:
    before = [read(path, sql) for sql in STATE]
    engine = migrations(tmp_path / "killed", SCHEMA_VERSION)
    (last,) = (engine.parent / "migrations" / "versions").glob(f"{SCHEMA_VERSION:04}_*.py")
    kill = "    import os; os.kill(os.getpid(), 9)\n"
    body = last.read_text()
    last.write_text(
        body + kill if place == "in the last" else body.replace("def upgrade() -> None:\n", f"def upgrade():\n{kill}")
    )
    program = """if True:
        import sys
        from dynabro_cli.store import engine, upgrade
        engine.__file__ = sys.argv[1]
        upgrade.upgrade_file(sys.argv[2])
    """
    command = [sys.executable, "-c", program, str(engine), str(path)]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == -9
    assert [read(path, sql) for sql in STATE] == before
    copy = path.with_name(f"{path.name}.v{old}")
    assert [read(copy, sql) for sql in STATE] == before
    with pytest.raises(DatabaseError, match=r"exists already, from an earlier upgrade\. Try: move it away"):
        upgrade_file(str(path))
    copy.unlink()
    upgrade_file(str(path))
    assert check(str(path)).problems == []


def test_an_upgrade_that_is_killed_while_copying_can_be_repeated(old: int, path: Path) -> None:
    program = "import sys; from dynabro_cli.store.upgrade import upgrade_file; upgrade_file(sys.argv[1])"
    environment = os.environ | {"DYNABRO_FAILPOINT": "before-copy=KILL"}
    killed = subprocess.run([sys.executable, "-c", program, str(path)], env=environment, cwd=ROOT, check=False)
    assert killed.returncode == -9
    assert read(path, STATE[2]) == [(old,)]
    assert f"the old one is {path}.v{old}" in upgrade_file(str(path))


def test_an_upgrade_waits_for_a_writer(old: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNABRO_BUSY_SECONDS", "0.01")
    with engine_module.sqlite_writer(path).begin(), pytest.raises(BusyError):
        upgrade_file(str(path))
    assert read(path, STATE[2]) == [(old,)]
