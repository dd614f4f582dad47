"""The identity of a run: canonical JSON of everything that determines its numbers, hashed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from dynabro_cli.experiment.spec import fields

KEY_VERSION = 1
"""Version of the key: it grows when the same spec gives other numbers, so that old results do not
count as new ones.
"""
KEY_DIGITS = 10
"""Digits of a key that are printed."""
ADDED_LATER: dict[str, Any] = {
    name: {"name": info.before} if info.component else info.before
    for name, info in fields().items()
    if info.before is not None
}
"""Fields that came after the first keys, with the value in the run's mapping that every earlier run
has.

A field with this value is not part of the key, so that runs stored without the field keep their
keys and are found.
"""


def canonical_json(mapping: Mapping[str, Any]) -> str:
    """Write ``mapping`` so that equal content gives equal text: sorted keys, no spaces, no NaN."""
    return json.dumps(mapping, sort_keys=True, separators=(",", ":"), allow_nan=False)


def keyed(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's mapping without fields of ``ADDED_LATER`` at their earlier value."""
    return {
        name: value
        for name, value in mapping.items()
        if name not in ADDED_LATER or value != ADDED_LATER[name]
    }


def run_key(mapping: Mapping[str, Any]) -> str:
    """Return the SHA-256 (hexadecimal) of the fields of a run's mapping that are ``keyed``."""
    text = canonical_json({"key_version": KEY_VERSION} | keyed(mapping))
    return hashlib.sha256(text.encode()).hexdigest()
