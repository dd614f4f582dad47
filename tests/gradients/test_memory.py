"""Free memory of a device."""

from __future__ import annotations

import pytest
import torch

from dynabro_cli.gradients import memory

CPU = torch.device("cpu")


@pytest.mark.parametrize(("known", "expected"), [(500, 500), (0, 0), (None, 2 << 30)])
def test_what_is_free_on_the_cpu(
    known: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_host_memory", lambda: known)
    assert memory.free_memory(CPU) == expected


def test_sending_to_the_cpu_copies_nothing() -> None:
    tensor = torch.arange(3)
    assert memory.send(tensor, CPU) is tensor
