"""Fixtures of the tests of reports: runs of the command-line tests, and a stranger's runs."""

from __future__ import annotations

import copy
import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dynabro_cli.answers.analysis.results import Results, read_runs
from dynabro_cli.answers.figures.report.gather import content
from dynabro_cli.experiment.schedule import identities
from dynabro_cli.runs.store.open.engine import open_read_only
from tests.cli.conftest import dynabro, folder, real_database, results
from tests.runs.store.made import change

__all__ = ["dynabro", "folder", "real_database", "results"]

Gathered = Callable[..., dict[str, Any]]
EVIL = (
    "</script><script>document.title='owned'</script><!--<img src=x "
    "onerror=alert(1)>&amp;{{7*7}}'\""
)
"""Text that would be HTML, a script, a template, or the end of a script, if anything took it for
that.
"""


@pytest.fixture(scope="session")
def gathered(real_database: Path) -> Gathered:
    """Gather the content of a report of a database; for the real runs, once for all tests."""

    def gather(database: Path | None = None, where: str | None = None) -> dict[str, Any]:
        if database is None:
            return copy.deepcopy(known(where))
        engine = open_read_only(str(database))
        runs = read_runs(engine, where)
        return content(
            Results(runs, runs, "", engine, identities, lambda run: (0, False, False)), where
        )

    @functools.cache
    def known(where: str | None) -> dict[str, Any]:
        return gather(real_database, where)

    return gather


@pytest.fixture
def hostile(real_database: Path, tmp_path: Path) -> Path:
    """The real runs with a hostile text wherever a text of a run may be any."""
    path = tmp_path / "hostile.db"
    shutil.copy(real_database, path)
    change(path, "UPDATE runs SET sweep = ?", EVIL)
    return path
