"""Databases of a PostgreSQL server, each for one test: ``.ci/postgres pytest tests`` runs the tests
beside a server.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from dynabro_cli.runs.store.open.servers import TURN

VARIABLE = "DYNABRO_TEST_POSTGRES"


def connect(url: str, **options: Any) -> Any:
    """A connection of the driver's own, past everything that is under test."""
    import psycopg

    return psycopg.connect(
        make_url(url).set(drivername="postgresql").render_as_string(hide_password=False), **options
    )


def on_server(sql: str, server: str | None = None) -> None:
    """Run a statement that concerns all databases of the server."""
    with closing(connect(server or os.environ[VARIABLE], autocommit=True)) as connection:
        connection.execute(sql)


def cut_connections(url: str, server: str | None = None) -> None:
    """End every other connection to a database."""
    others = f"datname = '{make_url(url).database}' AND pid <> pg_backend_pid()"
    on_server(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}", server)


def allow_connections(url: str, allowed: bool) -> None:
    """Let the server accept connections to a database, or end all connections and accept no
    more.
    """
    on_server(f"ALTER DATABASE {make_url(url).database} ALLOW_CONNECTIONS {allowed}")
    if not allowed:
        cut_connections(url)


@contextmanager
def turn_taken(url: str, waiting: int) -> Iterator[None]:
    """Hold the turn of writers while entered, and until so many others wait for it."""
    with closing(connect(url)) as holder, closing(connect(url, autocommit=True)) as watcher:
        holder.execute(f"SELECT pg_advisory_xact_lock({TURN})")
        yield
        sql = (
            "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND "
            "wait_event = 'advisory'"
        )
        end = time.monotonic() + 50  # when they give up
        while watcher.execute(sql).fetchone() != (waiting,) and time.monotonic() < end:
            time.sleep(0.01)


@contextmanager
def empty_database(like: str | None = None, on: str | None = None) -> Iterator[str]:
    """Make a database, give its URL, and remove it; skip the test where there is no server.

    With ``like``, the URL of a database to which nobody is connected, it is not empty but a copy of
    that one. ``on`` is the URL of a server; by default, the one that all tests share.
    """
    server = on or os.environ.get(VARIABLE)
    if not server:
        pytest.skip(
            f"{VARIABLE} names no server, such as postgresql+psycopg://user:password@host/postgres"
        )
    name = f"dynabro_test_{secrets.token_hex(8)}"
    on_server(
        f"CREATE DATABASE {name}" + (f" TEMPLATE {make_url(like).database}" if like else ""), on
    )
    try:
        yield make_url(server).set(database=name).render_as_string(hide_password=False)
    finally:
        on_server(f"DROP DATABASE {name} WITH (FORCE)", on)


class OwnServer:
    """A server that a test may restart: ``.ci/postgres`` starts the one that all tests share.

    Args:
        folder: An empty folder for its files.
    """

    def __init__(self, folder: Path) -> None:
        found = shutil.which("initdb") or str(max(Path("/usr/lib/postgresql").glob("*/bin/initdb")))
        self._programs, self._data, user = (
            Path(found).resolve().parent,
            folder / "data",
            getpass.getuser(),
        )
        self._as: list[str] = []
        if os.getuid() == 0:  # which the server refuses to run as
            user = "postgres"
            self._as = ["runuser", "-u", user, "--"]
            shutil.chown(folder, user)
        self.url = f"postgresql+psycopg://{user}@/postgres?host={folder}"
        self._do(
            "initdb",
            "--username",
            user,
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--no-sync",
        )
        self._options = (
            f"-c listen_addresses='' -c unix_socket_directories={folder} -c "
            "fsync=off -c full_page_writes=off"
        )
        self._start()

    def restart(self, mode: str, pause: float = 0.0) -> None:
        """Stop the server, ``fast`` or ``immediate``, as after a crash; start it again after some
        seconds.
        """
        self._do("pg_ctl", "stop", "--wait", "--mode", mode)
        time.sleep(pause)
        self._start()

    def close(self) -> None:
        """Stop the server for good."""
        self._do("pg_ctl", "stop", "--mode", "immediate")

    def _start(self) -> None:
        log = str(self._data.parent / "log")
        self._do("pg_ctl", "start", "--wait", "--options", self._options, "--log", log)

    def _do(self, program: str, *words: str) -> None:
        command = [*self._as, str(self._programs / program), *words, "--pgdata", str(self._data)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/")


@contextmanager
def own_server() -> Iterator[OwnServer]:
    """A server of the test's own; skip the test where tests of PostgreSQL are not asked for."""
    if not os.environ.get(VARIABLE):
        pytest.skip(
            f"{VARIABLE} names no server, such as postgresql+psycopg://user:password@host/postgres"
        )
    # short: a socket's path has 107 bytes at most
    folder = Path(tempfile.mkdtemp(prefix="dynabro-server.", dir="/tmp"))
    try:
        with closing(OwnServer(folder)) as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)
