"""What is written of events: rows and columns, as their tables have them."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from dynabro_cli import events


def counts(totals: events.Totals) -> dict[str, Any]:
    """The columns of ``runs`` that count."""
    return {name: finite(value) for name, value in asdict(totals).items()}


def row_of(run_id: int | None, item: events.Round | events.Evaluated | events.Identity) -> dict[str, Any]:
    return {"run_id": run_id} | {name: _stored(value) for name, value in asdict(item).items()}


def _stored(value: Any) -> Any:
    """A value as its column has it: several numbers, a model's or those of workers, as compact JSON."""
    return json.dumps([*map(finite, value)], separators=(",", ":")) if isinstance(value, tuple) else finite(value)


def cut_text(error: str) -> str:
    """The end of a message, without the one character that PostgreSQL's text has not."""
    return error[-4000:].replace("\0", "\ufffd")


def finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
