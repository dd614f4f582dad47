"""A GPU that is not there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.fake_gpu import FakeGPU, one_gpu


@pytest.fixture
def gpu() -> Iterator[FakeGPU]:
    """Have torch find one GPU, whose tensors have no values."""
    with one_gpu() as found:
        yield found
