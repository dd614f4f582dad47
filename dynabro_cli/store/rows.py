"""Convert events to rows and columns of their tables."""

from __future__ import annotations

import json
import math
from typing import Any

from dynabro_cli import events


def counts(totals: events.Totals) -> dict[str, Any]:
    """Return the counting columns of ``runs``."""
    return {name: finite(value) for name, value in vars(totals).items()}


def row_of(run_id: int | None, item: events.Round | events.Evaluated | events.Identity) -> dict[str, Any]:
    return {"run_id": run_id} | {name: _stored(value) for name, value in vars(item).items()}


def _stored(value: Any) -> Any:
    """Return a value as its column stores it: several numbers, of a model or of workers, as compact JSON."""
    return json.dumps([*map(finite, value)], separators=(",", ":")) if isinstance(value, tuple) else finite(value)


def cut_text(error: str) -> str:
    """Return the end of a message, without the one character that PostgreSQL's text type does not have."""
    return error[-4000:].replace("\0", "\ufffd")


def finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
