"""Stored results as data frames, and the progress of a simulation."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from dynabro_cli import RunSpec, load, make_pre_aggregator, simulate
from dynabro_cli.core.errors import NotFoundError, SpecError
from dynabro_cli.core.events import Event
from tests.real_runs import SPECS, fill


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("frames") / "results.db"
    fill(path)
    return path


@pytest.mark.thorough
def test_runs_have_dates_and_parameters(database: Path) -> None:
    runs, evaluations = load(database)
    assert len(runs) == len(SPECS)
    assert str(runs["started_at"].dtype).startswith("datetime64[")
    assert str(runs["started_at"].dt.tz) == "UTC"
    assert (runs["finished_at"] >= runs["started_at"]).all()
    betas = runs.set_index("id")["method.beta"]
    assert betas[3] == 0.5
    assert pd.isna(betas[1])
    assert set(runs["switching.K"].dropna()) == {4, 10}
    assert set(evaluations["run_id"]) == set(runs["id"])


@pytest.mark.thorough
def test_a_condition(database: Path) -> None:
    runs, evaluations = load(str(database), "method = 'sgd'")
    assert set(runs["method"]) == {"sgd"}
    assert set(evaluations["run_id"]) == {1, 2}
    runs, evaluations = load(database, "seed > 7")
    assert (len(runs), len(evaluations)) == (0, 0)
    with pytest.raises(ValueError, match="no such column"):
        load(database, "nosuch = 1")
    with pytest.raises(NotFoundError):
        load(database.with_name("missing.db"))


def test_progress_gets_every_event() -> None:
    told: list[Event] = []
    spec = RunSpec(
        task="quadratic", method="sgd", attack="shift:lambda=1", aggregator="cwmed", budget=20
    )
    assert list(simulate(spec, progress=told.append)) == told
    assert told


def test_a_problem_of_a_spec_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="unknown attack") as caught:
        simulate(RunSpec(attack="zzz"))
    assert isinstance(caught.value, SpecError)


def test_a_chain_of_pre_aggregators_draws_in_every_call() -> None:
    import torch

    stage = make_pre_aggregator("bucketing:s=2+nnm:f=1", workers=6, byzantine=1, seed=3)
    messages = torch.arange(12.0).view(6, 2)
    first, second = stage(messages), stage(messages)
    assert first.shape == (stage.workers, 2) == (3, 2)
    assert not torch.equal(first, second)
    assert torch.equal(
        make_pre_aggregator("bucketing:s=2+nnm:f=1", workers=6, byzantine=1, seed=3)(messages),
        first,
    )
