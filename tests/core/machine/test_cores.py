"""Number of usable cores."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dynabro_cli.core.machine import cores as module


@pytest.mark.parametrize(
    ("affinity", "limits", "expected"),
    [
        (6, {}, 6),
        (6, {"user.slice/mine": "max 100000"}, 6),
        (6, {"user.slice/mine": "250000 100000"}, 2),
        (6, {"user.slice": "300000 100000", "user.slice/mine": "500000 100000"}, 3),
        (6, {"": "400000 100000"}, 4),
        (6, {"": "50000 100000"}, 1),
        (2, {"": "400000 100000"}, 2),
        (6, {"": "nonsense"}, 6),
        (6, {"somebody.else": "100000 100000"}, 6),
    ],
)
def test_affinity_and_the_limits_of_control_groups(
    affinity: int,
    limits: dict[str, str],
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for group, text in limits.items():
        folder = tmp_path / "cgroup" / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.max").write_text(text + "\n")
    monkeypatch.setattr(module, "GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(module, "_group", lambda: "/user.slice/mine")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(affinity)), raising=False)
    assert module.cores() == expected


def test_a_system_that_knows_no_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GROUPS", tmp_path)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert module.cores() == 5
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert module.cores() == 1


def test_the_group_of_this_process_is_found_or_the_root() -> None:
    assert module._group().startswith("/")
