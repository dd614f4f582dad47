"""A database to write to, of each kind."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import Engine

from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.write import recorder as recorder_module
from tests.runs.store.made import Clock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file, alone in its folder, that is not there yet."""
    folder = tmp_path / "results"
    folder.mkdir()
    return folder / "results.db"


@pytest.fixture
def backend() -> str:
    """The kind of database: a file. Files of tests with other needs have their own fixture, and a
    test asks by ``both``.
    """
    return "sqlite"


@pytest.fixture
def database(backend: str, request: pytest.FixtureRequest) -> str:
    """A value of ``--db``: ``path``, or the URL of a database. It has tables only if the test uses
    ``engine``.
    """
    server = "postgres_with_tables" if "engine" in request.fixturenames else "postgres"
    return str(request.getfixturevalue("path" if backend == "sqlite" else server))


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    """``database``, made and opened for writing."""
    engine = open_for_writing(database)
    yield engine
    engine.dispose()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which recorders commit once a second; it stands still on any machine, however
    slow.
    """
    clock = Clock()
    monkeypatch.setattr(recorder_module, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


@pytest.fixture
def _small_files() -> Iterator[None]:
    """No file may grow beyond 20 kB, which is as if the disk were full there."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, ignored)
