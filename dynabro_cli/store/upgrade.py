"""Upgrade a database of an older schema version."""

from __future__ import annotations

from dynabro_cli.errors import DatabaseError
from dynabro_cli.store import recovery
from dynabro_cli.store.copies import copy_database, new_database
from dynabro_cli.store.database_files import examined, read_only_uri, sqlite_path
from dynabro_cli.store.database_servers import server_writer
from dynabro_cli.store.engine import check_version, migrate, schema_at, server_version, sqlite_writer
from dynabro_cli.store.schema import MISSING, refusal, strangers
from dynabro_cli.store.server_schema import server_strangers
from dynabro_cli.store.stopping import watched
from dynabro_cli.store.tables import SCHEMA_VERSION
from dynabro_cli.store.translation import busy_seconds, shown, translated_errors


def upgrade_file(database: str) -> str:
    """Back up ``database`` beside itself and upgrade it to this program's schema; return a message.

    Runs with a result get the rows that this version stores.

    Raises:
        NotFoundError: There is no such file.
        DatabaseError: The file is not a dynabro database, is newer, has a foreign object, or the backup's name is taken.
    """
    path = sqlite_path(database)
    backup = ""
    if path is not None:
        version, found = examined(path)
        engine = sqlite_writer(path)
    else:
        engine = server_writer(database, shown(database), busy_seconds)
        with translated_errors(database, opening=True), engine.connect() as connection:
            version = server_version(connection, database)
            strange = [one for one in server_strangers(connection) if one.why != MISSING]
    if version is None:
        raise DatabaseError(f"{shown(database)} is an empty database; there is nothing to upgrade")
    if version > SCHEMA_VERSION:
        check_version(version, database)
    if version == SCHEMA_VERSION:
        return f"{shown(database)} has schema version {version} already; nothing to do"
    if path is not None:
        strange = strangers(found, schema_at(version))
    if strange:
        drop = f"sqlite3 {path}" if path is not None else f"psql {shown(database)}"
        way = f"drop it, as with {drop} and DROP {strange[0].kind.upper()}, then repeat the command; or restore a backup"
        raise refusal(database, strange, way)
    if path is not None:
        copy = path.with_name(f"{path.name}.v{version}")
        if copy.exists():
            raise DatabaseError(f"{copy} exists already, from an earlier upgrade. Try: move it away, then the same command")
        output = new_database(copy, database)
        with translated_errors(database):
            copy_database(read_only_uri(path), output)
        backup = f"; the old one is {copy}"
    with translated_errors(database), engine.begin() as connection, watched(connection.connection.dbapi_connection):
        migrate(connection)
        recovery.store(connection)
    return f"{shown(database)} upgraded from schema version {version} to {SCHEMA_VERSION}{backup}"
