"""A GPU that is not there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.gpu.fake import FakeGPU, backward


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGPU]:
    """Have torch find one GPU, whose tensors have no values."""
    mode = FakeGPU()  # before torch believes in a GPU, so that it asks no driver about it
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "a GPU that is not there")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (100 << 30, 140 << 30))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(torch.__future__, "_overwrite_module_params_on_conversion", True)
    monkeypatch.setattr(torch.Tensor, "backward", backward)
    lifts = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device="cuda") makes a tensor on the CPU and sends it
    before = torch.are_deterministic_algorithms_enabled()
    with mode:
        yield mode
    torch._C._set_only_lift_cpu_tensors(lifts)
    torch.use_deterministic_algorithms(before)
