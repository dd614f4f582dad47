"""Read the database: queries of the commands and figures, and any SQL of the user."""

from __future__ import annotations

import difflib
import re
import shlex
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DataError, DBAPIError

from dynabro_cli.core.errors import (
    DatabaseError,
    DisconnectedError,
    NotFoundError,
    SpecError,
    TimeLimitError,
    did_you_mean,
    first_line,
)
from dynabro_cli.experiment.comparison import CodeComparison, compare
from dynabro_cli.experiment.spec import SHORT
from dynabro_cli.runs.store.environments import VERSIONS
from dynabro_cli.runs.store.open.connections import TimeLimit, within
from dynabro_cli.runs.store.open.translation import shown, translate, translated_errors
from dynabro_cli.runs.store.open.value_types import NUMBERS, unsound_rows
from dynabro_cli.runs.store.tables import metadata
from dynabro_cli.runs.store.views import ADDED, RULE, VIEW_COLUMNS, VIEWS

if TYPE_CHECKING:
    import pandas as pd

FETCH_ROWS = 1000
MOST_NAMED = 10
"""Sweeps that an error names."""
OF_SWEEP = re.compile(r"\bsweep\s*(?:=|IN\s*\()\s*((?:'[^']*'[\s,]*)+)", re.IGNORECASE)
"""A condition on the column ``sweep``, with the names."""
SWEEPS = "SELECT sweep FROM runs WHERE sweep IS NOT NULL UNION SELECT name FROM sweeps"
"""Names of sweeps, as SQL."""

EXPORTS = {
    "curves": f"""
        SELECT run_id, task, model, method, aggregator, pre_aggregators, attack, switching, seed, status, round,
               evaluations.budget, samples, test_accuracy, test_loss, train_loss, gap, precision, participation, data,
               validation_accuracy, validation_loss, {RULE}
        FROM evaluations JOIN runs ON runs.id = run_id {{where}} ORDER BY runs.id, round
    """,  # noqa: E501
    "final": "SELECT * FROM {cells} {where}",
    "rounds": f"""
        SELECT run_id, task, method, aggregator, attack, switching, seed, round, rounds.budget, level, cost, rounds.byzantine,
               switched, dynamic, accepted, rounds.learning_rate, gradient_norm, aggregation_error, precision,
               participation, acceptance, data, {RULE}
        FROM rounds JOIN runs ON runs.id = run_id {{where}} ORDER BY runs.id, round
    """,  # noqa: E501
}

RUN_COLUMNS = (
    "id, status, task, model, method, aggregator, attack, switching, seed, budget_spent, "
    "rounds, final_accuracy, final_gap, "
    f"wall_seconds, substr(run_key, 1, 10) AS run_key, precision, data, {RULE}"
)


@dataclass(frozen=True)
class QueryResult:
    """Result of a query: column names, and rows as they arrive; ``database`` is the name of the
    database in messages.
    """

    columns: list[str]
    rows: Iterator[tuple[Any, ...]]
    database: str

    def sharing(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows; equal texts are one object, which saves memory if all rows are kept."""
        texts: dict[str, str] = {}
        for row in self.rows:
            yield tuple(
                texts.setdefault(value, value) if type(value) is str else value for value in row
            )

    def frame(self) -> pd.DataFrame:
        """Return all rows as a data frame.

        Raises:
            DatabaseError: There is a text in a column of numbers.
        """
        import pandas as pd

        # Arrow's storage would copy each text into each frame made of this one
        with pd.option_context("mode.string_storage", "python"):
            table = pd.DataFrame(list(self.sharing()), columns=self.columns)
        for name in NUMBERS.intersection(table.columns):
            if any(isinstance(value, str | bytes) for value in table[name].unique()):
                wrong = f"{self.database}: {name} has a value that is not a number"
                raise DatabaseError(
                    f"{wrong}. Try: dynabro db check --db {self.database}"
                ) from ValueError(name)
        return table


def query(engine: Engine, sql: str, *, timeout: float | None = None) -> QueryResult:
    """Run one SQL statement that reads; a read-only engine refuses any other.

    On PostgreSQL the statement runs as a cursor, that is, one SELECT, VALUES or TABLE, in a
    read-only transaction that is never committed. Functions of the server have the rights of the
    user's role. Values have the form of SQLite's: numbers are int or float, truth is 1 or 0, and
    times are text.

    Args:
        engine: A read-only engine.
        sql: The statement.
        timeout: Time limit in seconds until the last row is read; None for no limit.

    Raises:
        SpecError: The statement is not valid, or would write.
        TimeLimitError: The time is over.
        DatabaseError: The database is damaged.
        DisconnectedError: The server has closed the connection.
    """
    stream = _stream(engine, sql, timeout)
    columns = next(stream)
    return QueryResult(list(columns), stream, shown(engine.url))


def _stream(engine: Engine, sql: str, timeout: float | None) -> Iterator[tuple[Any, ...]]:
    """Yield the column names, then the rows."""
    limit = TimeLimit(timeout)
    try:
        with engine.connect() as connection, within(limit, connection.connection.dbapi_connection):
            for row in _rows(connection, sql):
                if limit.over:
                    raise too_late(timeout)
                yield row
    except UnicodeEncodeError as error:
        raise SpecError("the statement is not UTF-8 text. Try: a SELECT in UTF-8") from error
    except DBAPIError as error:
        if limit.over:
            raise too_late(timeout) from error
        reason = first_line(error.orig)
        # a server declares a cursor for the statement
        no_select = re.match(r'syntax error at or near "(\w+)"', reason)
        writes = any(
            word in reason
            for word in (
                "authoriz",
                "readonly",
                "read-only",
                "prohibited",
                "data-modifying",
                "cannot modify",
            )
        )
        if writes or (no_select and sql.split()[0] == no_select[1]):
            raise SpecError(f"only reading is allowed here ({reason}). Try: a SELECT") from error
        translated = translate(error, shown(engine.url))
        damage = any(
            word in reason
            for word in ("image is malformed", "not a database", "locked", "disk", "unable to open")
        )
        # the driver, not the server, refuses a value such as an infinite time
        unread = isinstance(error, DataError) and getattr(error.orig, "sqlstate", None) is None
        if (
            isinstance(translated, DisconnectedError)
            or unread
            or (damage and engine.dialect.name == "sqlite")
        ):
            raise translated from error
        raise SpecError(f"SQL: {reason}. Try: {_advice(reason, sql)}") from error


def _rows(connection: Connection, sql: str) -> Iterator[tuple[Any, ...]]:
    """Yield the column names, then the rows, of a statement."""
    connection = connection.execution_options(yield_per=FETCH_ROWS)
    if connection.dialect.name == "sqlite":
        result = connection.exec_driver_sql(sql)
    else:  # colons and percent signs of the user do not start a parameter of the driver
        result = connection.execute(text(sql.replace(":", "\\:")))
    if not result.returns_rows:
        raise SpecError("the statement returns no rows. Try: a SELECT")
    yield tuple(result.keys())
    if connection.dialect.name == "sqlite":
        yield from (tuple(row) for row in result)
    else:
        yield from (tuple(map(_as_sqlite, row)) for row in result)


def too_late(timeout: float | None) -> TimeLimitError:
    """Return the error of a statement that has taken longer than its time limit."""
    return TimeLimitError(
        f"timeout={timeout:g}: the statement was stopped after {timeout:g} s. Try: a longer "
        "--timeout, or narrow the statement"
    )


def list_runs(engine: Engine, where: str | None = None) -> QueryResult:
    """Return the runs, newest last, that satisfy the SQL condition ``where``."""
    return query(engine, f"SELECT {RUN_COLUMNS} FROM runs {_condition(where)} ORDER BY id")


def newest_runs(engine: Engine, where: str | None, columns: str, limit: int | None) -> QueryResult:
    """Return columns of the newest runs that satisfy ``where``, newest first; only the rows that
    are returned are read.
    """
    most = "" if limit is None else f" LIMIT {int(limit)}"
    return query(
        engine, f"SELECT {columns} FROM runs {_condition(where)} ORDER BY runs.id DESC{most}"
    )


def count_runs(engine: Engine, where: str | None = None) -> int:
    """Return the number of runs that satisfy ``where``."""
    return int(next(query(engine, f"SELECT COUNT(*) FROM runs {_condition(where)}").rows)[0])


def compare_code(engine: Engine, where: str | None = None) -> CodeComparison:
    """Compare the code and data of the runs that ``list_runs`` lists with the current ones."""
    rows = query(
        engine, f"SELECT code_digests, COUNT(*) FROM runs {_condition(where)} GROUP BY code_digests"
    ).rows
    return compare((row[0], row[1]) for row in rows)


def export(
    engine: Engine, what: str, where: str | None = None, sweeps: Sequence[str] | None = None
) -> QueryResult:
    """Return the rows of ``curves`` (evaluations), ``final`` (cells) or ``rounds``, with their
    runs' components.

    Raises:
        DatabaseError: A run has a value of another type than its column's, which a mean in SQL
            would count as 0.
    """
    cells, condition = "", sweeps_condition(engine, where, sweeps)
    # the view's own statement: on the runs of the sweeps, and with the columns that an older view
    # lacks
    if what == "final":
        with translated_errors(engine.url), engine.connect() as connection:
            for key, problem in unsound_rows(connection, metadata.tables["runs"]).items():
                raise DatabaseError(
                    f"run {key[0]}: {problem}. Try: dynabro db check, which lists all problems"
                )
        chosen, condition = sweeps_condition(engine, None, sweeps) or "TRUE", where
        view = VIEWS["final_accuracy"].partition(" AS\n")[2]
        cells = (
            "("
            + view.replace("FROM runs WHERE", f"FROM runs WHERE ({chosen}) AND")
            + ") AS final_accuracy"
        )
    return query(engine, EXPORTS[what].format(cells=cells, where=_condition(condition)))


def find_run(engine: Engine, name: str) -> dict[str, Any]:
    """Return the row of the run whose id is ``name``, or whose key begins with it.

    Raises:
        NotFoundError: No run, or more than one.
    """
    is_id = name.isascii() and name.isdigit() and len(name) < 19
    by_id, by_key = (
        text(f"SELECT *, {VERSIONS} FROM runs WHERE {condition}")
        for condition in ("id = :id", "substr(run_key, 1, :length) = :name")
    )
    with translated_errors(engine.url), engine.connect() as connection:
        rows = connection.execute(by_id, {"id": int(name)}).mappings().all() if is_id else []
        rows = (
            rows or connection.execute(by_key, {"name": name, "length": len(name)}).mappings().all()
        )
    if len(rows) != 1:
        many = f"{len(rows)} runs have a key that begins with" if rows else "there is no run"
        where = f" {shlex.quote(name)}" if name in stored_sweeps(engine) else ""
        raise NotFoundError(f"{many} {name!r}. Try: dynabro runs{where}, which lists ids and keys")
    return {name: _as_sqlite(value) for name, value in rows[0].items()}


def histogram(engine: Engine, run_id: int) -> list[tuple[int, int]]:
    """Return (Byzantine workers, rounds) of a run."""
    of_run = f"FROM byzantine_histogram WHERE run_id = {int(run_id)} ORDER BY byzantine"
    return [(row[0], row[1]) for row in query(engine, f"SELECT byzantine, rounds {of_run}").rows]


def recovery(engine: Engine, run_id: int) -> dict[str, Any] | None:
    """Return a run's row of ``recovery``, without its id; None if it has none."""
    found = query(engine, f"SELECT * FROM recovery WHERE run_id = {int(run_id)}")
    row = next(found.rows, None)
    return None if row is None else dict(zip(found.columns[1:], row[1:], strict=True))


def worker_labels(engine: Engine, run_id: int) -> list[tuple[int, int, int]]:
    """Return (worker, label, count) of a run's training samples; empty if every worker has the
    whole training set, or the run is thinned.
    """
    of_run = f"FROM worker_labels WHERE run_id = {int(run_id)} ORDER BY worker, label"
    rows = query(engine, f"SELECT worker, label, count {of_run}").rows
    return [(row[0], row[1], row[2]) for row in rows]


def stored_sweeps(engine: Engine) -> list[str]:
    """Return the names of all stored sweeps, and of sweeps that stored runs name."""
    return [row[0] for row in query(engine, f"{SWEEPS} ORDER BY 1").rows]


def settings_of(engine: Engine, sweep: str) -> tuple[int, list[str]]:
    """Return the number of runs that a sweep has made, and the ``--set`` of its last command."""
    count = query(engine, f"SELECT COUNT(*) FROM runs WHERE sweep = {quoted(sweep)}").rows
    texts = query(
        engine, f"SELECT yaml FROM sweeps WHERE name = {quoted(sweep)} ORDER BY id DESC LIMIT 1"
    ).rows
    text = next((text for (text,) in texts if text), "")
    return next(iter(count))[0], re.findall(r"(?m)^# --set (.*)$", text)


def sweeps_condition(engine: Engine, where: str | None, sweeps: Sequence[str] | None) -> str | None:
    """Return an SQL condition: ``where``, and that the run was made or used by one of some sweeps;
    None for all runs.

    Raises:
        NotFoundError: No run of a sweep is stored.
    """
    if where is not None:
        warn_of_missed(engine, where)
    if not sweeps:
        return where
    listed = (
        "SELECT run_key FROM sweep_runs JOIN sweeps ON sweeps.id = sweep_id WHERE "
        f"{among('name', sweeps)}"
    )
    condition = f"({among('sweep', sweeps)} OR run_key IN ({listed}))" + (
        f" AND ({where})" if where else ""
    )
    stored = stored_sweeps(engine)
    for name in sweeps:
        if name not in stored:
            raise NotFoundError(
                f"no run of the sweep {name} is stored{did_you_mean(name, stored)}. Try: "
                f"{listed_sweeps(stored)}"
            )
    return condition


def warn_of_missed(engine: Engine, sql: str) -> None:
    """Warn if a condition such as ``sweep = 'NAME'`` leaves out runs that the sweep has and another
    one has made.
    """
    lists = OF_SWEEP.findall(sql) if "sweep_runs" not in sql else []
    for name in dict.fromkeys(re.findall("'([^']*)'", " ".join(lists))):
        others = f"sweep IS NULL OR sweep <> {quoted(name)}"
        missed = (
            f"SELECT COUNT(*) FROM runs WHERE ({others}) AND run_key IN (SELECT run_key FROM "
            f"sweep_runs JOIN sweeps ON sweeps.id = sweep_id WHERE name = {quoted(name)})"
        )
        count = next(query(engine, missed).rows)[0]
        if count:
            warnings.warn(
                f"sweep = '{name}' holds for the runs that this sweep made, and not for {count} of "
                f"its runs that others made. Try: --sweep {name}, or run_key IN (SELECT run_key "
                f"FROM sweep_runs JOIN sweeps ON sweeps.id = sweep_id WHERE name = '{name}')",
                stacklevel=2,
            )


def listed_sweeps(names: Sequence[str]) -> str:
    """Return some names of sweeps for an error, or the command that makes one."""
    more = ", ..." if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more if names else "dynabro sweep NAME"


def among(column: str, values: Sequence[str]) -> str:
    """Return an SQL condition: the column has one of some texts."""
    return f"{column} IN ({', '.join(quoted(value) for value in values)})"


def thinned_note(engine: Engine, sql: str) -> str | None:
    """Return a note if a statement reads ``rounds`` or ``worker_labels`` and some runs are thinned;
    None if it names ``rounds_every`` itself.
    """
    table = r'\b(?:from|join)\s+(?:\w+\.)?"?(?:rounds|worker_labels)\b'
    reads = re.search(table, sql, re.IGNORECASE)
    if not reads or "rounds_every" in sql.lower():
        return None
    thinned = count_runs(engine, "rounds_every > 1")
    return (
        f"{thinned} of {count_runs(engine)} runs are thinned: the table rounds has a part of their "
        "rounds, and worker_labels nothing. Try: JOIN runs ON runs.id = run_id WHERE "
        "rounds_every = 1"
        if thinned
        else None
    )


def quoted(text: str) -> str:
    """Return a text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def _advice(reason: str, sql: str) -> str:
    """Return what to type after an error of SQL: a similar column, quotes around a text, or the
    columns of the tables.
    """
    match = re.search(r"no such column: \"?([\w.]+)|column \"?([\w.]+)\"? does not exist", reason)
    if match is None and ADDED[1] in reason:
        return f"dynabro run, or another command that writes: it adds the view {ADDED[1]}"
    if match is None:
        return f"SELECT ... FROM one of {', '.join((*metadata.tables, *VIEWS))}"
    name = str(match[1] or match[2])
    columns_of = {table.name: list(table.c.keys()) for table in metadata.tables.values()}
    columns_of |= {view: list(VIEW_COLUMNS[view]) for view in VIEW_COLUMNS}
    named = [table for table in columns_of if re.search(rf"\b{table}\b", sql)]
    columns = list(dict.fromkeys(column for table in named for column in columns_of[table]))
    if name in ADDED and any(name in columns_of[view] for view in VIEWS if view in named):
        return f"dynabro run, or another command that writes: it adds the column {name}"
    text = re.search(rf"(?:=|<>|LIKE)\s*({re.escape(name)}[\w:.=-]*)", sql, flags=re.IGNORECASE)
    if name in SHORT or not text:
        close = [SHORT[name]] if name in SHORT else difflib.get_close_matches(name, columns, n=1)
        return (
            "".join(f"{close_name}, or " for close_name in close)
            + f"a column: {', '.join(columns)}"
        )
    return f"quotes around a text, '{text[1]}', or a column: {', '.join(columns)}"


def _condition(where: str | None) -> str:
    return f"WHERE ({where})" if where else ""


def _as_sqlite(value: Any) -> Any:
    """Return a value of any database in SQLite's form: decimals are numbers, truth is 1 or 0, times
    are text.
    """
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, Decimal):
        return int(value) if value.as_tuple().exponent == 0 and abs(value) < 2**63 else float(value)
    return (
        value.isoformat(sep=" ", timespec="microseconds") if isinstance(value, datetime) else value
    )


EXAMPLES = {
    "The paper's Figure 1: final accuracy by method and switching rate": """
SELECT model, method, learning_rate, attack, attack_entry, switching, clock, eval_every,
mean, std, n FROM final_accuracy
WHERE (task, rule, workers, byzantine, budget, batch_size) = ('mnist', 'cwtm', 17, 8, 5000, 32)
AND (lr_rule, lr_drop, weight_decay, precision, participation, data, validation)
= ('fixed', '0.8:0.1', 0.0001, 'fp32', 1, 'iid', 0) AND attack LIKE 'sf%' ORDER BY method, switching
""",
    "Accuracy curves over the total number of samples": """
SELECT run_id, method, seed, samples, test_accuracy FROM evaluations JOIN runs ON runs.id = run_id
WHERE test_accuracy IS NOT NULL ORDER BY run_id, samples
""",
    "Histogram of the Byzantine fraction over rounds": """
SELECT run_id, 1.0 * h.byzantine / workers AS fraction, h.rounds
FROM byzantine_histogram AS h JOIN runs ON runs.id = run_id ORDER BY run_id, fraction
""",
    "Distance of the aggregate from the honest mean right after a switch, and otherwise": """
SELECT task, method, switched, AVG(aggregation_error) AS error, COUNT(*) AS n
FROM rounds JOIN runs ON runs.id = run_id WHERE rounds_every = 1 GROUP BY task, method, switched
""",
    "Cost and number of the rounds of each MLMC level": """
SELECT level, COUNT(*) AS n, SUM(cost) AS computations, AVG(gradient_norm) AS norm
FROM rounds JOIN runs ON runs.id = run_id WHERE rounds_every = 1 AND level IS NOT NULL
GROUP BY level
""",
    "Training samples of each Byzantine worker at each change of the set, in SQLite": """
SELECT i.run_id, i.tick, b.value AS worker, SUM(l.count) AS samples
FROM identities AS i, json_each(i.byzantine) AS b
JOIN worker_labels AS l ON l.run_id = i.run_id AND l.worker = b.value - 1
JOIN runs ON runs.id = i.run_id
WHERE rounds_every = 1
GROUP BY i.run_id, i.tick, b.value
""",
}
"""SQL by title."""
