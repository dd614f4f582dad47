"""``dynabro sweep --executor ray``: what the command line hands on. Runs are made in
tests/runs/executors/test_ray.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dynabro_cli.experiment.grid.sweep_lookup import shipped
from dynabro_cli.runs.executors import backends, sweep
from dynabro_cli.runs.executors._api import Options, Outcome
from dynabro_cli.runs.executors.backend import Places
from dynabro_cli.runs.executors.backends import ray
from tests.cli.conftest import Dynabro
from tests.runs.store.made import read

ROOT = Path(__file__).parents[2]
MINE = """
import contextlib
import dataclasses
from dynabro_cli.runs.executors.backend import Places
from dynabro_cli.runs.executors.backends.local.in_process import InProcess

@contextlib.contextmanager
def opened(options, most):
    yield lambda runs: Places(dataclasses.replace(options, jobs=1, device="cpu"), ["cpu"], 1, InProcess())
"""  # noqa: E501


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Options]:
    """Requests to the back end; nothing is computed, and every run is reported as finished."""
    calls = []

    @contextlib.contextmanager
    def opened(options: Options, most: int) -> Iterator[Any]:
        calls.append(options)
        yield lambda runs: Places(options, ["cpu"], most, None)  # type: ignore[arg-type]

    monkeypatch.setattr(ray, "opened", opened)
    monkeypatch.setattr(
        sweep, "make_all", lambda runs, *_, **__: [Outcome(run, "finished", None) for run in runs]
    )
    return calls


def test_the_address_and_the_options_are_handed_on(dynabro: Dynabro, asked: list[Options]) -> None:
    assert dynabro("sweep", "demo", "--executor", "ray", "--jobs-per-gpu", "3", "--quiet").code == 0
    assert (
        dynabro(
            "sweep", "demo", "--executor", "ray", "--address", "ray://head:10001", "--quiet"
        ).code
        == 0
    )
    assert [(options.jobs, options.jobs_per_gpu, options.address) for options in asked] == [
        (None, 3, None),
        (None, None, "ray://head:10001"),
    ]


@pytest.mark.thorough
def test_a_third_back_end_is_a_file(
    dynabro: Dynabro,
    folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A module in the folder of back ends, and no other change."""
    more = tmp_path_factory.mktemp("more")
    (more / "mine.py").write_text(MINE)
    monkeypatch.setattr(backends, "__path__", [*backends.__path__, str(more)])
    assert dynabro("sweep", "demo", "--set", "budget=2", "--executor", "mine", "--quiet").code == 0
    assert read(folder / "results.db", "SELECT status, COUNT(*) FROM runs GROUP BY status") == [
        ("finished", 6)
    ]
    assert read(folder / "results.db", "SELECT executor FROM sweeps") == [("mine",)]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--address", "auto"), "address=auto is not valid here: it requires --executor ray"),
        (("--executor", "dask"), "executor=dask is not legal. Try: --executor local or ray"),
    ],
)
def test_what_does_not_go_together_is_refused(
    arguments: tuple[str, ...], problem: str, dynabro: Dynabro, folder: Path
) -> None:
    outcome = dynabro("sweep", "demo", "--dry-run", *arguments)
    assert (outcome.code, outcome.problems) == (2, [problem])
    assert list(folder.iterdir()) == []


def test_the_recipes_are_no_sweep() -> None:
    assert (ROOT / "sweeps" / "README.md").exists()
    assert "README" not in shipped()
