"""The GPU that is not there finds what it is for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from benchmarks.fake_gpu import FakeGPU, HiddenWaitError, launches, on_gpu

WAITS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x[0, 0]),
    "bool": lambda x: bool(x.any()),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "tolist": lambda x: x.tolist(),
    "copy": lambda x: torch.zeros(3, 4).copy_(x),
    "equal": lambda x: torch.equal(x, x),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "if": lambda x: 1 if x.sum() > 0 else 2,
}


@pytest.mark.parametrize("name", WAITS)
def test_what_waits_for_the_gpu_is_found(name: str, gpu: FakeGPU) -> None:
    x = torch.ones(3, 4, device="cuda")
    with pytest.raises(HiddenWaitError):
        WAITS[name](x)
    WAITS[name](torch.ones(3, 4))  # nothing on the CPU waits


def test_a_tensor_on_the_wrong_device_is_found(gpu: FakeGPU) -> None:
    x = on_gpu(torch.ones(3, 4))
    for wrong in (
        lambda: x + torch.ones(3, 4),
        lambda: torch.where(torch.ones(3, 1) > 0, x, 0),
        lambda: x @ torch.ones(4, 2),
    ):
        with pytest.raises(RuntimeError, match="device"):
            wrong()
    assert (x * torch.tensor(2.0)).device.type == "cuda"  # a number may come from anywhere


def test_values_can_be_read_where_that_is_allowed(gpu: FakeGPU) -> None:
    x = on_gpu(torch.zeros(2))
    with gpu.allowed():
        assert x.tolist() == [1.0, 1.0]
        assert bool(x.any())
    assert "aten::any" in gpu.counted()
    assert not gpu.counted()


def test_launches_are_operations_that_compute_and_move_bytes(gpu: FakeGPU) -> None:
    x, chosen = on_gpu((torch.ones(3, 4), torch.tensor([1, 1])))
    gpu.counted()
    torch.empty_like(x.t()[0])
    assert launches(gpu.counted()) == 0
    (x.t() @ x).add_(1)
    assert gpu.moved == 2 * 3 * 4 * 4 + 3 * 4 * 4 * 4  # x twice, and the product three times
    assert launches(gpu.counted()) == 2
    x.expand(5, 3, 4).index_select(0, chosen)
    assert gpu.moved == 2 * 8 + 2 * 2 * 3 * 4 * 4  # indices, and what they pick, read and written
