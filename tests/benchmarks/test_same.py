"""The runs of ``python -m benchmarks same``: they cover what the shipped database holds."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from benchmarks.same import RUNS, SMALL

EXAMPLE = Path(__file__).parents[2] / "results.db.example"


def test_every_stored_rule_has_a_run() -> None:
    """A rule is its name, the names of its parameters, and its pre-aggregators."""
    connection = sqlite3.connect(f"file:{EXAMPLE}?mode=ro&immutable=1", uri=True)
    stored = connection.execute("SELECT DISTINCT pre_aggregators, aggregator FROM runs").fetchall()
    connection.close()
    rules = {rule if pre == "none" else f"{pre}+{rule}" for pre, rule in stored}
    compared = {chain.partition("=")[0] for _, _, _, chain, _, _ in (*RUNS, *SMALL)}
    assert {rule.partition("=")[0] for rule in rules} <= compared
