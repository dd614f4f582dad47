"""Datasette on a database, read-only, on this machine only, with the meaning of every table and
column.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import signal
import socket
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn
from urllib.parse import urlsplit

from dynabro_cli.core.errors import InterruptedRunError, SpecError, TimeLimitError
from dynabro_cli.experiment.spec import fields
from dynabro_cli.runs.executors.interruptions import end_after
from dynabro_cli.runs.store.open.connections import distrust
from dynabro_cli.runs.store.open.engine import open_read_only
from dynabro_cli.runs.store.open.files import read_only_uri, sqlite_path
from dynabro_cli.runs.store.open.translation import shown
from dynabro_cli.runs.store.read.queries import EXAMPLES, thinned_note
from dynabro_cli.runs.store.tables import metadata

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
NAME = "results"
"""Name of the database on the pages."""
FIRST, FIRST_SQL = (
    "scores",
    """
SELECT task, method, aggregator, pre_aggregators, attack, switching, ROUND(mean, 4) AS mean, ROUND(std, 4) AS std, n, diverged
FROM final_accuracy ORDER BY task, mean DESC
""",  # noqa: E501
)
"""The page that is opened first: the scores of all cells. A page of a query has no list of column
meanings above its rows.
"""
STYLE = "data:text/css,dl.column-descriptions{max-height:7em;overflow:auto}"
"""Meanings of columns scroll: a table of 60 columns would begin below the screen."""
SETTINGS = {
    "allow_download": False,
    "facet_time_limit_ms": 1000,
    "max_csv_mb": 0,
    "num_sql_threads": 3,
    "sql_time_limit_ms": 5000,
}
FACETS = {
    "runs": ["status", "sweep", "task", "method", "aggregator", "attack", "switching"],
    "final_accuracy": ["task", "method", "aggregator", "attack", "switching"],
    "sweeps": ["name", "status"],
    "recovery": ["reason"],
}
VIEWS = {
    "byzantine_histogram": "number of rounds by number of Byzantine workers, over all rounds "
    "of every run, thinned or not",
    "byzantine_workers": "one row per Byzantine worker and change of the Byzantine set; it joins "
    "`identities`, whose workers count from 1, with tables whose workers count from 0",
    "final_accuracy": "one row per cell, that is, for all runs that differ in their seed only",
}
OF_VIEWS = {
    "byzantine_histogram": {
        "run_id": "the run",
        "byzantine": "a number of Byzantine workers",
        "rounds": "rounds with this number",
    },
    "byzantine_workers": {
        "run_id": "the run",
        "tick": "clock tick from which the worker is Byzantine, until the run's next tick in "
        "`identities`",
        "worker": "number of the worker, from 0",
    },
    "final_accuracy": {
        "n": "number of runs, which differ in their seed only",
        "mean": "mean of their final accuracies; 1/classes for a diverged run, NULL if SQL does "
        "not know the classes",
        "std": "standard deviation of their final accuracies (ddof 1)",
        "mean_gap": "mean of f(x) - f* at the end; NULL with a diverged run",
        "diverged": "number of runs that diverged",
        "ci_low": "lower end of Student's 95% interval of the mean",
        "ci_high": "upper end of Student's 95% interval of the mean",
        "rule": "the aggregator with its pre-aggregators, such as `nnm+cwtm`",
    },
}
"""Meanings of the columns of views, except the fields of a run."""

MOST_BYTES = 4 << 20
MOST_SECONDS = 10.0
STUCK = TimeLimitError(
    f"a statement did not stop after {MOST_SECONDS:g} s, and the pages are closed; the database is "
    "as it was. Try: dynabro query SQL --timeout 60"
)
"""Largest value that a statement may make."""

App = Callable[[dict[str, Any], Any, Any], Awaitable[None]]


def checked(database: str) -> Path:
    """Return the file of a database that can be browsed.

    Raises:
        SpecError: Datasette is not installed, or the database is on a server.
        NotFoundError: There is no such file.
        DatabaseError: The file is not a dynabro database of this version, or foreign objects
            replace its tables.
    """
    for name in ("datasette", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            raise SpecError(
                f"browsing needs {name}, which is not installed. Try: pip install 'dynabro[web]'"
            )
    path = sqlite_path(database)
    if path is None:
        name = shown(database)
        raise SpecError(
            f"db={name}: a server's database. Try: dynabro db merge '{name}' --db FILE, and "
            "browse this copy"
        )
    open_read_only(database).dispose()
    return path.resolve()


def site(path: Path) -> App:
    """Return the pages of a database as an ASGI application.

    Every connection is read-only, sees what runs in progress commit, and cannot call functions that
    act outside of SQL. Requests for other host names are refused: a page of the internet could
    otherwise read the database through another name that leads to this machine.
    """
    from datasette.app import Datasette
    from datasette.database import Database

    # with rich, Datasette prints a traceback with all texts of the request for each mistake in a
    # statement
    vars(importlib.import_module("datasette.handle_exception"))["rich"] = None

    class ReadOnly(Database):  # type: ignore[misc]
        def connect(self, write: bool = False) -> sqlite3.Connection:
            if write:
                raise sqlite3.OperationalError("the database is read-only here")
            connection = sqlite3.connect(
                read_only_uri(path), uri=True, check_same_thread=False, factory=_Watched
            )
            distrust(connection)
            connection.execute("PRAGMA query_only = ON")
            # a statement is stopped between values, not within one; see _Watched, too
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES)
            return connection

    thinned = thinned_note(open_read_only(str(path)), "FROM rounds")
    pages = Datasette([], metadata=described(path.name, thinned), settings=SETTINGS)
    pages.add_database(ReadOnly(pages, path=str(path)), name=NAME)
    pages.remove_database("_memory")
    return _of_this_machine(pages.app())


class _Watched(sqlite3.Connection):
    """A connection that ends the process if a statement goes on long after Datasette's time limit:
    one call of a function cannot be stopped, and three of them would stop all pages.
    """

    _end: threading.Timer | None = None

    def set_progress_handler(self, handler: Callable[[], Any] | None, n: int) -> None:
        """Start the time of a statement, as Datasette does, or end it without a handler."""
        if self._end is not None:
            self._end.cancel()
        self._end = None if handler is None else end_after(MOST_SECONDS, STUCK)
        super().set_progress_handler(handler, n)


def described(title: str, thinned: str | None = None) -> dict[str, Any]:
    """Return the metadata of Datasette: meanings of tables and columns, facets, and the queries of
    the documents; ``thinned`` is shown with the table of rounds and above statements.
    """
    shared = {
        name: _plain(metadata.tables["runs"].c[name].comment) for name in fields() if name != "seed"
    }
    tables: dict[str, Any] = {
        name: {
            "description": text,
            "columns": {**(shared if name == "final_accuracy" else {}), **OF_VIEWS[name]},
        }
        for name, text in VIEWS.items()
    }
    for name, table in metadata.tables.items():
        tables[name] = {
            "description": _plain(table.comment),
            "columns": {column.name: _plain(column.comment) for column in table.columns},
        }
    if thinned:
        tables["rounds"]["description"] += f". {thinned}"
    for name in ("runs", "sweeps"):
        tables[name]["sort_desc"] = "id"
    for name, facets in FACETS.items():
        tables[name]["facets"] = facets
    tables["alembic_version"] = {"hidden": True}
    queries = {
        FIRST: {
            "title": "Scores of all cells: runs that differ in their seed only",
            "sql": FIRST_SQL.strip(),
        }
    }
    queries |= {
        _slug(title): {"title": title, "sql": sql.strip()} for title, sql in EXAMPLES.items()
    }
    return {
        "title": f"dynabro: {title}",
        "extra_css_urls": [STYLE],
        "databases": {NAME: {"tables": tables, "queries": queries, "description": thinned}},
    }


def listen(port: int) -> socket.socket:
    """Return a socket of this machine only, at a port; 0 for any that is free.

    Raises:
        SpecError: The port is taken.
    """
    bound = socket.socket()
    # a port stays taken for some time after its process has ended
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((HOST, port))
        bound.listen(128)  # a request before the pages are ready waits
    except OSError as error:
        bound.close()
        raise SpecError(
            f"port={port}: it cannot be used ({error.strerror}). Try: --port 0"
        ) from error
    return bound


def serve(app: App, bound: socket.socket) -> None:
    """Answer requests until a signal ends the process; statements in progress may take seconds
    more, unless it comes again.
    """
    import uvicorn

    class Server(uvicorn.Server):  # type: ignore[misc]
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if self.should_exit:
                _end_at_once()
            super().handle_exit(sig, frame)

    config = uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=1)
    try:
        Server(config).run(sockets=[bound])
    finally:
        signal.signal(signal.SIGINT, _end_at_once)


def _end_at_once(*_: object) -> NoReturn:
    """End the process: it has nothing to lose, because it only reads."""
    os._exit(InterruptedRunError.exit_code)


def _of_this_machine(app: App) -> App:
    """Return an application that answers only requests to this machine's own name, and none that
    another page makes.
    """

    async def guarded(scope: dict[str, Any], receive: Any, send: Any) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope.get("headers", ())}
        status = None
        if headers.get(b"host", "").rpartition(":")[0] not in NAMES:
            status, answer = 421, f"only http://{HOST} is answered\n"
        elif headers.get(b"sec-fetch-site") == "cross-site" or _foreign(headers.get(b"origin")):
            status, answer = 403, "requests of other pages are not answered; type the address\n"
        if scope["type"] == "http" and status is not None:
            await send(
                {
                    "type": "http.response.start",
                    "status": status,
                    "headers": [(b"content-type", b"text/plain")],
                }
            )
            await send({"type": "http.response.body", "body": answer.encode()})
            return
        await app(scope, receive, send)

    return guarded


def _foreign(origin: str | None) -> bool:
    """Return True if a request was made by a page of another host."""
    try:
        return origin is not None and urlsplit(origin).hostname not in NAMES
    except ValueError:  # it is not an address
        return True


def _slug(title: str) -> str:
    """Return a title as a part of an address."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _plain(comment: str | None) -> str:
    """Return a comment without the marks of code."""
    return (comment or "").replace("`", "")
