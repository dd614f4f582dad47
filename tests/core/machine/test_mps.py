"""CUDA's multi-process service, with a program in the place of its control program."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from dynabro_cli.core.machine import mps
from dynabro_cli.core.machine.devices import Card
from tests.core.machine.fake_mps import Service

PROGRAM = """
import contextlib, os, sys
from dynabro_cli.core.machine import mps
stack = contextlib.ExitStack()
print(mps.start(stack), flush=True)
os._exit(3) if sys.stdin.readline() else None
"""


@pytest.mark.parametrize("error", [None, KeyError, KeyboardInterrupt, SystemExit])
def test_a_private_service_ends_with_the_sweep(
    error: type[BaseException] | None, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with contextlib.suppress(error or ()), contextlib.ExitStack() as stack:
        folder = Path(mps.start(stack) or "")
        assert service.running() == [folder]
        assert mps.FOLDER not in os.environ
        if error is not None:
            raise error
    assert not folder.exists()
    assert service.running() == []
    assert service.started() == [("all", folder)]


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, None])
def test_a_private_service_ends_with_a_process_that_ends_at_once(
    end: signal.Signals | None, service: Service
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    assert service.running() == [folder]
    if end is None:
        process.stdin.write("\n")
        process.stdin.flush()
    else:
        process.send_signal(end)
    process.communicate()
    until = time.monotonic() + 60
    while folder.exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not folder.exists()
    assert service.running() == []


def test_a_service_of_the_user_is_used_and_stays(
    service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(mps, "USUAL_FOLDER", str(service.usual))
    with contextlib.ExitStack() as stack:
        service.start_usual()
        assert mps.start(stack) == mps.at_hand() == str(service.usual)
        monkeypatch.setenv(mps.FOLDER, str(tmp_path))
        service.start_usual()
        assert mps.start(stack) == mps.at_hand() == str(tmp_path)
    monkeypatch.delenv(mps.FOLDER)
    started = [folder for _, folder in service.started()]
    assert started == service.running() == [service.usual, tmp_path]


@pytest.mark.parametrize("folder", ["/nonexistent", "empty", "socket without a service"])
@pytest.mark.parametrize("program", [True, False])
def test_a_folder_without_a_service_is_no_service(
    folder: str, program: bool, service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without the control program, as in a container, only the socket can be looked for."""
    place = tmp_path / folder
    if folder != "/nonexistent":
        place.mkdir()
    if folder.startswith("socket"):
        (place / "old" if program else place / "control").touch()
    monkeypatch.setenv(mps.FOLDER, str(place))
    if not program:
        monkeypatch.setenv("PATH", "")
    with contextlib.ExitStack() as stack:
        served = not program and folder.startswith("socket")
        assert mps.start(stack) == mps.at_hand() == (str(place) if served else None)
    assert service.running() == []


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        ("", "all"),
        ("0,3", "all"),
        ("MIG-11c29e81-e611-50b5-b5ef-609c0a0fe58b", None),
        ("GPU-8932f937,GPU-46d1cce2", None),
        ("0,MIG-11c29e81", None),
    ],
)
def test_a_private_service_has_the_gpus_that_only_it_can_find(
    visible: str, seen: str | None, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with contextlib.ExitStack() as stack:
        folder = Path(mps.start(stack) or "")
    assert service.started() == [(seen or visible, folder)]


@pytest.mark.parametrize("whose", ["private", "user's"])
@pytest.mark.parametrize(
    ("before", "clients", "serves"),
    [
        ([Card(0, 9)], [Card(0, 9)], True),
        ([Card(0, 9)], [Card(0, None)], False),
        ([Card(0, 9)], [], False),
        ([Card(0, None), Card(0, 9)], [Card(0, None), Card(0, 9)], True),
        ([], [], True),  # nothing can be asked here
    ],
)
def test_a_service_counts_if_it_serves_a_first_client(
    before: list[Card],
    clients: list[Card],
    serves: bool,
    whose: str,
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = list[str]()

    def look(**environment: str) -> list[Card]:
        asked.append(environment[mps.FOLDER])
        return clients

    monkeypatch.setattr(mps, "USUAL_FOLDER", str(service.usual))
    monkeypatch.setattr(mps, "cards", lambda: before)
    monkeypatch.setattr(mps, "look", look)
    if whose != "private":
        service.start_usual()
    match = pytest.warns(UserWarning, match="serves no process, so runs take turns on a GPU")
    with contextlib.ExitStack() as stack, contextlib.nullcontext() if serves else match:
        folder = mps.start(stack)
        (running,) = service.running()
        assert folder == (str(running) if serves else None)
    assert asked == [str(running)]


def test_a_long_folder_for_temporary_files(
    service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A socket's path has at most 108 characters."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with contextlib.ExitStack() as stack:
        assert len(str(mps.start(stack))) < 60


def test_without_a_service(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.refuse("not permitted")
    with (
        contextlib.ExitStack() as stack,
        pytest.warns(UserWarning, match=r"did not start \(not permitted\)"),
    ):
        assert mps.start(stack) is None
    assert mps.at_hand() is not None
    monkeypatch.setenv("PATH", "")
    with contextlib.ExitStack() as stack:
        assert mps.start(stack) is None
    assert mps.at_hand() is None
