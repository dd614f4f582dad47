"""Opening a database: a path or any SQLAlchemy URL, for writing or read-only, checked before it is touched."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, create_engine, event, inspect
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from dynabro_cli.errors import BusyError, CannotWriteError, DatabaseError, DynabroError, NotFoundError, StorageError
from dynabro_cli.store.tables import APPLICATION_ID, SCHEMA_VERSION

BUSY_SECONDS = 60
RETRY_SECONDS = 0.02
SQLITE_MAGIC = b"SQLite format 3\x00"


def open_for_writing(database: str) -> Engine:
    """Open ``database`` for writing; create it, or its tables, where there are none.

    Args:
        database: A path, or an SQLAlchemy URL.

    Raises:
        CannotWriteError: Its folder is missing or cannot be written.
        DatabaseError: It is something else, or of another schema version.
    """
    path = sqlite_path(database)
    if path is None:
        engine = _engine(database)
    else:
        if not path.parent.is_dir():
            raise CannotWriteError(f"{path}: its folder {path.parent} does not exist; type mkdir -p {path.parent}")
        if path.exists():
            version = _file_version(path)
            if version is not None:
                _check_version(version, str(path))
            if not os.access(path, os.W_OK):
                raise CannotWriteError(f"{path} cannot be written; change its permissions, or name another file with --db")
        engine = _writer(path)
    with translated_errors(database), engine.begin() as connection:
        _create_or_check(connection, database)
    return engine


def open_read_only(database: str) -> Engine:
    """Open ``database`` so that nothing can be written to it, nor anywhere else by SQL.

    Raises:
        NotFoundError: There is no such file.
        DatabaseError: It is something else, or of another schema version.
    """
    path = sqlite_path(database)
    if path is None:
        engine = _engine(database, execution_options={"postgresql_readonly": True})
        with translated_errors(database), engine.connect() as connection:
            if not inspect(connection).has_table("alembic_version"):
                raise DatabaseError(
                    f"{shown(database)} is no dynabro database; type 'dynabro run --db {shown(database)}' to make it one"
                )
            _check_version(_alembic_version(connection), database)
        return engine
    if not path.exists():
        raise NotFoundError(
            f"there is no database {path}; type 'dynabro run' to make one, or name another with --db or DYNABRO_DB"
        )
    version = _file_version(path)
    if version is None:
        raise DatabaseError(f"{path} is no dynabro database yet, but empty; type 'dynabro run --db {path}' to fill it")
    _check_version(version, str(path))
    uri = _read_only_uri(path)
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        creator=lambda: sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS),
        poolclass=NullPool,
    )
    event.listen(engine, "connect", _allow_reading_only)
    return engine


def sqlite_path(database: str) -> Path | None:
    """The file of an SQLite database; None for a database of another kind.

    Raises:
        DatabaseError: ``database`` looks like a URL and is none that SQLAlchemy knows.
    """
    if "://" not in database:
        try:
            path = Path(database).expanduser()
            path.exists()
        except (OSError, RuntimeError, ValueError) as error:
            raise CannotWriteError(f"{database!r} cannot be a file ({error}); name another with --db") from error
        return path
    try:
        url = make_url(database)
    except (ArgumentError, ValueError) as error:
        kind = database.partition("://")[0]  # what follows may hold a password
        raise DatabaseError(f"{kind}://... is no database URL; type a path, or a URL such as sqlite:///results.db") from error
    if url.get_backend_name() != "sqlite":
        return None
    if not url.database or url.database == ":memory:":
        raise DatabaseError(f"{database} names no file, and results are to be kept; type a path, such as --db results.db")
    return Path(url.database)


def _writer(path: Path) -> Engine:
    engine = create_engine(URL.create("sqlite", database=str(path)), connect_args={"timeout": BUSY_SECONDS}, poolclass=NullPool)
    event.listen(engine, "connect", _prepare_writer)
    event.listen(engine, "begin", _begin_immediate)
    return engine


def _engine(database: str, **options: Any) -> Engine:
    try:
        return create_engine(database, **options)
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise DatabaseError(
            f"{shown(database)}: its driver is not installed ({error}); install it with pip, or use SQLite"
        ) from error


def _read_only_uri(path: Path, *, for_a_moment: bool = False) -> str:
    """A read-only URI. It is immutable, and leaves no files behind that SQLite shares with writers, where nobody is writing
    and those files could not be made, or the database is read ``for_a_moment`` only.
    """
    path = path.resolve()
    wal = path.with_name(path.name + "-wal")
    quiet = not wal.exists() or (for_a_moment and not wal.stat().st_size)
    lonely = quiet and (for_a_moment or not os.access(path.parent, os.W_OK))
    return f"{path.as_uri()}?mode=ro" + ("&immutable=1" if lonely else "")


def _file_version(path: Path) -> int | None:
    """The schema version of a dynabro database, None for a database without tables; read without writing to the file.

    Raises:
        DatabaseError: It is something else, or damaged.
        NotFoundError: It cannot be read.
    """
    stranger = f"{path} is no dynabro database; name another file with --db"
    if path.is_dir():
        raise DatabaseError(f"{path} is a folder, not a database; name a file with --db")
    try:
        with path.open("rb") as file:
            head = file.read(len(SQLITE_MAGIC))
    except OSError as error:
        raise NotFoundError(
            f"{path} cannot be read ({error.strerror}); change its permissions, or name another with --db"
        ) from error
    if not head:
        return None
    if head != SQLITE_MAGIC:
        raise DatabaseError(stranger)
    uri = _read_only_uri(path, for_a_moment=True)
    with translated_errors(str(path)), contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        tables = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
    if application == 0 and version == 0 and tables == 0:
        return None
    if application != APPLICATION_ID:
        raise DatabaseError(stranger)
    return version


def _check_version(version: int, database: str) -> None:
    if version > SCHEMA_VERSION:
        raise DatabaseError(
            f"{shown(database)} has schema version {version}, and this dynabro knows up to {SCHEMA_VERSION}; "
            "type pip install --upgrade dynabro"
        )
    if version < SCHEMA_VERSION:
        raise DatabaseError(
            f"{shown(database)} has schema version {version}, and this dynabro needs {SCHEMA_VERSION}; "
            f"type dynabro db upgrade --db {shown(database)}"
        )


def _create_or_check(connection: Connection, database: str) -> None:
    """Make the tables in an empty database, in the caller's transaction; check the version of one that is not empty."""
    names = set(inspect(connection).get_table_names())
    if not names:
        migrate(connection)
    elif "alembic_version" not in names:
        raise DatabaseError(f"{shown(database)} holds other tables and is no dynabro database; name another with --db")
    else:
        _check_version(_alembic_version(connection), database)


def migrate(connection: Connection) -> None:
    """Bring the schema to this program's version, in the caller's transaction, and stamp the file."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")


def upgrade_file(database: str) -> str:
    """Back up ``database`` beside itself and bring it to this program's schema; return what was done, in words.

    Raises:
        NotFoundError: There is no such file.
        DatabaseError: It is no dynabro database, or a newer one, or the backup's name is taken.
    """
    path = sqlite_path(database)
    backup = ""
    if path is not None:
        if not path.exists():
            raise NotFoundError(f"there is no database {path}; name another with --db or DYNABRO_DB")
        version = _file_version(path)
        if version is None:
            raise DatabaseError(f"{path} is an empty database; there is nothing to upgrade")
        engine = _writer(path)
    else:
        engine = _engine(database)
        with translated_errors(database), engine.connect() as connection:
            version = _alembic_version(connection)
    if version > SCHEMA_VERSION:
        _check_version(version, database)
    if version == SCHEMA_VERSION:
        return f"{shown(database)} has schema version {version} already; nothing to do"
    if path is not None:
        copy = path.with_name(f"{path.name}.v{version}")
        if copy.exists():
            raise DatabaseError(f"{copy} is there already, from an upgrade before; move it away, then repeat the command")
        with translated_errors(database), contextlib.closing(sqlite3.connect(path)) as raw:
            raw.execute("VACUUM INTO ?", (str(copy),))
        backup = f"; the old one is {copy}"
    with translated_errors(database), engine.begin() as connection:
        migrate(connection)
    return f"{shown(database)} upgraded from schema version {version} to {SCHEMA_VERSION}{backup}"


def _alembic_version(connection: Connection) -> int:
    """The schema version: the number that the current migration's name is."""
    return int(connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one())


def _prepare_writer(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None  # SQLAlchemy, not the driver, says when a transaction begins
    _switch_to_wal(connection)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL; SQLite itself does not wait for another program's write before this change, whatever the timeout."""
    end = time.monotonic() + BUSY_SECONDS
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(RETRY_SECONDS)


def _begin_immediate(connection: Connection) -> None:
    """Take the write lock at once: a read that turns into a write fails at once, whatever the timeout."""
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _allow_reading_only(connection: sqlite3.Connection, _record: Any) -> None:
    """Refuse every SQL action but reading: ATTACH and VACUUM INTO would write files even on a read-only database."""
    connection.execute("PRAGMA query_only = ON")
    reading = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}

    def authorize(action: int, first: str | None, second: str | None, _database: str | None, _inner: str | None) -> int:
        allowed = action in reading and second != "load_extension"
        # table functions, such as json_each, announce themselves as a change of the schema, which query_only prevents
        allowed |= action == sqlite3.SQLITE_UPDATE and first == "sqlite_master"
        allowed |= action == sqlite3.SQLITE_PRAGMA and (first or "").lower() in ("table_info", "table_xinfo", "table_list")
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    connection.set_authorizer(authorize)


def shown(database: str | URL) -> str:
    """``database`` as it may be printed: without a password; the path alone for a file."""
    if isinstance(database, str) and "://" not in database:
        return database
    url = make_url(database)
    is_file = url.get_backend_name() == "sqlite"
    return (url.database or "") if is_file else url.render_as_string(hide_password=True)


@contextlib.contextmanager
def translated_errors(database: str | URL) -> Iterator[None]:
    """Turn the errors of drivers into errors that say what to do."""
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        raise translate(error, shown(database)) from error


def translate(error: DBAPIError | sqlite3.Error, database: str) -> DynabroError:
    """The error of this package that a driver's error stands for."""
    reason = str(error.orig if isinstance(error, DBAPIError) else error)
    if "disk is full" in reason or "disk I/O" in reason:
        return StorageError(f"{database}: {reason}; make room; what was stored before is intact")
    if "image is malformed" in reason or "not a database" in reason:
        return DatabaseError(f"{database} is damaged ({reason}); restore a backup, or name another file with --db")
    if "locked" in reason or "busy" in reason:
        return BusyError(
            f"{database} was locked by another program for {BUSY_SECONDS} s; end that program, then repeat the command"
        )
    if "connection failed" in reason or "could not connect" in reason:
        return NotFoundError(
            f"{database} cannot be reached: {reason.strip().splitlines()[0]}; start the server, or correct --db"
        )
    if "unable to open" in reason or "readonly" in reason:
        return CannotWriteError(
            f"{database} cannot be created or written ({reason}); name a file in a folder of yours with --db"
        )
    return DatabaseError(f"{database}: {reason.strip().splitlines()[0]}")
