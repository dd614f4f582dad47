"""Free memory of this machine: the system's, within control groups of both versions and the
process's limits.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from dynabro_cli.core.machine import host_memory
from dynabro_cli.core.machine.host_memory import PAGE, free_host_memory, private_memory

UNLIMITED = "9223372036854771712"
V2, V1 = ("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")


def group(
    folder: Path, limit: str, used: str, cached: int = 0, *, names: tuple[str, str] = V2
) -> None:
    """A control group's files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in zip(names, (limit, used), strict=True):
        (folder / name).write_text(text + "\n")
    (folder / "memory.stat").write_text(
        f"anon 1\ninactive_file {cached}\ntotal_inactive_file {cached}\n"
    )


def left(tmp_path: Path, membership: str) -> list[int]:
    (tmp_path / "cgroup").write_text(membership)
    return sorted(host_memory._free_in_groups(tmp_path, tmp_path / "groups"))


def test_version_2_and_the_groups_above(tmp_path: Path) -> None:
    group(tmp_path / "groups", "5000", "1000")
    group(tmp_path / "groups" / "user.slice", "max", "900")
    group(tmp_path / "groups" / "user.slice" / "mine", "1000", "600", cached=300)
    assert left(tmp_path, "0::/user.slice/mine\n") == [700, 4000]
    assert left(tmp_path, "0::/user.slice\n") == [4000]


def test_version_1(tmp_path: Path) -> None:
    memory = tmp_path / "groups" / "memory"
    group(memory, UNLIMITED, "5000", names=V1)
    group(memory / "job", "2000", "600", cached=100, names=V1)
    assert left(tmp_path, "9:name=systemd:/\n4:memory:/job\n3:cpuset:/\n") == [
        1500,
        int(UNLIMITED) - 5000,
    ]


def test_a_container_that_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    group(tmp_path / "groups" / "memory", "2000", "600", names=V1)
    assert left(tmp_path, "4:memory:/docker/abc\n") == [1400]
    group(tmp_path / "groups", "3000", "600")
    assert left(tmp_path, "0::/docker/abc\n") == [2400]


@pytest.mark.parametrize("limit", ["max", "", "nonsense"])
def test_groups_without_a_limit(limit: str, tmp_path: Path) -> None:
    group(tmp_path / "groups", limit, "600")
    assert left(tmp_path, "0::/\n") == []
    assert left(tmp_path, "") == []
    assert list(host_memory._free_in_groups(tmp_path / "nothing", tmp_path)) == []


@pytest.mark.parametrize(
    ("available", "groups", "limits", "expected"),
    [
        ([500], [700], [], 500),
        ([900], [700, 800], [], 700),
        ([900], [], [300], 300),
        ([], [], [], None),
        ([900], [-5], [], 0),
    ],
)
def test_the_least_of_what_is_known(
    available: list[int],
    groups: list[int],
    limits: list[int],
    expected: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts: dict[str, Iterable[int]] = {
        "_available": available,
        "_free_in_groups": groups,
        "_free_of_limits": limits,
    }
    for name, numbers in parts.items():
        monkeypatch.setattr(host_memory, name, lambda *_, numbers=numbers: iter(numbers))
    assert free_host_memory() == expected


PROGRAM = """
import resource, sys
from dynabro_cli.core.machine.host_memory import free_host_memory
kind = getattr(resource, sys.argv[1])
resource.setrlimit(kind, (int(sys.argv[2]), resource.getrlimit(kind)[1]))
free = free_host_memory()
held = bytearray(free - (8 << 20))
try:
    more = bytearray(32 << 20)
except MemoryError:
    print("full")
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not keep to these limits")
@pytest.mark.parametrize("kind", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_a_limit_of_the_process_leaves_what_is_said(kind: str) -> None:
    assert hasattr(resource, kind)
    command = [sys.executable, "-c", PROGRAM, kind, str(400 << 20)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "full\n"


def test_of_this_process() -> None:
    free = free_host_memory()
    assert free is None or 0 <= free < 1 << 60
    assert private_memory() % PAGE == 0
    assert private_memory() > 10 << 20
