"""The task ``npz`` and files that are larger than they look."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from dynabro_cli.components.tasks import _api
from dynabro_cli.core.errors import NotFoundError
from dynabro_cli.experiment.data import read
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.experiment.spec import RunSpec

SAMPLES = 8
SIZE = 2 * 128 + SAMPLES * 9 + SAMPLES * 8
"""Bytes of both arrays with their headers."""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    x, y = np.zeros((SAMPLES, 3, 3), np.uint8), np.arange(SAMPLES) % 2
    np.savez_compressed("d.npz", X=x, y=y, unused=np.zeros(10**6))
    return tmp_path / "d.npz"


def load() -> None:
    run = resolve(RunSpec(task="npz:file=d.npz", model="logistic", budget=3))
    read(run.task, Path.cwd(), run.parts.task)


def test_arrays_that_do_not_fit_into_memory_are_refused_unread(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check counts the unpacked sizes of the arrays that the task uses."""
    monkeypatch.setattr(_api, "free_host_memory", lambda: SIZE * _api.COPIES)
    load()
    monkeypatch.setattr(_api, "free_host_memory", lambda: SIZE * _api.COPIES - 1)
    monkeypatch.setattr(
        zipfile.ZipExtFile, "read", lambda *_: pytest.fail("the content has been read")
    )
    problem = r"task=npz: .*d.npz: its arrays need about 0.0 GB of memory, and 0.0 GB are free; "
    with pytest.raises(NotFoundError, match=problem):
        load()


def test_numbers_that_do_not_fit_into_memory_in_double_precision_are_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed("d.npz", X=np.zeros((SAMPLES, 900), bool), y=np.arange(SAMPLES) % 2)
    enough = SAMPLES * 901 * 8 * _api.COPIES
    monkeypatch.setattr(_api, "free_host_memory", lambda: enough)
    load()
    monkeypatch.setattr(_api, "free_host_memory", lambda: enough - 1)
    with pytest.raises(NotFoundError, match=r"its numbers need about 0.0 GB of memory"):
        load()
