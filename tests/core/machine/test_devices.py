"""The devices that runs are computed on."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dynabro_cli.core.errors import RunError, SpecError
from dynabro_cli.core.machine import devices
from dynabro_cli.core.machine.devices import Card


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
    assert [devices.devices_of(name) for name in ("auto", "cpu")] == [(["cpu"], [])] * 2
    monkeypatch.setattr(devices, "gpu_driver", no_torch)
    assert devices.devices_of("cpu") == (["cpu"], [])


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    ("error", "notes"),
    [
        (
            AssertionError("Torch not compiled with CUDA enabled"),
            ["device: cpu (torch cannot use the GPU here: Torch not compiled with CUDA enabled)"],
        ),
        (
            RuntimeError("The NVIDIA driver is too old\nTry"),
            ["device: cpu (torch cannot use the GPU here: The NVIDIA driver is too old)"],
        ),
        (RuntimeError("No CUDA GPUs are available"), []),
    ],
)
def test_a_gpu_that_torch_cannot_use_is_named(
    error: Exception, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def init() -> None:
        raise error

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "init", init)
    assert devices.devices_of("auto") == (["cpu"], notes)
    why = f" ({str(error).splitlines()[0]})" if notes else ""
    with pytest.raises(SpecError) as raised:
        devices.devices_of("cuda")
    assert str(raised.value).startswith(f"device=cuda is not here{why}; legal on this machine")


@pytest.mark.usefixtures("driver")
def test_torch_decides_where_there_is_one(
    gpu_machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu_machine(2)
    assert [devices.devices_of(name)[0] for name in ("auto", "cuda", "cuda:1", "cpu")] == [
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


LIBRARY = """
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
typedef void *context;
/* the variable CARDS: for each GPU, its compute mode and its free GB, or b if no context is made */
static const char *card(int i) {
    const char *text = getenv("CARDS");
    while (i-- && text) text = strchr(text, ' ') ? strchr(text, ' ') + 1 : 0;
    return text;
}
static int current;
int cuInit(unsigned flags) { return strncmp(getenv("CARDS"), "old", 3) ? 0 : 803; }
int cuDeviceGetCount(int *n) { for (*n = 0; card(*n); ++*n); return 0; }
int cuDeviceGet(int *device, int i) { *device = i; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 20 ? card(device)[0] - '0' : -1;
    return 0;
}
int cuDevicePrimaryCtxRetain(context *made, int device) {
    *made = (context)(size_t)(device + 1);
    return card(device)[1] == 'b' ? 46 : 0;
}
int cuCtxSetCurrent(context given) { current = (int)(size_t)given - 1; return current < 0; }
int cuMemGetInfo_v2(size_t *free, size_t *total) {
    *free = (size_t)atoi(card(current) + 1) << 30;
    *total = (size_t)80 << 30;
    return 0;
}
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A driver that knows GPUs from the environment."""
    source = tmp_path / "cuda.c"
    source.write_text(LIBRARY)
    made = tmp_path / "libcuda.so"
    command = ["cc", "-shared", "-fPIC", "-w", "-o", str(made), str(source)]
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    subprocess.run(command, check=True)
    monkeypatch.setattr(devices, "NVIDIA_DRIVER", str(made))
    return lambda cards: monkeypatch.setenv("CARDS", cards)


@pytest.mark.parametrize(
    ("given", "cards"),
    [
        ("075", [Card(0, 75 << 30)]),
        ("075 01 20 3b 0b", [(0, 75 << 30), (0, 1 << 30), (2, 0), (3, None), (0, None)]),
        ("00", [Card(0, 0)]),
        ("old", []),
    ],
)
def test_cards_are_looked_at_in_another_process(
    given: str, cards: list[Any], library: Callable[[str], None]
) -> None:
    library(given)
    assert devices.look() == cards


def test_a_look_that_fails_says_nothing(
    library: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    library("075")
    monkeypatch.setattr(devices, "LOOK", "import time; time.sleep(60)")
    monkeypatch.setattr(devices, "LOOK_SECONDS", 0.5)
    assert devices.look() == []
    monkeypatch.setattr(devices, "NVIDIA_DRIVER", "libno_such_library.so.1")
    assert devices.look() == []


@pytest.mark.parametrize(
    ("capability", "built", "usable"),
    [
        ((9, 0), "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120", True),
        ((8, 9), "sm_75 sm_80 sm_86 sm_90", True),
        ((8, 0), "sm_86", False),
        ((7, 0), "sm_75 sm_80 sm_90", False),
        ((6, 1), "sm_75 sm_80 sm_90 compute_90", False),
        ((12, 1), "sm_90 compute_90", True),
        ((12, 1), "sm_90", False),
        ((12, 1), "sm_90 sm_120", True),
        ((9, 0), "sm_90a", True),
        ((11, 0), "gfx90a gfx1100", True),
        ((9, 0), "", True),
    ],
)
def test_a_gpu_needs_code_of_this_torch(
    capability: tuple[int, int],
    built: str,
    usable: bool,
    gpu_machine: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu_machine()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_arch_list", built.split)
    assert (devices.obstacle("cuda:0") is None) is usable


def test_cards_that_cannot_be_used_are_left_out(
    gpu_machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu_machine(5)
    cards = [Card(0, 9), Card(0, 9), Card(2, 9), Card(3, None), Card(3, 9)]
    monkeypatch.setattr(devices, "cards", lambda: cards)
    old = {"cuda:1": (6, 1)}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda name: old.get(name, (9, 0)))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda name: "GT 1030")
    left_out = [
        "cuda:1 GT 1030 is left out: this torch has no code for its compute capability 6.1",
        "cuda:2 GT 1030 is left out: its compute mode is Prohibited",
        "cuda:3 GT 1030 is left out: another process holds it, or its memory is full",
    ]
    assert devices.devices_of("auto") == (["cuda:0", "cuda:4"], left_out)
    with pytest.raises(SpecError) as raised:
        devices.devices_of("cuda:2")
    assert raised.value.problems == [
        left_out[1],
        "device=cuda:2: no GPU can be used. Try: --device cpu",
    ]
    cards[:] = [Card(2, 0)] * 5
    assert devices.devices_of("auto")[0] == ["cpu"]
    with pytest.raises(SpecError, match="no GPU can be used"):
        devices.devices_of("cuda")


def test_a_gpu_computes_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    here = torch.device("cpu")
    devices.check_computes(here)
    for wrong, why in (
        (lambda *_, **__: torch.zeros(1), "a sum is wrong"),
        (_no_image, "CUDA error: no kernel image is available for execution on the device"),
    ):
        monkeypatch.setattr(torch, "arange", wrong)
        with pytest.raises(SpecError) as raised:
            devices.check_computes(here)
        assert str(raised.value) == (
            f"device=cpu: this GPU does not compute ({why}). Try: --device cpu"
        )


def _no_image(*_: object, **__: object) -> None:
    raise RuntimeError(
        "CUDA error: no kernel image is available for execution on the device\nCUDA kernel errors"
    )


def test_a_process_with_an_error_that_stays_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_: str) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    assert not devices.spoilt("cuda:0")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    assert not devices.spoilt("cuda:0")
    monkeypatch.setattr(torch.cuda, "synchronize", broken)
    assert not devices.spoilt("cpu")
    devices.refuse_spoilt("cpu")
    assert devices.spoilt("cuda:0")
    with pytest.raises(RunError, match=r"^device=cuda:0: this process cannot use the GPU any more"):
        devices.refuse_spoilt("cuda:0")
