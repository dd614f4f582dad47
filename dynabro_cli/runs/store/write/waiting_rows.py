"""Rows of a run that wait for the next commit, and how events are stored as rows."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, delete, insert

from dynabro_cli.core import events
from dynabro_cli.core.machine.failpoints import failpoint
from dynabro_cli.runs.store.tables import evaluations, identities, metrics, rounds


@dataclass
class WaitingRows:
    """Events of a run since the last commit, whose rows are inserted together."""

    rounds: list[events.Round] = field(default_factory=list)
    evaluations: list[events.Evaluated] = field(default_factory=list)
    identities: list[events.Identity] = field(default_factory=list)

    def remove(self, connection: Connection, run_id: int) -> None:
        """Delete the rows, if an earlier attempt has stored them."""
        first, evaluation = (
            items[0].round if items else None for items in (self.rounds, self.evaluations)
        )
        tick = self.identities[0].tick if self.identities else None
        cut(connection, run_id, first, evaluation, tick)

    def insert(self, connection: Connection, run_id: int) -> None:
        """Insert the rows."""
        new_evaluations = [_row_of(run_id, item) for item in self.evaluations]
        new_metrics = [
            {"run_id": run_id, "round": row["round"], "name": name, "value": finite(value)}
            for row in new_evaluations
            for name, value in row.pop("metrics")
        ]
        for table, rows in (
            (rounds, [_row_of(run_id, item) for item in self.rounds]),
            (identities, [_row_of(run_id, item) for item in self.identities]),
            (evaluations, new_evaluations),
            (metrics, new_metrics),
        ):
            if table is evaluations:
                failpoint("mid-batch")
            if rows:
                connection.execute(insert(table), rows)


def cut(
    connection: Connection,
    run_id: int,
    round_: int | None,
    evaluation: int | None,
    tick: int | None,
) -> None:
    """Delete a run's rows from a round, an evaluation with its metrics, and a tick on; None: keep
    all of them.
    """
    columns = (
        (rounds.c.round, round_),
        (evaluations.c.round, evaluation),
        (metrics.c.round, evaluation),
        (identities.c.tick, tick),
    )
    for column, first in columns:
        if first is not None:
            connection.execute(
                delete(column.table).where(column.table.c.run_id == run_id, column >= first)
            )


def counts(totals: events.Totals) -> dict[str, Any]:
    """Return the counting columns of ``runs``."""
    return {name: finite(value) for name, value in vars(totals).items()}


def _row_of(
    run_id: int | None, item: events.Round | events.Evaluated | events.Identity
) -> dict[str, Any]:
    values = {
        name: value if name == "metrics" else _stored(value) for name, value in vars(item).items()
    }
    return {"run_id": run_id} | values


def _stored(value: Any) -> Any:
    """Return a value as its column stores it: several numbers, of a model or of workers, as compact
    JSON.
    """
    return (
        json.dumps([*map(finite, value)], separators=(",", ":"))
        if isinstance(value, tuple)
        else finite(value)
    )


def finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
