"""Start of a run: measurements and records, devices, and folders."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import pytest
import torch

from dynabro_cli import RunSpec, simulate
from dynabro_cli.components.methods._api import NOISE_COMPUTATIONS
from dynabro_cli.core import events
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.machine import cache_folder
from dynabro_cli.core.machine.devices import pick_device
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.simulation.problem.interface import NOISE_ROUND
from dynabro_cli.simulation.setup import data_directory
from tests.simulation.reference import masks, noise, quadratic, run

M, F = 5, 2


def largest_deviation(identities: np.ndarray, batch_size: int = 1) -> float:
    """V by hand: over ten mini-batches, the largest distance of an honest gradient from the honest
    mean at x_1.
    """
    deviations = []
    for computation in range(10):
        # the gradient itself cancels
        honest = noise(M, NOISE_ROUND, computation, batch_size)[~identities]
        deviations += list(np.linalg.norm(honest - honest.mean(0), axis=1))
    return max(deviations)


@pytest.mark.thorough
@pytest.mark.parametrize("switching", ["periodic:K=3", "static"])
@pytest.mark.parametrize("option", ["option1", "option2"])
def test_the_noise_bound_is_measured_counted_and_recorded(option: str, switching: str) -> None:
    fields = {"switching": switching, "workers": M, "byzantine": F, "batch_size": 3, "budget": 100}
    outcome = quadratic(method=f"dynabro:filter={option},noise_bound=auto", **fields)
    measured = outcome.started.record["noise_bound"]
    assert measured == pytest.approx(largest_deviation(masks(switching, M, F, 1)[0], 3), rel=1e-9)
    assert NOISE_COMPUTATIONS == 10
    start = outcome.evaluations[0]
    assert (start.round, start.budget, start.samples) == (0, 10, 10 * 3 * M)
    assert outcome.rounds[0].budget == 10 + outcome.rounds[0].cost
    assert outcome.last.totals.budget_spent == 10 + sum(item.cost for item in outcome.rounds)
    assert sum(item.cost for item in outcome.rounds[:-1]) < 90

    # from there on it is the run with that bound given, on the same mini-batches
    given = quadratic(method=f"dynabro:filter={option},noise_bound={measured!r}", **fields)
    shared = min(len(outcome.rounds), len(given.rounds))
    assert outcome.norms[:shared] == given.norms[:shared]
    assert given.evaluations[0].budget == 0


def test_a_budget_that_measuring_uses_up() -> None:
    outcome = quadratic(method="dynabro:filter=option1", budget=10)
    assert outcome.rounds == []
    assert outcome.last == events.Finished(
        None, None, outcome.gaps[0], events.Totals(0, 10, 0, 0, 0.0)
    )


def test_methods_without_filter_measure_nothing() -> None:
    for method in ("sgd", "dynabro", "dynabro:noise_bound=auto", "dynabro:noise_bound=3"):
        outcome = quadratic(method=method, budget=5)
        assert outcome.started.record["noise_bound"] is None
        assert outcome.evaluations[0].budget == 0


def test_the_bound_is_measured_on_the_images_gradients() -> None:
    outcome = run(
        task="digits", model="logistic", method="dynabro:jmax=1,filter=option2", budget=14
    )
    measured = outcome.started.record["noise_bound"]
    assert 0 < measured < math.inf
    assert outcome.evaluations[0].budget == 10


def test_started_tells_the_key_and_the_columns_of_the_run() -> None:
    spec = RunSpec(task="digits", model="mlp:hidden=7", method="momentum", budget=3, seed=9)
    started = next(simulate(spec, device="cpu"))
    resolved = resolve(spec)
    assert isinstance(started, events.Started)
    assert started.run_key == resolved.key
    assert started.record["dimension"] == 64 * 7 + 7 + 7 * 10 + 10
    assert started.record["device"] == "cpu"
    assert json.loads(started.record["spec"]) == json.loads(json.dumps(resolved.mapping))
    assert {name: started.record[name] for name in vars(spec)} == vars(resolved.spec)
    versions = json.loads(started.record["versions"])
    assert versions["torch"] == torch.__version__
    assert versions["gradients"] == "shared pass"


def test_the_initial_model_depends_on_the_seed_alone() -> None:
    def start(seed: int, method: str) -> float | None:
        return (
            run(task="digits", model="logistic", method=method, budget=1, seed=seed)
            .evaluations[0]
            .test_loss
        )

    assert start(0, "sgd") == start(0, "momentum")
    assert start(0, "sgd") != start(1, "sgd")


def test_problems_come_before_the_first_event() -> None:
    with pytest.raises(SpecError, match="unknown method 'sdg'"):
        simulate(RunSpec(method="sdg"))
    with pytest.raises(SpecError, match="device=gpu is not here; legal on this machine: auto, cpu"):
        simulate(RunSpec(), device="gpu")


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert pick_device("auto") == pick_device("cpu") == torch.device("cpu")
    with pytest.raises(
        SpecError,
        match=r"device=cuda is not here; legal on this machine: auto, cpu. Try: --device auto",
    ):
        pick_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("auto") == pick_device("cuda") == torch.device("cuda:0")
    assert pick_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(
        SpecError,
        match="device=cuda:2 is not here; legal on this machine: auto, cpu, cuda, cuda:0, cuda:1",
    ):
        pick_device("cuda:2")


@pytest.mark.parametrize(
    ("device", "fields"),
    [
        ("auto", {}),
        ("cuda", {}),
        ("cuda:0", {}),
        ("auto", {"task": "digits", "model": "mlp", "attack": "none", "budget": 1}),
    ],
)
def test_a_run_for_the_cpu_is_stored_as_such_beside_a_gpu(
    device: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    spec = RunSpec(
        **{"task": "quadratic", "method": "sgd", "attack": "shift:lambda=1", "budget": 20} | fields
    )
    first, *_, last = simulate(spec, device=device)
    assert isinstance(first, events.Started)
    assert first.record["device"] == "cpu"
    assert isinstance(last, events.Finished)


def test_the_folder_of_data_sets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DYNABRO_DATA", raising=False)
    assert data_directory(None) == platformdirs.user_cache_path("dynabro") / "data"
    monkeypatch.setenv("DYNABRO_DATA", str(tmp_path / "environment"))
    assert data_directory(None) == tmp_path / "environment"
    assert data_directory(tmp_path / "given") == tmp_path / "given"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_directory("~/data") == tmp_path / "data"
    assert (
        data_directory("~nobody-has-this-name/data")
        == Path("~nobody-has-this-name/data").absolute()
    )


@pytest.mark.parametrize("home", ["none", "closed", "relative"])
def test_a_cache_without_a_home(home: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in a container: HOME is unset and the user has no name, or HOME is / and belongs to
    root.
    """
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(cache_folder.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    assert cache_folder.cache_folder() == tmp_path / ".cache" / "dynabro"
    if home == "closed":
        monkeypatch.setattr(cache_folder.os, "access", lambda *_: False)
    else:
        monkeypatch.setattr(cache_folder.platformdirs, "user_cache_path", lambda _: answer())

        def answer() -> Path:
            if home == "none":
                raise RuntimeError("could not determine the home directory")
            return Path("~/.cache/dynabro")  # older versions

    assert cache_folder.cache_folder() == tmp_path / "tmp" / f"dynabro-{os.geteuid()}"
    assert list(tmp_path.iterdir()) == []


def test_threads_are_set_for_the_process() -> None:
    before = torch.get_num_threads()
    try:
        next(simulate(RunSpec(task="quadratic", budget=1), device="cpu", threads=before + 1))
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)
