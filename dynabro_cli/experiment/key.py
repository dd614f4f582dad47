"""The identity of a run: canonical JSON of everything that determines its numbers, hashed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from dynabro_cli.experiment.spec import fields

KEY_VERSION = 1
"""Raised when the same spec gives other numbers, so that old results are not mistaken for new ones."""

ADDED_LATER: dict[str, Any] = {
    name: {"name": one.before} if one.component else one.before for name, one in fields().items() if one.before is not None
}
"""Fields that came after the first keys, with the value that every run had before them, as the run's mapping has it.

A field at this value is not part of the key, so that runs that were stored without it keep their keys and are found.
"""


def canonical_json(mapping: Mapping[str, Any]) -> str:
    """Write ``mapping`` so that equal content gives equal text: sorted keys, no spaces, no NaN."""
    return json.dumps(mapping, sort_keys=True, separators=(",", ":"), allow_nan=False)


def run_key(mapping: Mapping[str, Any]) -> str:
    """Return the SHA-256, in hexadecimal, of the run's mapping with all defaults, except fields of ``ADDED_LATER`` at their
    default.
    """
    known = {name: value for name, value in mapping.items() if name not in ADDED_LATER or value != ADDED_LATER[name]}
    return hashlib.sha256(canonical_json({"key_version": KEY_VERSION} | known).encode()).hexdigest()
