"""What tests in several folders need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.postgres import empty_database


@pytest.fixture
def postgres(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty PostgreSQL database; what would be put beside a file is put out of the way."""
    monkeypatch.setenv("DYNABRO_STATE", str(tmp_path / "state"))
    with empty_database() as url:
        yield url


@pytest.fixture
def same_threads_after() -> Iterator[None]:
    """Set torch's number of threads as before when the test ends."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
