"""The digits of scikit-learn, and their fixed split."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits

from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.components.tasks import digits
from dynabro_cli.components.tasks._api import Images, Task, TaskSetting
from dynabro_cli.core.errors import NotFoundError


def task() -> Task:
    built: Task = REGISTRIES["tasks"].parse("digits").build(TaskSetting(Path("nowhere")))
    return built


def load() -> Images:
    images = task().load()
    assert isinstance(images, Images)
    return images


def test_sizes_and_types() -> None:
    images = load()
    assert images.train_images.shape == (1437, 1, 8, 8)
    assert images.test_images.shape == (360, 1, 8, 8)
    assert images.train_labels.shape == (1437,)
    assert images.test_labels.shape == (360,)
    assert images.train_images.dtype == images.test_images.dtype == torch.uint8
    assert images.train_labels.dtype == images.test_labels.dtype == torch.int64
    assert (images.shape, 1437) == (task().shape, task().train_size)
    assert (int(images.train_images.min()), int(images.train_images.max()), images.scale) == (
        0,
        16,
        16.0,
    )
    assert not images.flip


def test_unit_inputs_are_the_pixels_in_0_to_1() -> None:
    """And the run with the default keeps the key that it had before there was a choice."""
    task = REGISTRIES["tasks"].parse("digits:inputs=unit").build(TaskSetting(Path("nowhere")))
    images = task.load()
    assert torch.equal(images.train_images, load().train_images)
    assert (images.mean, images.std, images.scale) == ((0.0,), (1.0,), 16.0)
    assert REGISTRIES["tasks"].parse("digits:inputs=normalised").mapping == {"name": "digits"}


def test_normalisation_is_that_of_the_training_images() -> None:
    images = load()
    grey = images.train_images.double() / images.scale
    assert images.mean == (round(float(grey.mean()), 3),)
    assert images.std == (round(float(grey.std()), 3),)


def test_the_split_is_stratified() -> None:
    images = load()
    train, test = images.train_labels.bincount(), images.test_labels.bincount()
    share = (train + test) * 1437 / 1797
    assert float((train - share).abs().max()) <= 1


def test_the_split_is_a_partition() -> None:
    images = load()
    rows = torch.cat(
        [
            torch.cat([pixels.flatten(1).long(), labels[:, None]], 1)
            for pixels, labels in (
                (images.train_images, images.train_labels),
                (images.test_images, images.test_labels),
            )
        ]
    )
    data = load_digits()
    every = torch.cat(
        [torch.from_numpy(data.data).long(), torch.from_numpy(data.target).long()[:, None]], 1
    )
    assert sorted(rows.tolist()) == sorted(every.tolist())


def test_the_split_is_fixed() -> None:
    """Another split would make stored accuracies incomparable with new ones."""
    images = load()
    digests = [
        hashlib.sha256(part.numpy().tobytes()).hexdigest()[:16]
        for part in (images.train_labels, images.test_labels)
    ]
    assert digests == ["c1281028e5251b91", "4493b2052e7b4258"]
    assert (
        hashlib.sha256(images.train_images.numpy().tobytes()).hexdigest()[:16] == "5760f944f9d45833"
    )
    assert torch.equal(images.train_images, load().train_images)


def test_a_missing_file_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "find_spec", lambda _: None)
    with pytest.raises(
        NotFoundError,
        match=r"^task=digits: scikit-learn's digits cannot be read \(.*Try: pip install",
    ):
        task().load()
