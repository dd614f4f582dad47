"""``dynabro sweep --executor ray``: what the command line hands on; tests/executors/test_ray.py makes the runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dynabro_cli.executors import ray_cluster
from dynabro_cli.executors._api import Listener, Options, Outcome
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.grid.sweep_lookup import shipped
from tests.cli.conftest import Dynabro

ROOT = Path(__file__).parents[2]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Options, str | None]]:
    """What the executor is asked for; it does nothing, and tells that every run is finished."""
    calls = []

    def execute_all_on_ray(
        runs: Sequence[Run], engine: Any, options: Options, listener: Listener, *, files: Any, address: str | None = None
    ) -> list[Outcome]:
        calls.append((options, address))
        return [Outcome(run, "finished", None) for run in runs]

    monkeypatch.setattr(ray_cluster, "execute_all_on_ray", execute_all_on_ray)
    return calls


def test_the_address_and_the_options_are_handed_on(dynabro: Dynabro, asked: list[tuple[Options, str | None]]) -> None:
    assert dynabro("sweep", "smoke", "--executor", "ray", "--jobs-per-gpu", "3", "--quiet").code == 0
    assert dynabro("sweep", "smoke", "--executor", "ray", "--address", "ray://head:10001", "--quiet").code == 0
    assert [(options.jobs, options.jobs_per_gpu, address) for options, address in asked] == [
        (None, 3, None),
        (None, 1, "ray://head:10001"),
    ]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--address", "auto"), "address=auto is not valid here: it requires --executor ray"),
        (("--executor", "dask"), "executor=dask is not legal. Try: --executor local or ray"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: tuple[str, ...], problem: str, dynabro: Dynabro, folder: Path) -> None:
    outcome = dynabro("sweep", "smoke", "--dry-run", *arguments)
    assert (outcome.code, outcome.problems) == (2, [problem])
    assert list(folder.iterdir()) == []


def test_the_recipes_are_no_sweep() -> None:
    assert (ROOT / "sweeps" / "README.md").exists()
    assert "README" not in shipped()
