"""A place for commands, and what a clean sweep stores."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.oracle import Content, Place, content, sweep


@pytest.fixture(scope="session", autouse=True)
def _signals_are_as_in_a_terminal() -> Iterator[None]:
    """Tests in the background may have Ctrl-C ignored, which commands would inherit."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Content:
    """The rows that the sweep stores if nothing goes wrong."""
    place = Place(tmp_path_factory.mktemp("clean"))
    # checkpoints cost most of the time, and change no row
    ended = place.do(*sweep(place, "--checkpoint-every", "60"))
    assert ended.code == 0, ended
    stored = content(place.db)
    assert {found["run"]["status"] for found in stored.values()} == {"finished"}
    return stored


@pytest.fixture
def new_place(tmp_path: Path) -> Iterator[Callable[[str], Place]]:
    """Make places; processes that still run in them are killed at the end."""
    places: list[Place] = []

    def make(name: str) -> Place:
        folder = tmp_path / name
        folder.mkdir()
        places.append(Place(folder))
        return places[-1]

    yield make
    for place in places:
        place.close()


@pytest.fixture
def place(new_place: Callable[[str], Place]) -> Place:
    """An empty place."""
    return new_place("place")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder as thorough."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.thorough)
