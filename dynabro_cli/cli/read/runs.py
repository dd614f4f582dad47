"""``dynabro runs``, ``query``, ``export`` and ``tag``: the stored runs together."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynabro_cli.cli.completion import complete, run_ids, stored_sweeps
from dynabro_cli.cli.options import Csv, Database, Force, Json, Plugins, SweepNames, Sweeps, Where
from dynabro_cli.core.errors import NotFoundError, SpecError, did_you_mean, many
from dynabro_cli.experiment.comparison import compare
from dynabro_cli.experiment.spec import fields, full_name
from dynabro_cli.runs.executors.interruptions import end_after
from dynabro_cli.runs.screen.output import emit, save_csv, save_parquet, tell_of_code, warn, wrapped
from dynabro_cli.runs.screen.terminal import note, say

if TYPE_CHECKING:
    from sqlalchemy import Engine

MOST_SECONDS = 1_000_000
"""Largest time limit."""
STUCK_SECONDS = 1.0
"""Seconds from the end of a time limit until a statement that goes on ends its process."""
MOST_LISTED = 40
"""Runs that are listed without ``--limit``."""
ALL = "all"
LISTED = (
    "id status sweep task model method pre_aggregators aggregator attack switching "
    "data precision budget learning_rate seed rounds final_accuracy final_gap "
    "wall_seconds tags note"
).split()
"""Columns that are listed without ``--columns``."""
ALWAYS = ("id", "final_accuracy", "final_gap")
"""Columns that are not left out if all runs share a value."""
NOTE = 60
"""Letters of a note in the list."""
QUIET = ("pre_aggregators", "data", "precision")
"""Columns that are not worth a word at their default."""
COUNTS = ("rounds", "wall_seconds")
"""Columns that are not worth a word if all runs share a value."""
HEADS = {
    "final_accuracy": "accuracy",
    "final_gap": "gap",
    "wall_seconds": "seconds",
    "pre_aggregators": "pre",
}
"""Short names above columns."""


ColumnsOption = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="NAME,NAME",
        help="Columns of the table runs to list; all: each that --json has.",
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit",
        min=1,
        metavar="N",
        help=f"Most runs to list. [default: {MOST_LISTED}; --json and --csv: all]",
    ),
]


def runs(
    sweeps: SweepNames = None,
    where: Where = None,
    named: Sweeps = None,
    columns: ColumnsOption = None,
    limit: Limit = None,
    db: Database = "results.db",
    as_json: Json = False,
    as_csv: Csv = False,
    plugin: Plugins = None,
) -> None:
    """List the stored runs, newest first.

    Values that all listed runs share are in one line above. --json and --csv list every run with
    exact numbers, oldest first.

    Example: dynabro runs --where "attack='sf' AND status='finished'" --limit 100
    """
    from dynabro_cli.runs.store.open.engine import open_read_only
    from dynabro_cli.runs.store.read.queries import (
        RUN_COLUMNS,
        compare_code,
        list_runs,
        newest_runs,
        sweeps_condition,
    )

    chosen = None if columns in (None, ALL) else _columns(str(columns))
    engine = open_read_only(db)
    where = sweeps_condition(engine, where, [*(sweeps or ()), *(named or ())])
    if as_json or as_csv:
        shown = RUN_COLUMNS if chosen is None else _selected(chosen)
        table = (
            list_runs(engine, where)
            if chosen is None and limit is None
            else newest_runs(engine, where, shown, limit)
        )
        emit(table.columns, table.rows, as_json=as_json, as_csv=as_csv)
        tell_of_code(compare_code(engine, where))
        return
    most = limit or MOST_LISTED
    listed = RUN_COLUMNS if columns == ALL else _selected(chosen or LISTED)
    table = newest_runs(engine, where, f"{listed}, code_digests AS code, id AS run_id", most + 1)
    rows_read = list(table.rows)
    rows = [dict(zip(table.columns, row, strict=True)) for row in rows_read[:most]]
    names = table.columns[:-2]
    _print_runs(names, rows, choose=columns is None)
    if len(rows_read) > most:
        _tell_of_more(engine, where, most)
    tell_of_code(compare((row["code"], 1) for row in rows))


def _selected(names: Sequence[str]) -> str:
    """Return columns as SQL; the table has no column ``rule``."""
    from dynabro_cli.runs.store.views import RULE

    return ", ".join(RULE if name == "rule" else name for name in names)


def _columns(text: str) -> list[str]:
    """Return the columns that ``--columns`` names; raise SpecError for a name that is not a column
    of the table.
    """
    from dynabro_cli.runs.store.tables import metadata

    legal = [*metadata.tables["runs"].columns.keys(), "rule"]
    names = [full_name(name.strip()) for name in text.split(",")]
    for name in names:
        if name not in legal:
            raise SpecError(
                f"columns={name}: not a column of runs{did_you_mean(name, legal)}. Try: "
                f"{', '.join(LISTED)}, or all"
            )
    return names


def _print_runs(names: Sequence[str], rows: list[dict[str, Any]], *, choose: bool) -> None:
    """Print runs as a table; if ``choose``, without the columns that all rows share, which are
    printed above.
    """
    shared = [name for name in names if choose and len(rows) > 1 and _same(rows, name)]
    shared = [name for name in shared if name not in ALWAYS or rows[0][name] is None]
    usual = {name: fields()[name].default for name in QUIET}
    counts = [
        f"{name} {_short(name, rows[0][name])}"
        for name in shared
        if name not in COUNTS and rows[0][name] not in (None, usual.get(name))
    ]
    if counts:
        say(*wrapped(f"all: {', '.join(counts)}"))
    listed = [name for name in names if name not in shared]
    heads = [HEADS.get(name, name) if choose else name for name in listed]
    emit(heads, ([_short(name, row[name]) for name in listed] for row in rows))


def _same(rows: list[dict[str, Any]], name: str) -> bool:
    return len({row[name] for row in rows}) == 1


def _short(name: str, value: Any) -> str:
    """Write a value for people."""
    from dynabro_cli.runs.store.write.origin import read_tags

    if value is None:
        return "-"
    if name == "tags":
        return " ".join(read_tags(value))
    if name == "note":
        return textwrap.shorten(value, NOTE)
    if name == "wall_seconds":
        return f"{value:.1f}" if value < 1000 else f"{value:.0f}"
    if name in ("final_accuracy", "final_validation_accuracy"):
        return f"{value:.4f}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _tell_of_more(engine: Engine, where: str | None, most: int) -> None:
    from dynabro_cli.runs.store.read.queries import count_runs

    more = count_runs(engine, where) - most
    note(
        f"{more:,} more run{'s' if more > 1 else ''}, older; --limit {most + more} lists all, "
        "--where some"
    )


def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One statement that reads.")],
    db: Database = "results.db",
    as_json: Json = False,
    as_csv: Csv = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="Time limit in seconds, with exit code 124. [default: no limit]"
        ),
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Read the database with SQL; nothing can be written. For the runs that a sweep has made: WHERE
    sweep = 'NAME'; a line says if other sweeps have made some of its runs.

    Example: dynabro query "SELECT method, switching, mean, std, n FROM final_accuracy"
    """
    from dynabro_cli.runs.store.open.engine import open_read_only
    from dynabro_cli.runs.store.read import queries

    if timeout is not None and not 0 < timeout <= MOST_SECONDS:
        raise SpecError(
            f"timeout={timeout:g}: it must be more than 0, and at most {MOST_SECONDS}. Try: "
            "--timeout 10"
        )
    # SQLite is stopped between its operations, and one call of a function is one operation
    end = None
    if timeout is not None:
        end = end_after(timeout + STUCK_SECONDS, queries.too_late(timeout))
    try:
        engine = open_read_only(db)
        table = queries.query(engine, sql, timeout=timeout)
        emit(table.columns, table.rows, as_json=as_json, as_csv=as_csv)
    finally:
        if end is not None:
            end.cancel()
    queries.warn_of_missed(engine, sql)
    if line := queries.thinned_note(engine, sql):
        warn(line)


def export(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[curves|final|rounds]", help="Evaluations, cells, or rounds, as a table."
        ),
    ] = None,
    sweeps: SweepNames = None,
    csv: Annotated[
        Path | None,
        typer.Option("--csv", metavar="FILE", help="CSV file; - for standard output, the default."),
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", metavar="FILE", help="Parquet file.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="tensorboard|mlflow|wandb-offline",
            help="Write the runs for this tool, to --out.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for --to; new or empty.")] = Path(
        "exported"
    ),
    where: Where = None,
    named: Sweeps = None,
    db: Database = "results.db",
    force: Force = False,
    plugin: Plugins = None,
) -> None:
    """Write curves (evaluations), final (mean and std of each cell) or rounds to a file, or all
    runs for another tool.

    Example: dynabro export curves --csv curves.csv --where "task='mnist'"
    """
    from dynabro_cli.runs.store.care.outputs import CSV, PARQUET, Output
    from dynabro_cli.runs.store.open.engine import open_read_only
    from dynabro_cli.runs.store.read import queries

    if what is not None and {csv, parquet, to} == {None}:
        csv = Path("-")
    if sum(given is not None for given in (csv, parquet, to)) != 1 or (what is None) != (
        to is not None
    ):
        raise SpecError(
            "what is to be written? Try: dynabro export curves --csv FILE, --parquet FILE, or "
            "--to TOOL --out DIR"
        )
    sweeps = [*(sweeps or ()), *(named or ())]
    if to is not None:
        _export_to(to, db, out, where, sweeps)
        return
    if what is None or what not in queries.EXPORTS:
        hint = did_you_mean(what or "", queries.EXPORTS)
        raise SpecError(
            f"cannot export {what!r}{hint}; legal: {', '.join(queries.EXPORTS)}. For a row of each "
            "run: dynabro query --csv 'SELECT * FROM runs'"
        )
    engine = open_read_only(db)
    table = queries.export(engine, what, where, sweeps)
    if csv is not None:
        count = save_csv(Output(csv, CSV, db, force), table.columns, table.rows)
    else:
        count = save_parquet(Output(Path(str(parquet)), PARQUET, db, force), table)
    note(f"{count} rows of {what} written to {csv or parquet}")
    if what == "rounds" and (line := queries.thinned_note(engine, f"FROM rounds {where}")):
        warn(line)


def _export_to(
    to: str, db: str, out: Path, where: str | None, sweeps: Sequence[str] | None
) -> None:
    from dynabro_cli.answers.exports import TARGETS, export

    if to not in TARGETS:
        raise SpecError(
            f"to={to}: not a tool{did_you_mean(to, TARGETS)}. Try: {', '.join(TARGETS)}"
        )
    count = export(to, db, out, where, sweeps)
    note(f"{many(count, 'run')} written to {out}")


def tag(
    what: Annotated[
        str,
        typer.Argument(
            metavar="RUN|SWEEP|all",
            help="A run's id or key, a sweep's name, or all runs.",
            autocompletion=complete(run_ids, stored_sweeps),
        ),
    ],
    tags: Annotated[
        list[str] | None, typer.Argument(metavar="[TAG]...", help="Tags to add.")
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option("--remove", metavar="TAG", help="Remove this tag; repeat for several."),
    ] = None,
    words: Annotated[
        str | None,
        typer.Option(
            "--note", metavar="TEXT", help="Replace the note of the runs; an empty text removes it."
        ),
    ] = None,
    where: Where = None,
    db: Database = "results.db",
    plugin: Plugins = None,
) -> None:
    """Tag stored runs, or write a note on them: columns of 'dynabro runs', and of --where.

    Example: dynabro tag all good --note "rates from the appendix" --where "method = 'dynabro'"
    """
    from dynabro_cli.runs.store.open.engine import open_for_writing, open_read_only
    from dynabro_cli.runs.store.read.queries import find_run, query, stored_sweeps, sweeps_condition
    from dynabro_cli.runs.store.write.origin import check_words, set_words

    if not (tags or remove or words is not None):
        raise SpecError("nothing to change. Try: dynabro tag RUN TAG, --remove TAG, or --note TEXT")
    check_words(tags or (), words)
    engine = open_read_only(db)
    if what in stored_sweeps(engine) or what == "all":
        condition = sweeps_condition(engine, where, [] if what == "all" else [what])
    else:
        of_run = f"id = {int(find_run(engine, what)['id'])}"
        condition = of_run if where is None else f"{of_run} AND ({where})"
    ids = [row[0] for row in query(engine, f"SELECT id FROM runs WHERE {condition or 'TRUE'}").rows]
    if not ids:
        raise NotFoundError(f"where={where}: it holds for no run. Try: another condition")
    set_words(open_for_writing(db), ids, tags or (), remove or (), words)
    say(f"{many(len(ids), 'run')} changed")
