"""Databases of a PostgreSQL server, each for one test: ``.ci/postgres pytest tests`` runs the tests beside a server."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from dynabro_cli.store.open.servers import TURN

VARIABLE = "DYNABRO_TEST_POSTGRES"


def connect(url: str, **options: Any) -> Any:
    """A connection of the driver's own, past everything that is under test."""
    import psycopg

    return psycopg.connect(make_url(url).set(drivername="postgresql").render_as_string(hide_password=False), **options)


def on_server(sql: str) -> None:
    """Have the server do what concerns all its databases."""
    with closing(connect(os.environ[VARIABLE], autocommit=True)) as connection:
        connection.execute(sql)


def cut_connections(url: str) -> None:
    """End every connection to a database."""
    on_server(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{make_url(url).database}'")


def allow_connections(url: str, allowed: bool) -> None:
    """Have the server take connections to a database, or end all that there are and take no more."""
    on_server(f"ALTER DATABASE {make_url(url).database} ALLOW_CONNECTIONS {allowed}")
    if not allowed:
        cut_connections(url)


@contextmanager
def turn_taken(url: str, waiting: int) -> Iterator[None]:
    """Hold the turn of writers while entered, and until so many others wait for it."""
    with closing(connect(url)) as holder, closing(connect(url, autocommit=True)) as watcher:
        holder.execute(f"SELECT pg_advisory_xact_lock({TURN})")
        yield
        sql = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'"
        end = time.monotonic() + 50  # when they give up
        while watcher.execute(sql).fetchone() != (waiting,) and time.monotonic() < end:
            time.sleep(0.01)


@contextmanager
def empty_database(like: str | None = None) -> Iterator[str]:
    """Make a database, give its URL, and remove it; skip the test where there is no server.

    With ``like``, the URL of a database to which nobody is connected, it is not empty but a copy of that one.
    """
    server = os.environ.get(VARIABLE)
    if not server:
        pytest.skip(f"{VARIABLE} names no server, such as postgresql+psycopg://user:password@host/postgres")
    name = f"dynabro_test_{secrets.token_hex(8)}"
    on_server(f"CREATE DATABASE {name}" + (f" TEMPLATE {make_url(like).database}" if like else ""))
    try:
        yield make_url(server).set(database=name).render_as_string(hide_password=False)
    finally:
        on_server(f"DROP DATABASE {name} WITH (FORCE)")
