"""The memory that a run needs: what is counted beforehand, beside what real processes take."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.components.tasks._api import ImageShape
from dynabro_cli.core.errors import OccupiedError, SpecError
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.simulation.need import PROCESS, Need, check_room, model_size, need_of
from tests.tables import each_row

MNIST = ImageShape(1, 28, 28, 10)
HERE = Path()


def need(*, gpu: bool = False, compiles: bool = False, **values: Any) -> Need:
    return need_of(resolve(RunSpec(**values)), gpu=gpu, compiles=compiles)


PROGRAM = """
import json, sys
from pathlib import Path
import torch
from dynabro_cli import RunSpec
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.simulation.setup import simulate_run
from dynabro_cli.components.tasks._api import Images, TaskSetting

def images(shape, count):
    size = (count, shape.channels, shape.height, shape.width)
    return torch.randint(0, 256, size, dtype=torch.uint8), torch.randint(0, shape.classes, (count,))

def load(component, folder):
    task = component.build(TaskSetting(folder))
    if task.shape is None or component.name == "digits":
        return task.load()
    channels = (0.5,) * task.shape.channels
    parts = images(task.shape, task.train_size) + images(task.shape, task.test_size)
    return Images(*parts, mean=channels, std=channels, shape=task.shape)

rounds = iter(range(1000))
run = resolve(RunSpec(**json.loads(sys.argv[1])))
for event in simulate_run(run, device="cpu", threads=1, compile="off", load=load, wanted=lambda: next(rounds) == 1):
    pass
lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
peak, files = (int(lines[name].split()[0]) * 1024 for name in ("VmHWM", "RssFile"))
print(peak - files)
"""  # noqa: E501


def measured(values: dict[str, Any]) -> float:
    """The most memory that a process which makes the run has had, without the pages of files that
    it shares.
    """
    command = [sys.executable, "-c", PROGRAM, json.dumps(values)]
    return float(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    )


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "quadratic": {"task": "quadratic", "budget": 20},
    "mlp": {
        "model": "mlp:hidden=4000",
        "method": "sgd",
        "budget": 3,
        "workers": 50,
        "byzantine": 15,
    },
    "mnist": {"task": "mnist", "method": "momentum", "budget": 4},
    "many workers": {
        "task": "mnist",
        "method": "momentum",
        "workers": 200,
        "budget": 3,
        "batch_size": 4,
    },
    "dimension": {
        "task": "quadratic:dimension=4000000",
        "method": "sgd",
        "aggregator": "cwtm",
        "attack": "ipm",
        "budget": 3,
    },
    "samples": {
        "model": "logistic",
        "method": "sgd",
        "workers": 1000,
        "byzantine": 1,
        "batch_size": 1400,
        "budget": 2,
    },
    "noise": {
        "method": "momentum",
        "attack": "gaussian:sigma=1",
        "workers": 400,
        "byzantine": 100,
        "budget": 3,
    },
    "kept": {
        "method": "safeguard",
        "workers": 500,
        "byzantine": 9,
        "model": "mlp:hidden=500",
        "budget": 14,
    },
    "gathered": {
        "method": "local-steps:H=2",
        "workers": 300,
        "byzantine": 9,
        "model": "mlp:hidden=500",
        "budget": 6,
    },
}
MARKS: dict[str, Any] = {"quadratic": (), "mlp": pytest.mark.thorough}


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from Linux's /proc")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS.get(name, pytest.mark.slow)) for name in CONFIGURATIONS]
)
def test_beside_what_a_process_takes(name: str) -> None:
    """The estimate is right within a factor of about two, and never far too low: then a process
    would be killed.
    """
    values = CONFIGURATIONS[name]
    told, taken = need(**values).host, measured(values)
    assert 0.9 * taken < told < 2.2 * taken, (told / 1e6, taken / 1e6)


def test_the_size_of_a_model() -> None:
    registry = REGISTRIES["models"]
    assert model_size(registry.parse("cnn-mnist"), MNIST)[:2] == (176_050, 0)
    cifar = ImageShape(3, 32, 32, 10)
    batch_norms = (64 + 64 + 128 + 128) * 2
    assert model_size(registry.parse("cnn-cifar"), cifar).statistics == batch_norms
    logistic = model_size(registry.parse("logistic"), MNIST)
    assert logistic.parameters == 7850
    assert 4 * 784 <= logistic.activations <= 4 * (784 + 20)  # the image, and the logits at most
    with pytest.raises(SpecError, match="needs images of at least"):
        model_size(registry.parse("cnn-mnist"), ImageShape(1, 8, 8, 10))


@each_row("model", sorted(REGISTRIES["models"].entries()))
def test_every_model_can_be_traced_without_memory(model: str) -> None:
    shape = ImageShape(1, 1, 32, 10) if model == "gpt" else ImageShape(3, 32, 32, 10)
    assert model_size(REGISTRIES["models"].parse(model), shape).activations > 4 * 3 * 32 * 32 / 2


def test_what_takes_most_is_named_with_what_to_type() -> None:
    one = {"workers": 1, "byzantine": 0}
    for values, largest, advice in (
        ({"workers": 1_000_000, "byzantine": 1}, "the messages [m, d]", "fewer --workers"),
        (
            {"task": "cifar10", "model": "resnet18", **one, "batch_size": 1},
            "the model",
            "a smaller --model",
        ),
        (
            {"model": "mlp:hidden=10000000", **one},
            "the mini-batches and their activations",
            "a smaller --batch-size",
        ),
        (
            {"task": "quadratic", "batch_size": 2**31 - 1},
            "the mini-batches and their activations",
            "a smaller --batch-size",
        ),
        (
            {"method": "dynabro:jmax=20", "clock": "computation"},
            "who is Byzantine at each",
            "--clock round",
        ),
        (
            {"method": f"local-steps:H={2**62}", "clock": "computation"},
            "who is Byzantine at each",
            "--clock round",
        ),
        ({"task": "mnist", "model": "logistic", **one}, "the data set", "another --task"),
    ):
        found = need(**values)
        assert largest in found.largest, values
        assert advice in found.advice


def test_what_grows_with_what() -> None:
    base: dict[str, Any] = {
        "task": "quadratic:dimension=1000000",
        "method": "sgd",
        "workers": 10,
        "byzantine": 3,
    }
    matrix = 8 * 10 * 1_000_000
    plain = need(**base, aggregator="mean").host
    assert need(**base | {"workers": 20}, aggregator="mean").host - plain > 7 * matrix
    assert need(task="mnist").host - need(task="mnist", compiles=True).host < 0
    on_gpu = need(task="mnist", gpu=True)
    assert on_gpu.device > 70_000 * 784
    assert need(task="mnist").device == need(task="quadratic", gpu=True).device == 0


def test_images_of_a_folder_are_looked_at(tmp_path: Path) -> None:
    from PIL import Image

    for split, count in (("train", 3), ("test", 1)):
        (tmp_path / "big" / split / "a").mkdir(parents=True)
        for index in range(count):
            Image.new("RGB", (1000, 500)).save(tmp_path / "big" / split / "a" / f"{index}.png")
    run = resolve(
        RunSpec(
            task="image-folder:name=big", model="logistic", workers=1, byzantine=0, batch_size=1
        )
    )
    there, not_there = (
        need_of(run.with_data(folder), compiles=False) for folder in (tmp_path, HERE)
    )
    assert there.host - not_there.host > 4 * 1000 * 500 * 3
    assert not_there.host < 1.1 * PROCESS


def test_passes_of_several_workers_are_as_large_as_the_memory_allows() -> None:
    found = need(task="cifar10", model="resnet18")
    assert found.spare > 1e9
    assert found.within(1e12) == found
    assert found.within(2e9).host == pytest.approx(found.host - (found.spare - 2.5 * 0.25 * 2e9))
    assert found.within(0).host == found.within(-1).host == found.host - found.spare
    on_gpu = need(task="cifar10", model="resnet18", gpu=True)
    assert on_gpu.within(0)[:2] == (on_gpu.host, on_gpu.device - on_gpu.spare)
    assert on_gpu.within(1e12) == on_gpu
    # a pass that does not fit is halved
    assert on_gpu.within(on_gpu.device - 1e9).device == on_gpu.device - 1e9


@each_row(
    ("values", "model", "samples", "graphs"),
    [
        ({"task": "mnist"}, "cnn-mnist", (1 << 23) // 784, (1 << 23) // 784),
        ({"task": "cifar10", "workers": 25, "method": "momentum"}, "cnn-cifar", 25 * 64, 0),
        ({"task": "cifar10", "workers": 25}, "cnn-cifar", 1807, 0),  # 5 GB of activations
        ({"task": "cifar10", "workers": 25, "model": "resnet18"}, "resnet18", 679, 0),
    ],
)
def test_passes_on_a_gpu_do_not_depend_on_its_memory(
    values: dict[str, Any], model: str, samples: int, graphs: int
) -> None:
    shape = MNIST if values["task"] == "mnist" else ImageShape(3, 32, 32, 10)
    activations = model_size(REGISTRIES["models"].parse(model), shape).activations
    passes = 2.5 * activations * (samples + graphs)
    rest = (
        0.6e9
        + 4
        * 13
        * values.get("workers", 17)
        * model_size(REGISTRIES["models"].parse(model), shape).parameters
    )
    # and data, batches, models
    assert passes + rest < need(**values, gpu=True).device < passes + rest + 1.1e9


@pytest.mark.parametrize(
    ("free", "total", "error"),
    [(100, 140, None), (1, 140, OccupiedError), (1, 1, SpecError), (0, 80, OccupiedError)],
)
def test_memory_that_others_use_is_no_need_of_the_run(
    free: int, total: int, error: type[SpecError] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free << 30, total << 30))
    run, device = resolve(RunSpec(task="mnist", method="sgd")), torch.device("cuda:1")
    refused = contextlib.nullcontext() if error is None else pytest.raises(SpecError)
    with refused as raised:
        check_room(run, device, compiles=False, host=False)
    if error is not None:
        assert type(raised.value) is error
        assert f"{free * 1.073741824:,.1f} GB are free on cuda:1. Try: " in str(raised.value)
