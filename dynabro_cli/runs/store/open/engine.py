"""Open a database: a path or any SQLAlchemy URL, for writing or read-only, checked before it is
touched.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, inspect
from sqlalchemy.engine import URL
from sqlalchemy.pool import NullPool

from dynabro_cli.core.errors import CannotWriteError, DatabaseError, EmptyDatabaseError
from dynabro_cli.runs.store.open.connections import (
    ATTEMPT_SECONDS,
    allow_reading_only,
    begin_immediate,
    connect_reader,
    prepare_writer,
)
from dynabro_cli.runs.store.open.files import (
    PinnedFile,
    examined,
    file_version,
    read_only_uri,
    refuse_log_names,
    refuse_network,
    refuse_two_names,
    sqlite_path,
)
from dynabro_cli.runs.store.open.schema import (
    VERSION_TABLE,
    Schema,
    refuse_missing_tables,
    refuse_view_and_trigger_problems,
    schema_of,
)
from dynabro_cli.runs.store.open.servers import server_reader, server_writer, through_outages
from dynabro_cli.runs.store.open.translation import (
    busy_seconds,
    not_writable,
    shown,
    translated_errors,
)
from dynabro_cli.runs.store.tables import APPLICATION_ID, SCHEMA_VERSION, metadata
from dynabro_cli.runs.store.views import ADDED, VIEWS


def open_for_writing(database: str) -> Engine:
    """Open ``database`` for writing; create the database or its tables if they are missing.

    Args:
        database: A path, or an SQLAlchemy URL.

    Raises:
        CannotWriteError: The folder is missing, cannot be written, or is shared by several
            machines.
        DatabaseError: The file is not a dynabro database, or has another schema version.
    """
    path = sqlite_path(database)
    if path is None:
        engine = server_writer(database)
    else:
        if not path.parent.is_dir():
            raise CannotWriteError(
                f"{path}: its folder {path.parent} does not exist. Try: mkdir -p {path.parent}"
            )
        refuse_log_names(path.resolve())
        if path.exists():
            version = file_version(path)
            if version is not None:
                check_version(version, str(path))
            if not os.access(path, os.W_OK):
                raise CannotWriteError(
                    f"{path} cannot be written{not_writable(path)}. Try: another --db"
                )
        engine = sqlite_writer(path)

    def check() -> None:
        with translated_errors(database), engine.begin() as connection:
            _create_or_check(connection, database)

    # repeated after a lost commit, it finds the tables that it has made
    through_outages(shown(database), busy_seconds(), check)
    return engine


def open_read_only(
    database: str, *, patience: float | None = None, any_view: bool = False
) -> Engine:
    """Open ``database`` so that SQL can write neither to it nor to any other file.

    On a server, this is a read-only transaction, which is never committed. Functions of the server
    that act outside of transactions, such as PostgreSQL's ``pg_terminate_backend``, have the rights
    of the user's role.

    Args:
        database: A path, or an SQLAlchemy URL.
        patience: Seconds to wait for another program's lock on a file; None for ``busy_seconds``.
        any_view: True if the caller does not read the views.

    Raises:
        NotFoundError: There is no such file.
        DatabaseError: The file is not a dynabro database, has another schema version, lacks a table
            or a column, or has another view than dynabro's.
    """
    path = sqlite_path(database)
    if path is None:
        engine = server_reader(database)
        with translated_errors(database), engine.connect() as connection:
            version, schema = stored_version(connection, database), schema_of(connection)
    else:
        version, schema = examined(path, patience)
        uri = read_only_uri(path)
        engine = create_engine(
            URL.create("sqlite", database=str(path)),
            creator=lambda: connect_reader(uri, patience),
            poolclass=NullPool,
        )
        event.listen(engine, "connect", lambda connection, _record: allow_reading_only(connection))
    if version is None:
        name = shown(database)
        raise EmptyDatabaseError(f"{name} has no tables yet. Try: dynabro run --db {name}")
    check_version(version, database)
    refuse_missing_tables(schema, database)
    if not any_view:
        refuse_view_and_trigger_problems(schema, database, writing=False)
    return engine


def sqlite_writer(path: Path) -> Engine:
    """Return an engine that writes an SQLite file; a file that was removed or replaced is an
    error.
    """
    refuse_network(path)
    refuse_two_names(path)
    file = PinnedFile(path, ATTEMPT_SECONDS)
    engine = create_engine(
        URL.create("sqlite", database=str(path)), creator=file.connect, poolclass=NullPool
    )
    event.listen(engine, "connect", prepare_writer)
    event.listen(engine, "begin", begin_immediate)
    # SQLite writes to a removed file without an error
    event.listen(engine, "commit", lambda _: file.check())
    event.listen(engine, "handle_error", lambda _: file.check())
    return engine


def check_version(version: int, database: str) -> None:
    if version > SCHEMA_VERSION:
        raise DatabaseError(
            f"{shown(database)} has schema version {version}, and this dynabro knows up to "
            f"{SCHEMA_VERSION}. "
            "Try: pip install --upgrade dynabro"
        )
    if version < SCHEMA_VERSION:
        raise DatabaseError(
            f"{shown(database)} has schema version {version}, and this dynabro needs "
            f"{SCHEMA_VERSION}. "
            "Try: another --db; no version of dynabro that was released made this database"
        )


def _create_or_check(connection: Connection, database: str) -> None:
    """Create the tables in an empty database, in the caller's transaction; otherwise check version
    and schema.
    """
    version = stored_version(connection, database)
    if version is None:
        create_tables(connection)
        return
    check_version(version, database)
    schema = schema_of(connection)
    refuse_missing_tables(schema, database)
    refuse_view_and_trigger_problems(schema, database, writing=True)
    _renew_views(connection, schema)


def create_tables(connection: Connection) -> None:
    """Make the tables and views of an empty database, in the caller's transaction."""
    metadata.create_all(connection, checkfirst=False)
    for statement in (VERSION_TABLE, *VIEWS.values()):
        connection.exec_driver_sql(statement)
    connection.exec_driver_sql(f"INSERT INTO alembic_version VALUES ('{SCHEMA_VERSION:04}')")
    if connection.dialect.name == "sqlite":
        _stamp(connection)


def _renew_views(connection: Connection, schema: Schema) -> None:
    """Replace the view of a database of 1.0.0 or 1.1.0, and add the view that it lacks, in the
    caller's transaction.
    """
    if ADDED[1] not in schema.views:
        connection.exec_driver_sql(VIEWS[ADDED[1]])
    create, on_file = VIEWS["final_accuracy"], connection.dialect.name == "sqlite"
    stored = connection.exec_driver_sql(
        "SELECT sql FROM sqlite_master WHERE name = 'final_accuracy'"
        if on_file
        else "SELECT pg_get_viewdef('final_accuracy'::regclass)"
    ).scalar()
    if "counted" in str(stored):  # a server has its own wording
        return
    if on_file:
        connection.exec_driver_sql("DROP VIEW final_accuracy")
    # a server does not drop a view that other views read; it replaces one that only gets more
    # columns
    else:
        create = create.replace("CREATE VIEW", "CREATE OR REPLACE VIEW")
    connection.exec_driver_sql(create)


def _stamp(connection: Connection) -> None:
    """Write dynabro's mark and the schema version into an SQLite file's header."""
    connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")


def stored_version(connection: Connection, database: str) -> int | None:
    """Return the schema version, which is stored in ``alembic_version``; None without tables.

    Raises:
        DatabaseError: The database is not a dynabro database.
    """
    names = set(inspect(connection).get_table_names())
    if not names:
        return None
    if {"alembic_version", "runs", "rounds", "evaluations"} <= names:
        words = (
            connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalars().all()
        )
        if len(words) == 1 and words[0].isdigit():
            return int(words[0])
    raise DatabaseError(
        f"{shown(database)} has other tables and is not a dynabro database. Try: another --db"
    )


@contextlib.contextmanager
def snapshot(database: str) -> Iterator[Connection]:
    """Open a reading connection that does not see what is written after its first read.

    Unlike a user's own statements, its statements may be any reading statements of SQLite. The
    views are not checked, so that runs can be saved from a database whose views have changed.

    Args:
        database: A path or a URL.

    Raises:
        NotFoundError: There is no such file.
        DatabaseError: The file is not a dynabro database, has another schema version, or lacks a
            table or a column.
    """
    engine = open_read_only(database, any_view=True)
    try:
        with translated_errors(database), engine.connect() as connection:
            if connection.dialect.name == "sqlite":
                raw: Any = connection.connection.dbapi_connection
                raw.set_authorizer(None)
                raw.isolation_level = None
                raw.execute("BEGIN")
            else:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            yield connection
    finally:
        engine.dispose()
