"""Making and opening databases: the schema as promised, and nothing touched that is not ours."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import re
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import BigInteger, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from dynabro_cli.core.errors import (
    BusyError,
    CannotWriteError,
    DatabaseError,
    DynabroError,
    NotFoundError,
    SpecError,
)
from dynabro_cli.experiment.spec import fields
from dynabro_cli.runs.store.open import engine as engine_module
from dynabro_cli.runs.store.open import servers as database_servers
from dynabro_cli.runs.store.open.connections import ATTEMPT_SECONDS
from dynabro_cli.runs.store.open.engine import open_for_writing, open_read_only
from dynabro_cli.runs.store.open.files import read_only_uri, sqlite_path
from dynabro_cli.runs.store.read import queries
from dynabro_cli.runs.store.tables import SCHEMA_VERSION, metadata
from dynabro_cli.runs.store.write.recorder import Recorder
from tests.runs.store.made import both, change, read, record, rounds, started, whole_run

OWNER, READER, GROUP = 2001, 2002, 3000
"""Users of a shared folder, which the system need not know."""

# The public schema: name, type, NOT NULL, place in the primary key. Users write SQL against it:
# only ever add to it.
TABLES = {
    "runs": """
        id INTEGER 1 1
        run_key VARCHAR(80) 1 0
        status VARCHAR(16) 1 0
        sweep TEXT 0 0
        task TEXT 1 0
        model TEXT 0 0
        method TEXT 1 0
        aggregator TEXT 1 0
        pre_aggregators TEXT 1 0
        attack TEXT 1 0
        attack_entry TEXT 1 0
        switching TEXT 1 0
        clock TEXT 1 0
        workers INTEGER 1 0
        byzantine INTEGER 1 0
        budget INTEGER 1 0
        batch_size INTEGER 1 0
        learning_rate DOUBLE 1 0
        lr_rule TEXT 1 0
        lr_drop TEXT 1 0
        weight_decay DOUBLE 1 0
        eval_every INTEGER 1 0
        seed BIGINT 1 0
        precision TEXT 1 0
        participation DOUBLE 1 0
        data TEXT 1 0
        validation DOUBLE 1 0
        spec TEXT 1 0
        dimension BIGINT 1 0
        noise_bound DOUBLE 0 0
        final_accuracy DOUBLE 0 0
        final_loss DOUBLE 0 0
        final_gap DOUBLE 0 0
        budget_spent INTEGER 1 0
        rounds INTEGER 1 0
        switches INTEGER 1 0
        dynamic_rounds INTEGER 1 0
        started_at DATETIME 1 0
        finished_at DATETIME 0 0
        wall_seconds DOUBLE 0 0
        device TEXT 1 0
        host TEXT 1 0
        pid INTEGER 1 0
        environment_id VARCHAR(16) 1 0
        git_commit TEXT 0 0
        error TEXT 0 0
        owner TEXT 0 0
        heartbeat_at DATETIME 0 0
        checkpoint TEXT 0 0
        rounds_every INTEGER 1 0
        squared_gradients DOUBLE 0 0
        code_digests TEXT 0 0
        heartbeat_clock TEXT 0 0
        rows_digest VARCHAR(64) 0 0
        model_file TEXT 0 0
        model_size BIGINT 0 0
        model_sha256 VARCHAR(64) 0 0
        tags TEXT 0 0
        note TEXT 0 0
        git_diff VARCHAR(64) 0 0
    """,
    "evaluations": """
        run_id INTEGER 1 1
        round INTEGER 1 2
        budget INTEGER 1 0
        samples BIGINT 1 0
        test_accuracy DOUBLE 0 0
        test_loss DOUBLE 0 0
        train_loss DOUBLE 0 0
        gap DOUBLE 0 0
        x TEXT 0 0
        validation_accuracy DOUBLE 0 0
        validation_loss DOUBLE 0 0
    """,
    "rounds": """
        run_id INTEGER 1 1
        round INTEGER 1 2
        budget INTEGER 1 0
        level INTEGER 0 0
        cost INTEGER 1 0
        byzantine INTEGER 1 0
        switched BOOLEAN 1 0
        dynamic BOOLEAN 1 0
        accepted BOOLEAN 0 0
        learning_rate DOUBLE 1 0
        gradient_norm DOUBLE 0 0
        aggregation_error DOUBLE 0 0
        acceptance DOUBLE 0 0
    """,
    "byzantine_counts": """
        run_id INTEGER 1 1
        byzantine INTEGER 1 2
        rounds INTEGER 1 0
    """,
    "identities": """
        run_id INTEGER 1 1
        tick INTEGER 1 2
        byzantine TEXT 1 0
    """,
    "recovery": """
        run_id INTEGER 1 1
        switches_seen INTEGER 1 0
        recoveries INTEGER 1 0
        dip DOUBLE 0 0
        largest_dip DOUBLE 0 0
        recovery_rounds DOUBLE 0 0
        recovery_budget DOUBLE 0 0
        worst_window DOUBLE 0 0
        acceptance DOUBLE 0 0
        aggregation_error DOUBLE 0 0
        reason TEXT 0 0
    """,
    "worker_labels": """
        run_id INTEGER 1 1
        worker INTEGER 1 2
        label INTEGER 1 3
        count INTEGER 1 0
    """,
    "metrics": """
        run_id INTEGER 1 1
        round INTEGER 1 2
        name TEXT 1 3
        value DOUBLE 0 0
    """,
    "environments": """
        id VARCHAR(16) 1 1
        versions TEXT 1 0
    """,
    "diffs": """
        sha256 VARCHAR(64) 1 1
        content BLOB 1 0
    """,
    "sweeps": """
        id INTEGER 1 1
        name TEXT 1 0
        status VARCHAR(16) 1 0
        runs INTEGER 1 0
        stored_before INTEGER 1 0
        jobs INTEGER 1 0
        executor TEXT 1 0
        started_at DATETIME 1 0
        ended_at DATETIME 0 0
        heartbeat_at DATETIME 1 0
        owner TEXT 1 0
        host TEXT 1 0
        pid INTEGER 1 0
        rerun_after INTEGER 0 0
        heartbeat_clock TEXT 0 0
        wall_seconds DOUBLE 0 0
        yaml TEXT 0 0
    """,
    "sweep_runs": """
        sweep_id INTEGER 1 1
        run_key VARCHAR(80) 1 2
        ended_before DATETIME 0 0
    """,
    "trials": """
        search TEXT 1 1
        number INTEGER 1 2
        sweep_id INTEGER 0 0
        status VARCHAR(16) 1 0
        parameters TEXT 1 0
        run_keys TEXT 1 0
        value DOUBLE 0 0
    """,
    "verified_kappa": """
        id INTEGER 1 1
        rule TEXT 1 0
        workers INTEGER 1 0
        byzantine INTEGER 1 0
        dimension INTEGER 1 0
        restarts INTEGER 1 0
        steps INTEGER 1 0
        seed BIGINT 1 0
        empirical DOUBLE 1 0
        unbounded BOOLEAN 1 0
        proved DOUBLE 0 0
        evaluations INTEGER 1 0
        complete BOOLEAN 1 0
        worst TEXT 0 0
        version TEXT 1 0
        created_at DATETIME 1 0
    """,
    "alembic_version": "version_num VARCHAR(32) 1 1",
}
VIEWS = {
    "byzantine_histogram": ["run_id", "byzantine", "rounds"],
    "byzantine_workers": ["run_id", "tick", "worker"],
    "final_accuracy": [
        *(
            "task",
            "model",
            "method",
            "aggregator",
            "pre_aggregators",
            "attack",
            "attack_entry",
            "switching",
            "clock",
        ),
        *(
            "workers",
            "byzantine",
            "budget",
            "batch_size",
            "learning_rate",
            "lr_rule",
            "lr_drop",
            "weight_decay",
            "eval_every",
        ),
        *(
            "precision",
            "participation",
            "data",
            "validation",
            "n",
            "mean",
            "std",
            "mean_gap",
            "diverged",
        ),
        *("ci_low", "ci_high", "rule"),
    ],
}

PRESENT, NEXT = SCHEMA_VERSION, SCHEMA_VERSION + 1


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every file under ``folder`` with its bytes; None for a folder."""
    return {
        str(item.relative_to(folder)): None if item.is_dir() else item.read_bytes()
        for item in folder.rglob("*")
    }


# --- making


def test_the_tables_are_those_promised(engine: Engine, path: Path) -> None:
    names = read(path, "SELECT name FROM sqlite_master WHERE type = 'table'")
    assert {name for (name,) in names} == set(TABLES)
    for table, expected in TABLES.items():
        columns = read(path, 'SELECT name, type, "notnull", pk FROM pragma_table_info(?)', table)
        assert [" ".join(map(str, column)) for column in columns] == [
            line.strip() for line in expected.split("\n") if line.strip()
        ]


def test_the_views_are_those_promised(engine: Engine, path: Path) -> None:
    names = read(path, "SELECT name FROM sqlite_master WHERE type = 'view'")
    assert {name for (name,) in names} == set(VIEWS)
    for view, expected in VIEWS.items():
        assert [
            name for (name,) in read(path, "SELECT name FROM pragma_table_info(?)", view)
        ] == expected


def test_a_new_database_is_marked_as_ours(engine: Engine, path: Path) -> None:
    assert read(path, "PRAGMA application_id") == [(0x44594E42,)]
    assert read(path, "PRAGMA user_version") == [(PRESENT,)]
    assert read(path, "SELECT version_num FROM alembic_version") == [(f"{PRESENT:04}",)]
    assert read(path, "PRAGMA journal_mode") == [("wal",)]


def test_a_writer_checks_foreign_keys_and_loses_nothing_to_a_power_cut(engine: Engine) -> None:
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL
        with pytest.raises(IntegrityError, match="FOREIGN KEY"):
            connection.exec_driver_sql(
                "INSERT INTO evaluations (run_id, round, budget, samples) VALUES (99, 0, 0, 0)"
            )


@pytest.mark.parametrize("operation", [open_for_writing, open_read_only])
def test_a_view_or_trigger_of_a_stranger_calls_nothing_that_acts(
    operation: Callable[[str], Engine], engine: Engine, path: Path
) -> None:
    change(path, "CREATE VIEW trap AS SELECT act()")
    called = []
    with operation(str(path)).connect() as connection:
        connection.connection.dbapi_connection.create_function("act", 0, lambda: called.append(1))  # type: ignore[union-attr]
        with pytest.raises(DBAPIError, match="unsafe use of act"):
            connection.exec_driver_sql("SELECT * FROM trap").fetchall()
    assert called == []


def test_a_writer_takes_the_lock_when_it_begins(engine: Engine, path: Path) -> None:
    # a deferred transaction that reads and then writes fails at once when another wrote in between,
    # whatever the timeout
    with engine.begin() as connection:
        connection.exec_driver_sql("SELECT COUNT(*) FROM runs")
        with (
            contextlib.closing(sqlite3.connect(path, timeout=0)) as other,
            pytest.raises(sqlite3.OperationalError, match="locked"),
        ):
            other.execute("BEGIN IMMEDIATE")


def test_only_known_statuses_are_stored(engine: Engine, path: Path) -> None:
    record(engine, whole_run())
    with engine.connect() as connection, pytest.raises(IntegrityError, match="known_status"):
        connection.exec_driver_sql("UPDATE runs SET status = 'done'")


def test_a_database_with_two_names_is_not_written(engine: Engine, path: Path) -> None:
    record(engine, whole_run())
    engine.dispose()
    other = path.with_name("other.db")
    os.link(path, other)
    for name in (path, other):
        with pytest.raises(
            CannotWriteError, match=r"has 2 names \(hard links\).*Try: cp"
        ) as caught:
            open_for_writing(str(name))
        assert len(str(caught.value).splitlines()) == 1
        assert len(list(queries.list_runs(open_read_only(str(name))).rows)) == 1
    other.unlink()
    open_for_writing(str(path))


def test_every_number_of_a_run_fits_its_column() -> None:
    for name, one in fields().items():
        if one.type is int:
            most = (
                2**63 - 1
                if isinstance(metadata.tables["runs"].c[name].type, BigInteger)
                else 2**31 - 1
            )
            assert one.limits["maximum"] is not None, name
            assert one.limits["maximum"] <= most, name


def test_an_empty_file_becomes_a_database(path: Path) -> None:
    path.touch()
    open_for_writing(str(path))
    assert read(path, "SELECT COUNT(*) FROM runs") == [(0,)]


@both
def test_opening_again_keeps_everything(engine: Engine, database: str) -> None:
    record(engine, whole_run())
    before = read(database, "SELECT * FROM runs")
    open_for_writing(database)
    assert read(database, "SELECT * FROM runs") == before


# --- what is not ours stays as it is


def text_file(path: Path) -> None:
    path.write_text("step,accuracy\n1,0.5\n")


def garbage(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 32)


def foreign_database(path: Path) -> None:
    change(path, "CREATE TABLE accounts (name TEXT)")


def foreign_database_in_wal_mode(path: Path) -> None:
    change(path, "PRAGMA journal_mode = WAL")
    change(path, "CREATE TABLE accounts (name TEXT)")


def marked_foreign_database(path: Path) -> None:
    foreign_database(path)
    change(path, "PRAGMA application_id = 252006673")  # Fossil's
    change(path, "PRAGMA user_version = 1")


def foreign_alembic_database(path: Path) -> None:
    change(path, "CREATE TABLE alembic_version (version_num VARCHAR(32))")
    change(path, "INSERT INTO alembic_version VALUES ('0001')")


STRANGERS = [
    text_file,
    garbage,
    foreign_database,
    foreign_database_in_wal_mode,
    marked_foreign_database,
    foreign_alembic_database,
]


@pytest.mark.parametrize(
    ("make", "operation"),
    [*((make, open_for_writing) for make in STRANGERS), (foreign_database, open_read_only)],
)
def test_a_stranger_is_refused_and_left_as_it_is(
    make: Callable[[Path], None], operation: Callable[[str], object], path: Path
) -> None:
    make(path)
    before = path.read_bytes()
    with pytest.raises(DatabaseError) as caught:
        operation(str(path))
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before


def test_a_stranger_gets_no_company(path: Path) -> None:
    foreign_database(path)
    before = contents(path.parent)
    for operation in (open_for_writing, open_read_only):
        with pytest.raises(DatabaseError, match="is not a dynabro database"):
            operation(str(path))
    assert contents(path.parent) == before


@pytest.mark.parametrize("operation", [open_for_writing, open_read_only])
def test_a_folder_is_no_database(operation: Callable[[str], object], path: Path) -> None:
    with pytest.raises(DatabaseError, match="is a folder"):
        operation(str(path.parent))


def test_an_empty_file_cannot_be_read(path: Path) -> None:
    path.touch()
    with pytest.raises(DatabaseError, match="has no tables yet"):
        open_read_only(str(path))
    assert path.read_bytes() == b""


def test_a_database_without_tables_cannot_be_read(path: Path) -> None:
    # what a process leaves that is killed between making the file and making the tables
    change(path, "PRAGMA journal_mode = WAL")
    assert path.stat().st_size
    with pytest.raises(DatabaseError):
        open_read_only(str(path))
    open_for_writing(str(path))
    assert read(path, "SELECT COUNT(*) FROM runs") == [(0,)]


# --- versions


@pytest.mark.parametrize("operation", [open_for_writing, open_read_only])
def test_a_newer_database_says_upgrade_the_program(
    operation: Callable[[str], object], engine: Engine, path: Path
) -> None:
    change(path, f"PRAGMA user_version = {NEXT}")
    change(path, f"UPDATE alembic_version SET version_num = '{NEXT:04}'")
    before = path.read_bytes()
    with pytest.raises(
        DatabaseError, match=rf"schema version {NEXT}.*pip install --upgrade dynabro"
    ):
        operation(str(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize("operation", [open_for_writing, open_read_only])
def test_an_older_database_is_refused(
    operation: Callable[[str], object], engine: Engine, path: Path
) -> None:
    change(path, "PRAGMA user_version = 0")
    before = path.read_bytes()
    with pytest.raises(DatabaseError) as caught:
        operation(str(path))
    assert str(caught.value).startswith(
        f"{path} has schema version 0, and this dynabro needs {PRESENT}. Try: another --db"
    )
    assert path.read_bytes() == before


# --- damage


def fill(engine: Engine) -> None:
    """Enough rows that half of the file is a loss."""
    record(engine, [*whole_run(3), started("cd" * 32), rounds(0, 2000)]).interrupted()


def spoil(path: Path, table: str) -> None:
    """Overwrite the first page of a table, and leave the schema as it is."""
    page = read(path, "PRAGMA page_size")[0][0]
    (root,) = read(path, "SELECT rootpage FROM sqlite_master WHERE name = ?", table)[0]
    with path.open("r+b") as file:
        file.seek((root - 1) * page)
        file.write(b"\xa5" * page)


@pytest.mark.parametrize("pages", [1, 3, 20])
def test_a_database_cut_short_is_called_damaged(pages: int, engine: Engine, path: Path) -> None:
    fill(engine)
    page = read(path, "PRAGMA page_size")[0][0]
    assert path.stat().st_size > 20 * page
    with path.open("r+b") as file:
        file.truncate(pages * page)
    with pytest.raises(DatabaseError) as caught:
        list(queries.query(open_read_only(str(path)), "SELECT * FROM rounds").rows)
    assert f"{path} is damaged" in str(caught.value)


@pytest.mark.parametrize(
    ("table", "reader"),
    [
        ("runs", lambda engine: list(queries.list_runs(engine).rows)),
        ("runs", lambda engine: queries.find_run(engine, "1")),
        ("rounds", lambda engine: queries.histogram(engine, 1)),
        ("evaluations", lambda engine: list(queries.export(engine, "curves").rows)),
    ],
)
def test_damage_to_a_table_is_told_on_reading_it(
    table: str, reader: Callable[[Engine], object], engine: Engine, path: Path
) -> None:
    fill(engine)
    spoil(path, table)
    with pytest.raises(DatabaseError) as caught:
        reader(open_read_only(str(path)))
    assert f"{path} is damaged" in str(caught.value)


def test_damage_to_a_table_is_told_on_writing_to_it(engine: Engine, path: Path) -> None:
    fill(engine)
    spoil(path, "runs")
    writer = open_for_writing(str(path))
    for attempt in (
        lambda: Recorder(writer).state("ab" * 32),
        lambda: record(writer, [started("ef" * 32)]),
    ):
        with pytest.raises(DatabaseError, match="is damaged"):
            attempt()


@pytest.mark.parametrize("operation", [open_for_writing, open_read_only])
def test_garbage_behind_a_good_header(
    operation: Callable[[str], object], engine: Engine, path: Path
) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + b"\xa5" * (len(whole) - 100))
    with pytest.raises(DatabaseError) as caught:
        operation(str(path))
    assert f"{path} is damaged" in str(caught.value)


@pytest.mark.parametrize("operation", [open_for_writing, open_read_only])
def test_half_a_header(operation: Callable[[str], object], engine: Engine, path: Path) -> None:
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(DatabaseError):
        operation(str(path))


# --- paths and URLs


@pytest.mark.parametrize("name", ["missing.db", "no folder/missing.db"])
def test_reading_what_is_not_there(path: Path, name: str) -> None:
    with pytest.raises(NotFoundError, match="there is no database") as caught:
        open_read_only(str(path.parent / name))
    assert "dynabro run" in str(caught.value)
    assert contents(path.parent) == {}


def test_a_missing_folder_is_named(path: Path) -> None:
    with pytest.raises(CannotWriteError) as caught:
        open_for_writing(str(path.parent / "new" / "results.db"))
    assert f"mkdir -p {path.parent / 'new'}" in str(caught.value)
    assert contents(path.parent) == {}


def test_a_file_that_cannot_be_made() -> None:
    with pytest.raises(CannotWriteError, match=r"/proc/results\.db cannot be created"):
        open_for_writing("/proc/results.db")


@pytest.mark.parametrize("end", ["-wal", "-shm", "-journal", "-WAL"])
def test_a_database_is_not_where_sqlite_writes_a_log(end: str, engine: Engine, path: Path) -> None:
    """SQLite would overwrite it with the log of another database."""
    with pytest.raises(
        CannotWriteError,
        match=rf"new\.db{end}: SQLite gives this name to the log of another database",
    ):
        open_for_writing(str(path.with_name(f"new.db{end}")))
    if end.islower():
        path.rename(path.with_name(f"old.db{end}"))  # made by 1.0.0
        with pytest.raises(
            CannotWriteError, match=f"would write its log over the database .*old.db{end}"
        ):
            open_for_writing(str(path.with_name("old.db")))


def test_a_file_that_cannot_be_written(
    engine: Engine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # permission bits do not bind root, so the answer of the system is put in its mouth
    monkeypatch.setattr(engine_module.os, "access", lambda _path, mode: mode != os.W_OK)
    with pytest.raises(
        CannotWriteError,
        match=r"cannot be written; .*results\.db belongs to \S+, who can type: chmod a\+w",
    ):
        open_for_writing(str(path))


@pytest.mark.parametrize("operation", [open_for_writing, open_read_only])
def test_a_file_that_cannot_be_read(
    operation: Callable[[str], object], engine: Engine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as root may read everything
    monkeypatch.setattr(engine_module.os, "access", lambda _path, mode: mode != os.R_OK)
    with pytest.raises(NotFoundError, match=r"results\.db cannot be read"):
        operation(str(path))


@pytest.mark.parametrize("name", ["n" * 300 + ".db", "~nobody-of-this-name/results.db"])
def test_a_path_that_cannot_be(name: str, path: Path) -> None:
    with pytest.raises(DynabroError):
        open_for_writing(name if name.startswith("~") else str(path.with_name(name)))


NAMES = ["with space#.db", "a?mode=memory&b=c;d.db", "50%41.db", "größe-☃.db", "it's quo\"ted.db"]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_of_a_file_works(name: str, tmp_path: Path) -> None:
    folder = tmp_path / f"in {name}"
    folder.mkdir()
    path = folder / name
    record(open_for_writing(str(path)), whole_run())
    record(open_for_writing(str(path)), whole_run(key="cd" * 32))
    reader = open_read_only(str(path))
    assert list(queries.query(reader, "SELECT COUNT(*) FROM runs").rows) == [(2,)]
    others = {item.name for item in folder.iterdir()} - {
        name + ending for ending in ("", "-wal", "-shm")
    }
    assert others == set()


def test_a_relative_path_and_a_home(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    monkeypatch.setenv("HOME", str(path.parent))
    record(open_for_writing("results.db"), whole_run())
    for name in (
        "results.db",
        "./results.db",
        "~/results.db",
        f"sqlite:///{path}",
        "sqlite:///results.db",
    ):
        assert list(queries.query(open_read_only(name), "SELECT COUNT(*) FROM runs").rows) == [(1,)]


@pytest.mark.parametrize(
    ("url", "operation"),
    [
        ("sqlite://", open_for_writing),
        ("sqlite:///:memory:", open_for_writing),
        ("sqlite+pysqlite://", open_for_writing),
        (":memory:", open_for_writing),
        ("sqlite:///.//:memory:", open_for_writing),
        (":memory:", open_read_only),
    ],
)
def test_a_database_in_memory_is_refused(
    url: str, operation: Callable[[str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite opens one by this name, be it after a path is normalised, and it has no write-ahead
    log to wait for.
    """
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        (SpecError, DatabaseError),
        match=f"{re.escape(url)}(: a database in memory is lost when| names no file)",
    ):
        operation(url)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "message", "operation"),
    [
        ("://", "is not a database URL", open_for_writing),
        ("nosuch://host/results", "its driver is not installed", open_for_writing),
        ("postgresql+nosuch://host/results", "its driver is not installed", open_read_only),
    ],
)
def test_a_bad_url(
    operation: Callable[[str], object],
    url: str,
    message: str,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(path.parent)
    with pytest.raises(DatabaseError) as caught:
        operation(url)
    assert message in str(caught.value)
    assert url in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["postgresql+nosuch://me:secret@host/results", "postgresql://me:secret@host:port/results"],
)
def test_a_password_is_not_shown(url: str) -> None:
    with pytest.raises(DatabaseError) as caught:
        open_for_writing(url)
    assert "secret" not in str(caught.value)


def test_the_file_of_a_url() -> None:
    assert sqlite_path("results.db") == Path("results.db")
    assert sqlite_path("sqlite:///results.db") == Path("results.db")
    assert sqlite_path("sqlite:////srv/results.db") == Path("/srv/results.db")
    assert sqlite_path("postgresql://host/results") is None


# --- reading only

WRITES = [
    "INSERT INTO alembic_version VALUES ('0002')",
    "UPDATE runs SET status = 'failed'",
    "DELETE FROM runs",
    "UPDATE sqlite_master SET sql = ''",
    "CREATE TABLE more (x)",
    "CREATE TEMP TABLE more (x)",
    "ALTER TABLE runs ADD COLUMN more TEXT",
    "DROP TABLE runs",
    "ATTACH 'other.db' AS other",
    "DETACH main",
    "VACUUM",
    "VACUUM INTO 'other.db'",
    "REINDEX",
    "ANALYZE",
    "PRAGMA query_only = OFF",
    "PRAGMA user_version = 2",
    "PRAGMA journal_mode = DELETE",
    "PRAGMA writable_schema = ON",
    "PRAGMA wal_checkpoint(TRUNCATE)",
    "SELECT load_extension('other')",
    "BEGIN IMMEDIATE",
    "WITH gone AS (SELECT id FROM runs) DELETE FROM runs WHERE id IN gone",
    "INSERT INTO alembic_version VALUES ('0002') RETURNING version_num",
]


@pytest.mark.parametrize("sql", WRITES)
def test_a_reader_writes_nothing_anywhere(
    sql: str, engine: Engine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(engine, whole_run())
    monkeypatch.chdir(path.parent)
    reader = open_read_only(str(path))
    # the files that SQLite shares with writers are there from now on
    list(queries.query(reader, "SELECT * FROM runs").rows)
    before = contents(path.parent)
    before.pop("results.db-shm")  # a shared memory of locks, not data
    with pytest.raises(SpecError):
        list(queries.query(reader, sql).rows)
    # and so past the function that reports it
    with pytest.raises(DBAPIError), reader.begin() as connection:
        connection.exec_driver_sql(sql)
    after = contents(path.parent)
    after.pop("results.db-shm")
    assert after == before


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT status FROM runs WHERE task LIKE 'dig%'", [("finished",)]),
        ("SELECT byzantine, rounds FROM byzantine_histogram", [(8, 3)]),
        ("SELECT n, mean, std FROM final_accuracy", [(1, 0.5, None)]),
        (
            (
                "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 3) "
                "SELECT SUM(x) FROM c"
            ),
            [(6,)],
        ),
        ("SELECT round, SUM(cost) OVER (ORDER BY round) FROM rounds", [(0, 1), (1, 2), (2, 3)]),
        ("SELECT json_extract(spec, '$.task.name') FROM runs", [("digits",)]),
        ("SELECT value FROM runs, json_each('[1, 2]')", [(1,), (2,)]),
        ("SELECT name FROM pragma_table_info('runs') LIMIT 2", [("id",), ("run_key",)]),
        ("SELECT COUNT(*) FROM sqlite_master WHERE type = 'view'", [(3,)]),
        ("VALUES (1, 'a')", [(1, "a")]),
    ],
)
def test_a_reader_reads_all_that_sql_can(
    sql: str, rows: list[tuple[object, ...]], engine: Engine, path: Path
) -> None:
    record(engine, whole_run())
    assert list(queries.query(open_read_only(str(path)), sql).rows) == rows


def test_table_info_can_be_asked_for(engine: Engine, path: Path) -> None:
    rows = list(queries.query(open_read_only(str(path)), "PRAGMA table_info(evaluations)").rows)
    assert [row[1] for row in rows][:2] == ["run_id", "round"]


def test_a_reader_sees_what_a_writer_has_just_committed(engine: Engine, path: Path) -> None:
    reader = open_read_only(str(path))
    count = "SELECT COUNT(*) FROM runs"
    with engine.connect():  # while a writer is connected, rows stay in the write-ahead log
        assert list(queries.query(reader, count).rows) == [(0,)]
        record(engine, whole_run())
        assert path.with_name("results.db-wal").stat().st_size
        assert list(queries.query(reader, count).rows) == [(1,)]


def test_the_files_shared_with_writers_are_asked_for_only_where_they_can_be(
    engine: Engine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"{path.resolve().as_uri()}?mode=ro"
    assert read_only_uri(path) == uri
    monkeypatch.setattr(
        engine_module.os,
        "access",
        lambda where, mode: not (where == path.parent and mode == os.W_OK),
    )
    assert read_only_uri(path) == f"{uri}&immutable=1"
    # a writer is or was at work: its log is to be read too
    path.with_name("results.db-wal").touch()
    assert read_only_uri(path) == uri


def test_a_link_is_judged_by_where_the_file_is(
    engine: Engine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = path.parent.parent / "link.db"
    link.symlink_to(path)
    uri = f"{path.resolve().as_uri()}?mode=ro"
    closed = path.parent
    monkeypatch.setattr(
        engine_module.os,
        "access",
        lambda where, mode: not (Path(where) == closed and mode == os.W_OK),
    )
    assert read_only_uri(link) == f"{uri}&immutable=1"
    closed = link.parent
    assert read_only_uri(link) == uri
    path.with_name("results.db-wal").touch()
    closed = path.parent
    assert read_only_uri(link) == uri


def test_a_database_in_a_folder_that_cannot_be_written(
    engine: Engine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(engine, whole_run())
    before = contents(path.parent)
    assert set(before) == {"results.db"}
    monkeypatch.setattr(engine_module.os, "access", lambda _where, mode: mode != os.W_OK)
    mode, folder_mode = path.stat().st_mode, path.parent.stat().st_mode
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        rows = list(queries.query(open_read_only(str(path)), "SELECT status FROM runs").rows)
    finally:
        path.parent.chmod(folder_mode)
        path.chmod(mode)
    assert rows == [("finished",)]
    # not even the write-ahead log's files, which root could have made
    assert contents(path.parent) == before


def as_user(number: int, act: Callable[[], object]) -> str:
    """The error of ``act`` in a process of another user, which can write what its group can; empty
    without one.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        text = ""
        try:
            os.setgroups([])
            os.setgid(GROUP)
            os.setuid(number)
            os.umask(0o002)
            act()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with open(reading) as file:
        return file.read()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")
def test_a_reader_of_another_user_leaves_no_files(path: Path) -> None:
    """Nor can it write; a colleague can, if the umask allows it, and what an older version has left
    is named.
    """
    shared = Path(tempfile.mkdtemp(dir="/tmp"))
    shared.chmod(0o777)
    db = str(shared / "results.db")

    def runs(expected: int) -> Callable[[], object]:
        def read() -> None:
            assert list(queries.query(open_read_only(db), "SELECT COUNT(*) FROM runs").rows) == [
                (expected,)
            ]

        return read

    try:
        record(open_for_writing(str(path)), whole_run())  # imports what the others cannot read
        assert as_user(OWNER, lambda: record(open_for_writing(db), whole_run())) == ""
        assert stat.S_IMODE(Path(db).stat().st_mode) == 0o664
        assert as_user(READER, runs(1)) == ""
        assert {file.stat().st_uid for file in shared.iterdir()} == {OWNER}
        assert as_user(READER, lambda: record(open_for_writing(db), whole_run(key="cd" * 32))) == ""
        assert as_user(OWNER, runs(2)) == ""
        for end in ("-wal", "-shm"):
            Path(db + end).touch()
            Path(db + end).chmod(0o644)
            os.chown(db + end, READER, GROUP)
        error = as_user(OWNER, lambda: open_for_writing(db))
        assert error.startswith("CannotWriteError: ")
        assert (
            f"{db}-wal belongs to user {READER}, who can type: chmod a+w {db}-wal {db}-shm" in error
        )
    finally:
        shutil.rmtree(shared)


# --- other programs


def test_a_locked_database_is_called_busy(
    engine: Engine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNABRO_BUSY_SECONDS", "0.01")
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(BusyError) as caught:
            open_for_writing(str(path))
        assert str(path) in str(caught.value)
        assert list(queries.query(open_read_only(str(path)), "SELECT COUNT(*) FROM runs").rows) == [
            (0,)
        ]


def test_a_database_that_another_process_is_making_is_waited_for(path: Path) -> None:
    # SQLite does not wait, whatever the timeout, where a change of the journal mode meets another's
    # write
    with (
        contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        other.execute("BEGIN IMMEDIATE")
        opened = pool.submit(open_for_writing, str(path))
        with pytest.raises(concurrent.futures.TimeoutError):  # it can end only after the other has
            opened.result(timeout=0.3)
        other.execute("COMMIT")
        record(opened.result(), whole_run())
    assert read(path, "SELECT status FROM runs") == [("finished",)]


def test_a_database_that_is_being_made_for_too_long(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNABRO_BUSY_SECONDS", "0.01")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(BusyError):
            open_for_writing(str(path))


def test_a_write_waits_for_another_program(engine: Engine, path: Path) -> None:
    attempts = 0

    def write() -> None:
        nonlocal attempts
        with engine.begin() as connection:
            attempts += 1
            connection.exec_driver_sql("SELECT 1")

    with (
        contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        other.execute("BEGIN IMMEDIATE")
        written = pool.submit(write)
        with pytest.raises(concurrent.futures.TimeoutError):  # beyond what SQLite itself waits
            written.result(timeout=2 * ATTEMPT_SECONDS)
        other.execute("COMMIT")
        written.result()
    assert attempts == 1


def test_a_database_url_of_another_kind_is_checked_too(
    monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    # stands for a server: SQLAlchemy gives the connection, and there is no file to look into
    foreign_database(path)
    monkeypatch.setattr(
        database_servers, "create_engine", lambda *_, **__: create_engine(f"sqlite:///{path}")
    )
    for operation in (open_for_writing, open_read_only):
        with pytest.raises(DatabaseError, match="is not a dynabro database"):
            operation("postgresql://host/results")
    change(path, "DROP TABLE accounts")
    engine = open_for_writing("postgresql://host/results")
    record(engine, whole_run())
    with engine.connect() as connection:
        assert connection.execute(text("SELECT COUNT(*) FROM runs")).scalar() == 1
    change(path, "UPDATE alembic_version SET version_num = '9999'")
    for operation in (open_for_writing, open_read_only):
        with pytest.raises(DatabaseError, match="pip install --upgrade"):
            operation("postgresql://host/results")


def test_a_text_among_numbers_is_an_error_of_the_frame(path: Path) -> None:
    record(open_for_writing(str(path)), whole_run())
    change(
        path,
        "UPDATE evaluations SET test_accuracy = 'x' WHERE round = (SELECT MIN(round) FROM "
        "evaluations)",
    )
    engine = open_read_only(str(path))
    with pytest.raises(
        DatabaseError,
        match=r"test_accuracy has a value that is not a number\. Try: dynabro db check --db",
    ):
        queries.query(engine, "SELECT * FROM evaluations").frame()
    assert len(queries.query(engine, "SELECT round FROM evaluations").frame()) > 0
