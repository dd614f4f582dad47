"""The devices that runs are computed on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dynabro_cli.errors import SpecError
from dynabro_cli.machine import devices


def no_torch() -> bool:
    raise AssertionError("torch was asked")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has the driver of a GPU."""
    monkeypatch.setattr(devices, "gpu_driver", lambda: True)


def test_torch_is_not_asked_where_there_is_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", no_torch)
    monkeypatch.setattr(torch.cuda, "device_count", no_torch)
    monkeypatch.setattr(devices, "gpu_driver", lambda: False)
    assert [devices.devices_of(name) for name in ("auto", "cpu")] == [["cpu"], ["cpu"]]
    monkeypatch.setattr(devices, "gpu_driver", no_torch)
    assert devices.devices_of("cpu") == ["cpu"]


@pytest.mark.usefixtures("driver")
def test_torch_decides_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert devices.devices_of("auto") == ["cpu"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [devices.devices_of(name) for name in ("auto", "cuda", "cuda:1", "cpu")] == [
        ["cuda:0", "cuda:1"],
        ["cuda:0", "cuda:1"],
        ["cuda:1"],
        ["cpu"],
    ]


@pytest.mark.parametrize("name", ["cuda", "cuda:7", "gpu"])
def test_a_device_that_is_not_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(
        SpecError,
        match=f"device={name} is not here; legal on this machine: auto, cpu. Try: --device auto",
    ):
        devices.devices_of(name)


def test_a_driver_is_looked_for_in_two_places(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    look = devices.gpu_driver.__wrapped__
    monkeypatch.setattr(devices, "AMD_DRIVER", tmp_path / "kfd")
    monkeypatch.setattr(devices, "NVIDIA_DRIVER", "libno_such_library.so.1")
    assert not look()
    monkeypatch.setattr(devices, "NVIDIA_DRIVER", "libc.so.6")
    assert look()
    monkeypatch.setattr(devices, "NVIDIA_DRIVER", "libno_such_library.so.1")
    (tmp_path / "kfd").touch()
    assert look()
