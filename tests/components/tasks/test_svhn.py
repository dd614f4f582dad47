"""SVHN from made-up files in its layout."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat
from torchvision.datasets import SVHN

from dynabro_cli import RunSpec, simulate
from dynabro_cli.components.tasks import svhn
from dynabro_cli.components.tasks._api import TaskSetting
from dynabro_cli.core.errors import NotFoundError
from dynabro_cli.core.events import Finished

TRAIN, TEST = 20, 11


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with a small SVHN; digits are 1, 2, ..., 10, 1, ..."""
    monkeypatch.setattr(svhn, "TRAIN_SIZE", TRAIN)
    monkeypatch.setattr(svhn, "TEST_SIZE", TEST)
    for split, count in (("train", TRAIN), ("test", TEST)):
        write(tmp_path, split, count)
        name = f"{split}_32x32.mat"
        md5 = hashlib.md5((tmp_path / "SVHN" / name).read_bytes()).hexdigest()
        monkeypatch.setitem(SVHN.split_list, split, ["", name, md5])
    return tmp_path


def write(root: Path, split: str, count: int, step: int = 1) -> None:
    (root / "SVHN").mkdir(exist_ok=True)
    pictures = np.random.default_rng(count).integers(256, size=(32, 32, 3, count), dtype=np.uint8)
    digits = (np.arange(count) % 10 + 1).astype(np.uint8)[:, None]
    savemat(root / "SVHN" / f"{split}_32x32.mat", {"X": pictures, "y": digits[::step]})


def test_pictures_and_digits(folder: Path) -> None:
    pictures = np.random.default_rng(TRAIN).integers(256, size=(32, 32, 3, TRAIN), dtype=np.uint8)
    images = svhn.svhn(svhn.NoParameters(), TaskSetting(folder)).load()
    assert images.train_images.shape == (TRAIN, 3, 32, 32)
    assert images.train_images[3, 2, 5, 7] == pictures[5, 7, 2, 3]
    assert images.train_labels[:11].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert len(images.test_labels) == TEST
    assert not images.flip


@pytest.mark.thorough
def test_a_run_with_resnet18(folder: Path) -> None:
    spec = RunSpec(
        task="svhn", workers=3, byzantine=1, budget=1, batch_size=2, method="sgd", eval_every=1
    )
    assert isinstance(list(simulate(spec, data_dir=folder, compile="off"))[-1], Finished)


@pytest.mark.parametrize("damage", ["missing", "short", "text", "other labels"])
def test_bad_files(folder: Path, damage: str) -> None:
    file = folder / "SVHN" / "test_32x32.mat"
    if damage == "missing":
        file.unlink()
    elif damage == "text":
        file.write_text("not a table")
    elif damage == "other labels":
        write(folder, "test", TEST, -1)
    else:
        write(folder, "test", TEST - 1)
    with pytest.raises(
        NotFoundError,
        match=r"task=svhn: .*test_32x32.mat cannot be read \(",
    ):
        svhn.svhn(svhn.NoParameters(), TaskSetting(folder)).load()


def test_another_file_is_not_unpacked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte of it may be a gigabyte of zeros."""
    write(folder, "train", TRAIN, -1)
    unpacked: list[object] = []
    monkeypatch.setattr("scipy.io.loadmat", lambda file, **_: unpacked.append(file))
    with pytest.raises(NotFoundError, match=r"train_32x32.mat cannot be read \(its content is not"):
        svhn.svhn(svhn.NoParameters(), TaskSetting(folder)).load()
    assert not unpacked
