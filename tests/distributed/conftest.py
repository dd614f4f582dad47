"""Processes for several tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.distributed.worlds import World, world_of


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    """Four ranks."""
    with world_of(4) as made:
        yield made


@pytest.fixture(scope="module")
def world_of_eight() -> Iterator[World]:
    with world_of(8) as made:
        yield made
