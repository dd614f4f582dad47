"""What memory is free: the system's, within the limit of the control group."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dynabro_cli.simulation import memory

CPU = torch.device("cpu")


def group(folder: Path, limit: str, used: str) -> Path:
    (folder / "memory.max").write_text(limit + "\n")
    (folder / "memory.current").write_text(used + "\n")
    return folder


def test_a_control_group_with_a_limit(tmp_path: Path) -> None:
    assert memory._left_in_group(group(tmp_path, "1000", "300")) == [700]
    assert memory._left_in_group(group(tmp_path, "max", "300")) == []
    assert memory._left_in_group(tmp_path / "nothing") == []


@pytest.mark.parametrize(
    ("available", "left", "expected"),
    [(500, [700], 500), (900, [700], 700), (900, [], 900), (None, [], 2 << 30), (900, [-5], 0)],
)
def test_the_least_of_what_is_known(
    available: int | None, left: list[int], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_available", lambda: available)
    monkeypatch.setattr(memory, "_left_in_group", lambda _: left)
    assert memory.free_memory(CPU) == expected


def test_sending_to_the_cpu_copies_nothing() -> None:
    tensor = torch.arange(3)
    assert memory.send(tensor, CPU) is tensor
