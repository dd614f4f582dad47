"""Where runs compute on a machine with GPUs, and how many of them at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.machine import devices
from dynabro_cli.core.machine.devices import Card
from dynabro_cli.experiment.resolve import Run, resolve
from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.runs.executors import placement
from dynabro_cli.runs.executors._api import ON_CPU, Options, Sharing
from dynabro_cli.runs.executors.placement import DeviceKind, Placement, placement_of
from dynabro_cli.simulation.placing import device_of, work_of

RUNS = {
    name: resolve(RunSpec(method="sgd", **fields))  # type: ignore[arg-type]
    for name, fields in {
        "quadratic": {"task": "quadratic", "attack": "shift:lambda=1"},
        "digits": {"task": "digits", "model": "mlp"},
        "tf32": {"task": "digits", "model": "mlp", "precision": "tf32"},
        "mnist": {"task": "mnist"},
        "cifar10": {"task": "cifar10"},
        "unknown": {"task": "npz:file=missing.npz", "model": "mlp"},
    }.items()
}
Machine = Callable[..., None]


def placed(
    names: str, options: dict[str, Any] | None = None, service: str | None = "mps"
) -> Placement:
    return placement_of(
        [RUNS[name] for name in names.split()], Options(**options or {}), lambda: service
    )


def test_the_work_of_a_computation_is_parameters_times_samples() -> None:
    assert work_of(RUNS["mnist"]) == 176_050 * 17 * 32
    assert work_of(RUNS["quadratic"]) is work_of(RUNS["unknown"]) is None


@pytest.mark.parametrize("asked", ["auto", "cuda", "cuda:0", "cpu"])
def test_a_gpu_is_for_work_that_is_worth_it_and_for_runs_that_name_it(
    asked: str, gpu_machine: Machine
) -> None:
    gpu_machine()
    on_gpu = {name for name, run in RUNS.items() if device_of(run, asked).type == "cuda"}
    large = {"mnist", "cifar10", "tf32", "unknown"}
    assert on_gpu == {"auto": large, "cpu": set()}.get(asked, large | {"digits"})
    gpu_machine(0)
    assert {str(device_of(run, "auto")) for run in RUNS.values()} == {"cpu"}
    with pytest.raises(SpecError, match="device=cuda is not here"):
        device_of(RUNS["quadratic"], "cuda")


@pytest.mark.parametrize(
    ("runs", "options", "service", "expected", "notes"),
    [
        ("mnist", {}, "mps", {"cuda:0": 12}, []),
        ("mnist", {}, None, {"cuda:0": 3}, []),
        ("cifar10", {}, "mps", {"cuda:0": 2}, []),
        ("mnist cifar10", {}, "mps", {"cuda:0": 12}, []),
        ("mnist", {"jobs_per_gpu": 4}, None, {"cuda:0": 4}, []),
        ("mnist", {"jobs": 5}, None, {"cuda:0": 5}, []),
        ("mnist", {"device": "cpu"}, "mps", {"cpu": 16}, []),
        ("digits", {}, "mps", {"cpu": 16}, ["device: cpu (small model)"]),
        ("digits", {"device": "cuda"}, "mps", {"cuda:0": 12}, []),
        ("quadratic", {}, "mps", {"cpu": 16}, ["device: cpu (no model)"]),
        (
            "quadratic",
            {"device": "cuda", "jobs_per_gpu": 4},
            "mps",
            {"cpu": 16},
            ["device: cpu (no model)"],
        ),
        (
            "quadratic mnist",
            {},
            "mps",
            {"cuda:0": 12, "cpu": 4},
            ["device: cpu for some runs (no model)"],
        ),
        (
            "digits cifar10",
            {},
            "mps",
            {"cuda:0": 2, "cpu": 14},
            ["device: cpu for some runs (small model)"],
        ),
        (
            "quadratic mnist",
            {"jobs": 3},
            "mps",
            {"cuda:0": 3},
            ["device: cpu for some runs (no model)"],
        ),
    ],
)
def test_places(
    runs: str,
    options: dict[str, Any],
    service: str | None,
    expected: dict[str, int],
    notes: list[str],
    gpu_machine: Machine,
) -> None:
    gpu_machine()
    found = placed(runs, options, service)
    assert (Counter(found.devices), list(found.notes)) == (expected, notes)


@pytest.mark.parametrize(
    ("gpus", "cores", "gigabytes", "expected"),
    [
        (1, 8, 140, 6),
        (1, 2, 140, 1),
        (1, 16, 8, 2),
        (1, 16, 1, 1),
        (2, 16, 140, 7),
        (2, 64, 140, 12),
    ],
)
def test_cores_and_memory_limit_the_runs_on_a_gpu(
    gpus: int, cores: int, gigabytes: float, expected: int, gpu_machine: Machine
) -> None:
    """A run of SGD on MNIST needs 1 GB for libraries, 0.6 GB for CUDA, and 1.9 GB."""
    gpu_machine(gpus, cores, gigabytes)
    assert Counter(placed("mnist").devices) == {f"cuda:{index}": expected for index in range(gpus)}


def test_a_service_is_asked_for_only_if_runs_share_a_gpu(gpu_machine: Machine) -> None:
    gpu_machine()
    asked: list[str] = []

    def service() -> str:
        asked.append("once")
        return "folder"

    def made(*names: str, **options: Any) -> str | None:
        return placement_of([RUNS[name] for name in names], Options(**options), service).mps

    assert [made("mnist", jobs=1), made("quadratic"), made("mnist", jobs_per_gpu=1)] == [None] * 3
    assert not asked
    assert [made("mnist"), made("mnist", jobs=2)] == ["folder"] * 2
    assert len(asked) == 2


def test_how_runs_share(gpu_machine: Machine) -> None:
    gpu_machine(2, cores=64)
    found = placed("mnist cifar10 quadratic")
    assert [found.sharing(RUNS[name]) for name in ("mnist", "cifar10", "quadratic")] == [
        Sharing(True, False, 12),
        Sharing(True, True, 2),
        ON_CPU,
    ]
    assert [found.of(RUNS[name]) for name in ("mnist", "cifar10", "quadratic")] == [
        DeviceKind("cuda", 24),
        DeviceKind("cuda", 4),
        DeviceKind("cpu", 40),
    ]
    assert placed("quadratic").of(RUNS["quadratic"]) == DeviceKind("cpu", 64)


def test_the_runs_of_a_sweep_are_looked_at_once(
    gpu_machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu_machine()
    looked: list[Run] = []
    monkeypatch.setattr(
        "dynabro_cli.simulation.placing.fills_gpu", lambda run: looked.append(run) is None
    )
    found = placement_of(
        [RUNS["mnist"].with_seed(seed) for seed in range(30)], Options(), lambda: None
    )
    assert found.sharing(RUNS["mnist"].with_seed(99)).gpu
    assert len(looked) == 1


def with_cards(monkeypatch: pytest.MonkeyPatch, *cards: Card) -> None:
    monkeypatch.setattr(devices, "cards", lambda: list(cards))
    monkeypatch.setattr(placement, "gpu_memory", devices.gpu_memory)


GB = 1_000_000_000


@pytest.mark.parametrize(
    ("cards", "service", "expected"),
    [
        ([Card(0, 75 * GB), Card(0, 75 * GB)], None, {"cuda:0": 3, "cuda:1": 3}),
        # a run needs 3.5 GB; another user has the rest of the second card
        ([Card(0, 75 * GB), Card(0, 8 * GB)], None, {"cuda:0": 3, "cuda:1": 2}),
        ([Card(0, 75 * GB), Card(0, 1 * GB)], "mps", {"cuda:0": 12, "cuda:1": 1}),
        ([Card(3, 75 * GB)], None, {"cuda:0": 1}),
        ([Card(3, 75 * GB)], "mps", {"cuda:0": 12}),
        ([Card(3, 75 * GB), Card(0, 75 * GB)], None, {"cuda:0": 1, "cuda:1": 3}),
        ([Card(3, None), Card(0, 75 * GB)], None, {"cuda:1": 3}),
        ([Card(2, 75 * GB), Card(3, 75 * GB)], None, {"cuda:1": 1}),
    ],
)
def test_each_card_has_places_by_its_mode_and_free_memory(
    cards: list[Card],
    service: str | None,
    expected: dict[str, int],
    gpu_machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu_machine(len(cards), cores=64)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a card")
    with_cards(monkeypatch, *cards)
    found = placed("mnist", {}, service)
    assert Counter(found.devices) == expected
    sharing = found.sharing(RUNS["mnist"])
    assert {name: sharing.most_on(name) for name in expected} == expected
    assert found.of(RUNS["mnist"]) == DeviceKind("cuda", sum(expected.values()))


@pytest.mark.parametrize("option", ["jobs", "jobs_per_gpu"])
def test_a_card_for_one_process_never_gets_more_at_a_time(
    option: str, gpu_machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu_machine()
    with_cards(monkeypatch, Card(3, 75 * GB))
    assert placed("mnist", {option: 4}, None).sharing(RUNS["mnist"]).most == 1
    assert placed("mnist", {option: 4}, "mps").sharing(RUNS["mnist"]).most == 4


def test_a_gpu_that_cannot_be_used_is_named_if_a_run_is_worth_it(
    gpu_machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu_machine()
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "GT 1030")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (6, 1))
    line = "cuda:0 GT 1030 is left out: this torch has no code for its compute capability 6.1"
    found = placed("quadratic mnist")
    assert (Counter(found.devices), list(found.notes)) == ({"cpu": 16}, [line])
    assert found.sharing(RUNS["mnist"]) == ON_CPU
    assert list(placed("quadratic digits").notes) == []
    with pytest.raises(SpecError, match=r"no GPU can be used\. Try: --device cpu"):
        placed("mnist", {"device": "cuda"})
