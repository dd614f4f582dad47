"""A difference is a fault, or it is written by ``python -m tests.promises`` and named in
CHANGELOG.
"""

from __future__ import annotations

import pytest

from tests.promises.__main__ import FOLDER, PROMISES, written

SLOW = ("sweeps", "example")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.thorough] * (name in SLOW)) for name in PROMISES]
)
def test_promises_are_kept(name: str) -> None:
    assert written(name) == (FOLDER / f"{name}.txt").read_text()
