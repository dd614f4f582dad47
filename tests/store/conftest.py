"""A database to write to."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine

from dynabro_cli.store.engine import open_for_writing


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file, alone in its folder, that is not there yet."""
    folder = tmp_path / "results"
    folder.mkdir()
    return folder / "results.db"


@pytest.fixture
def engine(path: Path) -> Engine:
    """``path``, made into a database and opened for writing."""
    return open_for_writing(str(path))
