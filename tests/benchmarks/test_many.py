"""Several runs on one GPU with CUDA's multi-process service, whose control program is a script here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import many
from benchmarks.gpu.steps import How

CONTROL = """#!/bin/sh
[ -d "$CUDA_MPS_PIPE_DIRECTORY" ] && [ -d "$CUDA_MPS_LOG_DIRECTORY" ] || exit 3
[ "$1" = -d ] && echo "start $CUDA_MPS_PIPE_DIRECTORY" >> "$SAID" && exit "$CODE"
echo "$(cat) $CUDA_MPS_PIPE_DIRECTORY" >> "$SAID"
"""


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a control program on the path; return the file of the commands that it gets."""
    program = tmp_path / "bin" / "nvidia-cuda-mps-control"
    program.parent.mkdir()
    program.write_text(CONTROL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(program.parent), os.environ["PATH"]]))
    monkeypatch.setenv("SAID", str(tmp_path / "said"))
    monkeypatch.setenv("CODE", "0")
    return tmp_path / "said"


def told(said: Path) -> list[str]:
    """Return the first words of each command that the control program received."""
    return [line.split()[0] for line in said.read_text().splitlines()]


def test_the_service_ends_with_what_it_is_for(tmp_path: Path, said: Path) -> None:
    with many._mps(tmp_path) as environment:
        assert told(said) == ["start"]
    assert told(said) == ["start", "quit"]
    assert {line.split()[1] for line in said.read_text().splitlines()} == {environment["CUDA_MPS_PIPE_DIRECTORY"]}


def test_the_service_ends_after_an_error(tmp_path: Path, said: Path) -> None:
    with pytest.raises(KeyError), many._mps(tmp_path):
        raise KeyError
    assert told(said) == ["start", "quit"]


def test_a_service_that_does_not_start_is_an_error(tmp_path: Path, said: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODE", "1")
    with pytest.raises(subprocess.CalledProcessError, match="nvidia-cuda-mps-control"), many._mps(tmp_path):
        pass
    assert told(said) == ["start"]


@pytest.mark.parametrize("shared", [False, True])
def test_the_processes_of_the_sweep_use_the_service(shared: bool, said: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, sweeps = subprocess.run, []

    def instead(command: list[str], **options: Any) -> Any:
        if command[0] != sys.executable:
            return run(command, **options)
        sweeps.append((command, options["env"], told(said) if shared else []))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(many.subprocess, "run", instead)
    found = many._jobs(4, How("cuda", None, False), lambda: "data", shared)
    ((command, environment, before),) = sweeps
    assert command[command.index("--jobs-per-gpu") + 1] == "4"
    assert found["runs"] == 8
    assert environment["CUDA_MPS_PIPE_DIRECTORY"].endswith("/none") is not shared
    assert before == (["start"] if shared else [])
    assert not said.exists() or told(said) == ["start", "quit"]


@pytest.mark.parametrize(("device", "there", "checks"), [("cuda", True, 3), ("cuda", False, 0), ("cpu", True, 0)])
def test_the_service_is_tried_where_it_is(
    device: str, there: bool, checks: int, said: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not there:
        monkeypatch.setattr(shutil, "which", lambda name: None)
    names = [check.name for check in many.jobs(How(device, None, False))]
    assert sum("MPS" in name for name in names) == checks
    assert len(names) == 5 + checks
