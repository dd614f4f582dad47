"""The identity of a run: canonical JSON of everything that determines its numbers, hashed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

KEY_VERSION = 1
"""Raised when the same spec comes to mean other numbers, so that old results are not taken for new ones."""


def canonical_json(mapping: Mapping[str, Any]) -> str:
    """Write ``mapping`` so that equal content is equal text: sorted keys, no spaces, no NaN."""
    return json.dumps(mapping, sort_keys=True, separators=(",", ":"), allow_nan=False)


def run_key(mapping: Mapping[str, Any]) -> str:
    """The SHA-256, in hexadecimal, of the run's mapping with all defaults materialised."""
    return hashlib.sha256(canonical_json({"key_version": KEY_VERSION} | dict(mapping)).encode()).hexdigest()
