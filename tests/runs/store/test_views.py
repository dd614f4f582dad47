"""The quantiles of Student's t that the views compute without a function for them."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest
from scipy.stats import norm, t

from dynabro_cli.runs.store.views import NORMAL, STUDENT, student_sql


def test_the_table_is_scipys() -> None:
    assert pytest.approx(t.ppf(0.975, range(1, len(STUDENT) + 1)), rel=1e-9) == list(STUDENT)
    assert pytest.approx(norm.ppf(0.975), rel=1e-15) == NORMAL


def test_quantiles_in_sql_are_scipys() -> None:
    freedoms = [*range(1, 200), 1000, 100_000]
    values = ", ".join(f"({freedom})" for freedom in freedoms)
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        found = connection.execute(
            f"SELECT {student_sql('column1')} FROM (VALUES {values})"
        ).fetchall()
        assert [row[0] for row in found] == pytest.approx(t.ppf(0.975, freedoms), rel=1e-6)
        assert connection.execute(
            f"SELECT {student_sql('column1')} FROM (VALUES (0), (-1))"
        ).fetchall() == [(None,), (None,)]
