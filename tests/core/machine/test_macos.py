"""Differences of macOS, with its functions replaced: file systems, syncs, free memory,
and stubs of developer tools.
"""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dynabro_cli.core.errors import CannotWriteError
from dynabro_cli.core.machine import checkout, host_memory, macos, native
from dynabro_cli.core.machine.host_memory import PAGE
from dynabro_cli.runs.store.care.copies import back_up
from dynabro_cli.runs.store.open import files
from dynabro_cli.runs.store.open.engine import open_for_writing
from tests.runs.store import sound
from tests.runs.store.made import record

KINDS = {"apfs": True, "hfs": True, "smbfs": False, "nfs": False, "afpfs": False, "macfuse": False}
"""File systems, and whether macOS calls them local."""


class System:
    """The C library of macOS, as far as it is asked."""

    def __init__(self, kind: str = "apfs", values: dict[str, bytes] | None = None) -> None:
        self.kind, self.values, self.asked = kind, values or {}, list[str]()

    def statfs(self, path: bytes, status: Any) -> int:
        self.asked.append(os.fsdecode(path))
        if not os.path.exists(path):
            return -1
        # sys/mount.h: block sizes, five counts, id, owner, type, flags, subtype, three names,
        # more flags, reserved
        head = struct.pack("<Ii5Q2iIIII", 4096, 1 << 20, *[9] * 5, 1, 2, 501, 26, 0, 0)
        flags = 0x0000_1018 if KINDS[self.kind] else 0x0000_0018
        head = head[:64] + struct.pack("<II", flags, 3)
        names = struct.pack("16s1024s1024s", self.kind.encode(), b"/Volumes/x", b"//me@host/x")
        status.raw = head + names + struct.pack("<8I", *[0] * 8)
        return 0

    def sysctlbyname(self, name: bytes, value: Any, size: Any, new: None, length: Any) -> int:
        answer = self.values.get(name.decode())
        if answer is None:
            return -1
        value.raw, size._obj.value = answer.ljust(64, b"\xff"), len(answer)
        return 0


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> System:
    """A Mac, without ``/proc``."""
    mac = System()
    monkeypatch.setattr(macos.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(macos.ctypes, "CDLL", lambda name: mac)
    monkeypatch.setattr(files, "MOUNTS", tmp_path / "no mounts")
    return mac


@pytest.mark.parametrize("kind", KINDS)
def test_a_database_on_a_network_folder_is_refused(
    kind: str, system: System, tmp_path: Path
) -> None:
    system.kind = kind
    database = tmp_path / "results.db"
    if KINDS[kind]:
        open_for_writing(str(database)).dispose()
        assert database.exists()
    else:
        with pytest.raises(CannotWriteError, match=rf"network file system \({kind}\)"):
            open_for_writing(str(database))
        assert not database.exists()
    assert set(system.asked) == {str(tmp_path)}


def test_a_link_is_judged_by_its_target(system: System, tmp_path: Path) -> None:
    system.kind = "smbfs"
    (tmp_path / "share").mkdir()
    (tmp_path / "results.db").symlink_to(tmp_path / "share" / "new.db")
    assert files.network_file_system(tmp_path / "results.db") == "smbfs"
    assert system.asked == [str(tmp_path / "share")]
    assert files.network_file_system(tmp_path / "missing" / "results.db") is None


@pytest.mark.parametrize("supported", [True, False])
def test_checkpoints_and_copies_reach_the_disk(
    supported: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """macOS's fsync ends when the drive has the data in its cache, which a power cut empties."""
    synced: list[tuple[str, str]] = []

    def name(handle: int) -> str:
        return Path(os.readlink(f"/proc/self/fd/{handle}")).name

    def control(handle: int, command: int) -> int:
        assert command == 51
        if not supported:
            raise OSError(45, "Operation not supported")
        synced.append(("full", name(handle)))
        return 0

    record(open_for_writing(str(tmp_path / "results.db")), sound.run(1))
    monkeypatch.setattr(macos.fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(macos.fcntl, "fcntl", control)
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(("plain", name(handle))))
    copy = back_up(str(tmp_path / "results.db"), tmp_path / "copy.db").path
    assert copy.exists()
    assert {how for how, _ in synced} == {"full" if supported else "plain"}
    assert [file for _, file in synced][-1] == tmp_path.name


def test_sqlite_syncs_to_the_disk(tmp_path: Path) -> None:
    with open_for_writing(str(tmp_path / "results.db")).connect() as connection:
        assert connection.exec_driver_sql("PRAGMA fullfsync").scalar() == 1


@pytest.mark.parametrize(("level", "percent"), [(37, 37), (0, 0), (None, 100)])
def test_free_memory_is_the_share_that_macos_names(
    level: int | None, percent: int, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    if level is not None:
        system.values["kern.memorystatus_level"] = level.to_bytes(4, "little")
    monkeypatch.setattr(host_memory, "_lines", lambda path: [])
    everything = os.sysconf("SC_PHYS_PAGES") * PAGE
    assert list(host_memory._available()) == [everything * percent // 100]


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("place", ["/usr/bin", "/opt/homebrew/bin"])
def test_a_stub_of_a_developer_tool_is_not_started(
    installed: bool, place: str, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would open a dialog, once for each process, and fail."""
    started: list[str] = []

    def run(command: list[str], **options: Any) -> Any:
        started.append(command[0])
        if command == ["/usr/bin/xcode-select", "-p"]:
            return SimpleNamespace(returncode=0 if installed else 2)
        return SimpleNamespace(returncode=0, stdout=b"0123abc\n")

    monkeypatch.setattr(macos.shutil, "which", lambda name: f"{place}/{Path(name).name}")
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.delenv("CXX", raising=False)
    macos.is_stub.cache_clear()
    try:
        works = installed or place != "/usr/bin"
        assert native.compiler() == ("g++" if works else None)
        assert checkout.current_commit() == ("0123abc" if works else None)
        assert ("git" in started) is works
        monkeypatch.setenv("CXX", "ccache g++")
        assert native.compiler() == ("ccache g++" if works else None)
    finally:
        macos.is_stub.cache_clear()
