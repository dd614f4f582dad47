"""CUDA's multi-process service, with a program in the place of its control program."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dynabro_cli.machine import mps
from tests.machine.fake_mps import Service

PROGRAM = """
import contextlib, os, sys
from dynabro_cli.machine import mps
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
        assert mps.start(stack) == str(service.usual)
        monkeypatch.setenv(mps.FOLDER, str(tmp_path))
        assert mps.start(stack) == mps.at_hand() == str(tmp_path)
    monkeypatch.delenv(mps.FOLDER)
    assert [folder for _, folder in service.started()] == service.running() == [service.usual]


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
