"""Compare the schema of a database with dynabro's, to find foreign objects: triggers, and objects
that replace tables and views.

A foreign object may delete what dynabro stores, or show numbers that nobody measured. So SQLite's
record of the schema must be what dynabro writes, in any letter case and white space. Users may add
tables and views under other names, columns without a clause, and indexes on columns.
"""

from __future__ import annotations

import functools
import re
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from sqlalchemy import CheckConstraint, Connection, UniqueConstraint, text
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from dynabro_cli.errors import DatabaseError
from dynabro_cli.store.open.translation import shown
from dynabro_cli.store.tables import metadata
from dynabro_cli.store.views import OLDER, VIEWS

VERSION_TABLE = (
    "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, CONSTRAINT "
    "alembic_version_pkc PRIMARY KEY (version_num))"
)
"""The table of the schema's version, as Alembic has it, so that a later version can be a
migration.
"""
_TOKEN = re.compile(
    r"""--[^\n]*|/\*.*?\*/|('(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\]|\w+|[^\s\w])""",
    re.DOTALL,
)
_WORD = r"[^\W\d]\w*"
_NAME = rf"""({_WORD}|"{_WORD}"|`{_WORD}`|\[{_WORD}\])"""
_TYPES = "integer|int|bigint|text|varchar|char|real|double|precision|float|numeric|decimal|boolean|date|datetime|blob|json"  # noqa: E501
_COLUMN = rf" , {_NAME}(( ({_TYPES}))+( \( \d+( , \d+)? \))?)?"
_ADDED = re.compile(rf" , {_NAME}")
_CONSTRAINTS = re.compile(" , (constraint|primary key) ")
"""The beginning of what follows the columns in a table's definition; SQLite adds further columns
before it.
"""
_PART = rf"{_NAME}( collate (binary|nocase|rtrim))?( asc| desc)?"
_PLAIN_INDEX = re.compile(rf"create index {_NAME} on {_NAME} \( {_PART}( , {_PART})* \)")
_TAKEN = {"cell_mean", *(column.name for table in metadata.tables.values() for column in table.c)}
"""Names that dynabro's statements use: another column with such a name would replace theirs, or be
ambiguous.
"""
NEW_ONE = "dynabro db merge {} --db NEW.db, which copies the runs alone into a new database"
RESTORE = "restore a backup, or name another with --db"
MISSING, DIFFERENT = "is missing", "has another definition than dynabro's"
MOST_LETTERS = 60
"""Most letters of a name in a message."""

ObjectKind = Literal["trigger", "index", "view", "table"]


class SchemaEntry(NamedTuple):
    """A row of SQLite's ``sqlite_master``."""

    type: str
    name: str
    table: str
    sql: str | None


class Stranger(NamedTuple):
    """An object in a database that dynabro has not made.

    Attributes:
        kind: Its kind, or the kind of dynabro's object whose place it has.
        name: Its name in the database, which may be any text.
        why: The problem, in words.
    """

    kind: ObjectKind
    name: str
    why: str

    @property
    def acts(self) -> bool:
        """True if it acts only when something is stored, and so does not affect a reader."""
        return self.kind in ("trigger", "index")

    def __str__(self) -> str:
        return f"{self.kind} {_quoted(self.name)} {self.why}"


def entries(raw: sqlite3.Connection) -> list[SchemaEntry]:
    """Return the schema of an SQLite database; bytes that are not UTF-8 become replacement
    characters.
    """
    usual = raw.text_factory
    raw.text_factory = lambda data: data.decode("utf-8", "replace")
    try:
        rows = raw.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
    finally:
        raw.text_factory = usual
    return [
        SchemaEntry(str(row[0]), str(row[1]), str(row[2]), None if row[3] is None else str(row[3]))
        for row in rows
    ]


def refuse_strangers(found: Sequence[SchemaEntry], database: str, *, writing: bool) -> None:
    """Refuse a database with a foreign object.

    Args:
        found: The schema of the database.
        database: The database as the user named it.
        writing: False for a reader, which triggers and indexes do not affect.

    Raises:
        DatabaseError: The database has a foreign object.
    """
    strange = [one for one in strangers(found) if writing or not one.acts]
    if strange:
        raise refusal(database, strange, way_on(strange, database))


def way_on(strange: Sequence[Stranger], database: str) -> str:
    """Return the command to type if a database has foreign objects."""
    lost = any(one.kind == "table" and one.why != DIFFERENT for one in strange)
    return RESTORE if lost else NEW_ONE.format(shown(database))


def refusal(database: str, strange: Sequence[object], way: str) -> DatabaseError:
    """Return the error that names the first foreign object, and the way out."""
    more = (
        f" (and {len(strange) - 1} more; dynabro db check lists them)" if len(strange) > 1 else ""
    )
    return DatabaseError(f"{shown(database)}: {strange[0]}{more}. Try: {way}")


def strangers(found: Iterable[SchemaEntry]) -> list[Stranger]:
    """Return the objects of a database's schema that dynabro does not make, and the missing
    ones.
    """
    expected = present()
    tables = {name for name, one in expected.items() if one.type == "table"}
    # a missing index only slows reading down
    missing = {name: one for name, one in expected.items() if one.type != "index"}
    strange = []
    for own in found:
        name = own.name.lower()
        missing.pop(name, None)
        if own.type == "trigger":
            strange.append(
                Stranger(
                    "trigger",
                    own.name,
                    f"on {_quoted(own.table)} acts whenever something is stored",
                )
            )
        elif name in expected:
            strange += _difference(own, expected[name])
        elif own.type == "index" and own.table.lower() in tables and not _is_plain_index(own.sql):
            strange.append(
                Stranger(
                    "index", own.name, f"on {_quoted(own.table)} is unique, partial or computed"
                )
            )
    return strange + [Stranger(_kind(one), name, MISSING) for name, one in missing.items()]


def unreadable(raw: sqlite3.Connection) -> str | None:
    """Return which of dynabro's tables is missing, is a view or virtual, or computes a column; None
    if none is.
    """
    found = {one.name.lower(): _written(one.sql) for one in entries(raw) if one.type == "table"}
    for table in metadata.tables.values():
        if not found.get(table.name, "").startswith("create table "):
            return f"has no table {table.name}, or another thing of that name"
        hidden = {
            str(row[1]).lower(): row[6] for row in raw.execute(f"PRAGMA table_xinfo({table.name})")
        }
        for name in table.columns.keys():  # noqa: SIM118
            if hidden.pop(name, 1):
                return f"has no column {name} in its table {table.name}, or computes it"
        if hidden.keys() & _TAKEN:
            return (
                f"has an additional column in its table {table.name}, of a name that "
                "dynabro's statements use"
            )
    return None


def _difference(own: SchemaEntry, expected: SchemaEntry) -> list[Stranger]:
    """Return the problem of an object that has the name of one of dynabro's."""
    kind = _kind(expected)
    if own.type != expected.type:
        return [Stranger(kind, own.name, f"is a {own.type}, not dynabro's {kind}")]
    written, meant = _written(own.sql), _written(expected.sql)
    older = own.name.lower() in OLDER and written == _written(OLDER[own.name.lower()])
    same = written == meant or older or (kind == "table" and _with_columns(written, meant))
    return [] if same else [Stranger(kind, own.name, DIFFERENT)]


def _with_columns(written: str, meant: str) -> bool:
    """Return True if a table is as meant, with more columns that only store their values."""
    place = _CONSTRAINTS.search(meant)
    if place is None:
        return False
    before, after = (re.escape(part) for part in (meant[: place.start()], meant[place.start() :]))
    match = re.fullmatch(rf"{before}(?P<added>({_COLUMN})*){after}", written)
    return match is not None and not any(
        name[1].strip('"`[]').lower() in _TAKEN for name in _ADDED.finditer(match["added"])
    )


def _kind(entry: SchemaEntry) -> ObjectKind:
    kinds: dict[str, ObjectKind] = {"table": "table", "view": "view", "index": "index"}
    return kinds[entry.type]


@functools.cache
def present() -> dict[str, SchemaEntry]:
    """Return the schema of the present version."""
    found = [SchemaEntry("table", "alembic_version", "alembic_version", VERSION_TABLE)]
    dialect = sqlite.dialect()
    for table in metadata.sorted_tables:
        found.append(
            SchemaEntry(
                "table", table.name, table.name, str(CreateTable(table).compile(dialect=dialect))
            )
        )
        for index in table.indexes:
            found.append(
                SchemaEntry(
                    "index",
                    str(index.name),
                    table.name,
                    str(CreateIndex(index).compile(dialect=dialect)),
                )
            )
    found += [SchemaEntry("view", name, name, sql) for name, sql in VIEWS.items()]
    return {one.name: one for one in found}


@functools.lru_cache(maxsize=256)
def _written(sql: str | None) -> str:
    """Return the words and signs of a statement, one space between two; quoted text stays as it
    is.
    """
    words = (match[1] for match in _TOKEN.finditer(sql or ""))
    return " ".join(word if word[0] in "'\"`[" else word.lower() for word in words if word)


def _is_plain_index(sql: str | None) -> bool:
    """Return True for an index on columns, and for an index of a table's definition, which has no
    statement.
    """
    return sql is None or _PLAIN_INDEX.fullmatch(_written(sql)) is not None


def _quoted(text: str) -> str:
    """Return a text of the database in printable letters, shortened."""
    return ascii(text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 3]}...")


_FOUND = """
    WITH ours AS (SELECT c.oid, c.relname AS name, c.relkind::text AS kind, c.relrowsecurity AS secured
                  FROM pg_class AS c WHERE c.oid IN (SELECT to_regclass(name) FROM unnest(CAST(:names AS text[])) AS name))
    SELECT 'table' AS kind, name, 'is missing' AS why
    FROM unnest(CAST(:names AS text[])) AS name WHERE to_regclass(name) IS NULL
    UNION ALL SELECT 'table', name, 'is not dynabro''s table or view of that name'
    FROM ours WHERE kind <> CASE WHEN name = ANY(:views) THEN 'v' ELSE 'r' END
    UNION ALL SELECT 'table', name, 'has another table that inherits from it' FROM ours JOIN pg_inherits ON inhparent = ours.oid
    UNION ALL SELECT 'table', name, 'hides rows by row security' FROM ours WHERE secured
    UNION ALL SELECT 'table', name, 'computes its column ' || quote_ident(attname)
    FROM ours JOIN pg_attribute ON attrelid = ours.oid WHERE attgenerated <> ''
    UNION ALL SELECT 'trigger', tgname, 'on ' || name || ' acts whenever something is stored'
    FROM ours JOIN pg_trigger ON tgrelid = ours.oid WHERE NOT tgisinternal
    UNION ALL SELECT 'trigger', rulename, 'on ' || name || ' is a rule that acts whenever something is stored'
    FROM ours JOIN pg_rewrite ON ev_class = ours.oid WHERE rulename <> '_RETURN'
    UNION ALL SELECT 'trigger', conname, 'is a check on ' || name
    FROM ours JOIN pg_constraint ON conrelid = ours.oid WHERE contype = 'c' AND NOT conname = ANY(:checks)
    UNION ALL SELECT 'index', i.relname, 'on ' || name || ' is unique, partial or computed'
    FROM ours JOIN pg_index ON indrelid = ours.oid JOIN pg_class AS i ON i.oid = indexrelid
    WHERE indpred IS NOT NULL OR indexprs IS NOT NULL
          OR (indisunique AND NOT indisprimary AND NOT (name = 'runs' AND i.relname = 'runs_run_key_key')
              AND NOT i.relname = ANY(:checks))
"""  # noqa: E501


def server_strangers(connection: Connection) -> list[Stranger]:
    """Return the objects on dynabro's PostgreSQL tables and views that dynabro does not make; []
    for other servers.
    """
    if connection.dialect.name != "postgresql":
        return []
    named = (CheckConstraint, UniqueConstraint)
    checks = [
        str(one.name)
        for table in metadata.tables.values()
        for one in table.constraints
        if isinstance(one, named)
    ]
    values = {
        "names": [*metadata.tables, "alembic_version", *VIEWS],
        "views": list(VIEWS),
        "checks": checks,
    }
    return [Stranger(*row) for row in connection.execute(text(_FOUND), values)]


def refuse_server_strangers(connection: Connection, database: str, *, writing: bool) -> None:
    """Refuse a server's database with a foreign object; arguments and errors as in
    ``refuse_strangers``.
    """
    strange = [one for one in server_strangers(connection) if writing or not one.acts]
    if strange:
        raise refusal(database, strange, NEW_ONE.format(shown(database)))
