"""Compare the schema of a PostgreSQL database with dynabro's, through its catalog.

The check covers the kind of each table and view of dynabro, and these additions: triggers, rules, row security policies, tables
that inherit from it, computed columns, foreign checks, and indexes that are unique, partial or on an expression. The text of
views and defaults is not compared.
"""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Connection, UniqueConstraint, text

from dynabro_cli.store.schema import NEW_ONE, Stranger, refusal
from dynabro_cli.store.tables import metadata
from dynabro_cli.store.translation import shown
from dynabro_cli.store.views import VIEWS

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
"""


def server_strangers(connection: Connection) -> list[Stranger]:
    """Return the objects on dynabro's PostgreSQL tables and views that dynabro does not make; [] for other servers."""
    if connection.dialect.name != "postgresql":
        return []
    named = (CheckConstraint, UniqueConstraint)
    checks = [str(one.name) for table in metadata.tables.values() for one in table.constraints if isinstance(one, named)]
    values = {"names": [*metadata.tables, "alembic_version", *VIEWS], "views": list(VIEWS), "checks": checks}
    return [Stranger(*row) for row in connection.execute(text(_FOUND), values)]


def refuse_server_strangers(connection: Connection, database: str, *, writing: bool) -> None:
    """Refuse a server's database with a foreign object; arguments and errors as in ``refuse_strangers``."""
    strange = [one for one in server_strangers(connection) if writing or not one.acts]
    if strange:
        raise refusal(database, strange, NEW_ONE.format(shown(database)))
