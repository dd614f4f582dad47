"""ByzFL, beside which rules and attacks are tested if it is installed."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

import pytest

needs_byzfl = pytest.mark.skipif(
    importlib.util.find_spec("byzfl") is None, reason="ByzFL is not installed"
)


@functools.cache
def byzfl() -> Any:
    """Return ByzFL; its import takes two seconds, so the collection of tests does without."""
    return importlib.import_module("byzfl")


@functools.cache
def attacks() -> Any:
    """Return ByzFL's attacks."""
    return importlib.import_module("byzfl.attacks.attacks")
