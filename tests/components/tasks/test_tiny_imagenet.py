"""Tiny ImageNet from made-up files in its layout."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dynabro_cli import RunSpec, simulate
from dynabro_cli.components.tasks import tiny_imagenet
from dynabro_cli.components.tasks._api import Images, TaskSetting
from dynabro_cli.core.errors import NotFoundError
from dynabro_cli.core.events import Finished
from dynabro_cli.core.registration import NoParameters

CLASSES = ("n01", "n02", "n03")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three classes of two training pictures, each of one grey; the test pictures have the classes
    n03, n01; one is grey.
    """
    root = tmp_path / "tiny-imagenet-200"
    for number, name in enumerate(CLASSES):
        (root / "train" / name / "images").mkdir(parents=True)
        (root / "train" / name / f"{name}_boxes.txt").write_text("boxes")
        for index in range(2):
            save(root / "train" / name / "images" / f"{name}_{index}.JPEG", 40 * number + index)
    (root / "val" / "images").mkdir(parents=True)
    save(root / "val" / "images" / "val_0.JPEG", 200)
    Image.fromarray(np.full((64, 64), 100, dtype=np.uint8)).save(
        root / "val" / "images" / "val_1.JPEG"
    )
    (root / "val" / "val_annotations.txt").write_text(
        "val_0.JPEG\tn03\t0\t0\t62\t62\nval_1.JPEG\tn01\t0\t0\t62\t62\n"
    )
    for name, value in (("CLASSES", 3), ("TRAIN_SIZE", 6), ("TEST_SIZE", 2)):
        monkeypatch.setattr(tiny_imagenet, name, value)
    return tmp_path


def save(path: Path, grey: int) -> None:
    Image.fromarray(np.full((64, 64, 3), grey, dtype=np.uint8)).save(path, quality=95)


def load(folder: Path) -> Images:
    images = tiny_imagenet.tiny_imagenet(NoParameters(), TaskSetting(folder)).load()
    assert isinstance(images, Images)
    return images


def test_pictures_and_classes(folder: Path) -> None:
    images = load(folder)
    assert images.train_images.shape == (6, 3, 64, 64)
    assert images.train_images[:, 0, 0, 0].tolist() == [0, 1, 40, 41, 80, 81]
    assert images.train_labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert images.test_images[:, :, 9, 9].tolist() == [[200] * 3, [100] * 3]
    assert images.test_labels.tolist() == [2, 0]
    assert images.flip


@pytest.mark.thorough  # tests/components/tasks/test_svhn.py has a quick one
def test_a_run_with_resnet18(folder: Path) -> None:
    spec = RunSpec(
        task="tiny-imagenet",
        workers=3,
        byzantine=1,
        budget=1,
        batch_size=1,
        method="sgd",
        eval_every=1,
    )
    assert isinstance(list(simulate(spec, data_dir=folder, compile="off"))[-1], Finished)


def test_bad_folders(folder: Path) -> None:
    with pytest.raises(NotFoundError, match="unpack tiny-imagenet-200"):
        load(folder / "elsewhere")
    root = folder / "tiny-imagenet-200"
    (root / "train" / "n01" / "images" / "n01_0.JPEG").unlink()
    with pytest.raises(NotFoundError, match="has 5 training and 2 test pictures in 3 classes"):
        load(folder)
    annotations = root / "val" / "val_annotations.txt"
    annotations.write_text("val_0.JPEG\tn99\n")
    with pytest.raises(NotFoundError, match="cannot be read"):
        load(folder)
    os.truncate(annotations, 1 << 40)
    with pytest.raises(NotFoundError, match=r"cannot be read \(it is larger than"):
        load(folder)
    annotations.unlink()
    os.mkfifo(annotations)
    with pytest.raises(NotFoundError, match=r"cannot be read \(it is not a regular file"):
        load(folder)
