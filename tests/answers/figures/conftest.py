"""Databases for figures, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynabro_cli.answers.figures._api import REGISTRY
from tests.answers.figures.grids import SMALL, fill, planned
from tests.cli.conftest import dynabro, folder, real_database, results

__all__ = ["dynabro", "folder", "real_database", "results"]

REGISTRY.entries()
LARGE = {"digits-worst-case"}
"""Sweeps of thousands of runs: their figures are drawn of some of them, and of the database that is
shipped.
"""
SWEEPS = (
    "mnist-sf-cwtm",
    "digits-alie-gm",
    "digits-periodic",
    "digits-bernoulli",
    "momentum-fails-gap",
)


@pytest.fixture(scope="session")
def grids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up results of some sweeps that have a figure: two seeds, small."""
    path = tmp_path_factory.mktemp("grids") / "grids.db"
    rows = {row["run_key"]: row for sweep in SWEEPS for row in planned(sweep, "seeds=0..1", *SMALL)}
    fill(path, list(rows.values()))
    return path
