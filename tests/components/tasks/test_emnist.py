"""EMNIST: made-up files in torchvision's layout, its transposed images and the classes of its
splits.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import datasets

from dynabro_cli import RunSpec, simulate
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.components.tasks import emnist
from dynabro_cli.components.tasks._api import Images, TaskSetting
from dynabro_cli.core import events
from dynabro_cli.core.errors import NotFoundError, SpecError
from tests.components.tasks.test_torchvision import idx, pixels

TRAIN, TEST = 130, 60


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The published numbers of samples are tested by themselves."""
    small = {name: split._replace(train=TRAIN, test=TEST) for name, split in emnist.SPLITS.items()}
    monkeypatch.setattr(emnist, "SPLITS", small)


def write(root: Path, split: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Files of one split, with every class that it has, numbered like the real ones: letters from
    1.
    """
    folder = root / "EMNIST" / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for part, count, seed in (("train", TRAIN, 1), ("test", TEST, 2)):
        images, _ = pixels(count, (28, 28), seed)
        labels = np.arange(count) % emnist.SPLITS[split].classes + (split == "letters")
        (folder / f"emnist-{split}-{part}-images-idx3-ubyte").write_bytes(idx(images))
        (folder / f"emnist-{split}-{part}-labels-idx1-ubyte").write_bytes(idx(labels))
        written[part] = images, labels
    return written


def load(root: Path, text: str) -> Images:
    images = REGISTRIES["tasks"].parse(text).build(TaskSetting(root)).load()
    assert isinstance(images, Images)
    return images


@pytest.mark.parametrize("split", emnist.SPLITS)
def test_images_are_upright_and_classes_begin_at_zero(split: str, tmp_path: Path) -> None:
    written = write(tmp_path, split)
    images = load(tmp_path, f"emnist:split={split}")
    for got, labels, part in (
        (images.train_images, images.train_labels, "train"),
        (images.test_images, images.test_labels, "test"),
    ):
        pictures, classes = written[part]
        assert (got.dtype, labels.dtype, got.is_contiguous()) == (torch.uint8, torch.int64, True)
        assert np.array_equal(got[:, 0].numpy(), pictures.transpose(0, 2, 1))
        assert np.array_equal(labels.numpy(), classes - (split == "letters"))
    assert int(images.train_labels.min()) == 0
    assert int(images.train_labels.max()) == images.shape.classes - 1
    assert (images.mean, images.std, images.flip) == ((0.1307,), (0.3081,), False)


def test_the_default_is_balanced(tmp_path: Path) -> None:
    write(tmp_path, "balanced")
    assert load(tmp_path, "emnist").shape.classes == 47


@pytest.mark.parametrize("split", emnist.SPLITS)
def test_torchvision_has_the_split_and_as_many_classes(split: str) -> None:
    assert split in datasets.EMNIST.splits
    names = [name for name in datasets.EMNIST.classes_split_dict[split] if name != "N/A"]
    assert len(names) == emnist.SPLITS[split].classes


def test_every_split_of_torchvisions() -> None:
    assert set(emnist.SPLITS) == set(datasets.EMNIST.splits)


def test_published_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cohen et al. (2017), Table 2, with letters as in the files."""
    monkeypatch.undo()
    totals = {name: split.train + split.test for name, split in emnist.SPLITS.items()}
    assert totals == {
        "balanced": 131_600,
        "letters": 145_600,
        "digits": 280_000,
        "mnist": 70_000,
        "bymerge": 814_255,
        "byclass": 814_255,
    }


def test_one_split_is_there_and_another_is_not(tmp_path: Path) -> None:
    write(tmp_path, "digits")
    with pytest.raises(
        NotFoundError, match=r"EMNIST was not found under .* could not be downloaded"
    ):
        load(tmp_path, "emnist:split=letters")


def test_an_unknown_split() -> None:
    with pytest.raises(
        SpecError, match="split=lettres is not legal; split must be balanced or letters or "
    ):
        REGISTRIES["tasks"].parse("emnist:split=lettres")


def test_a_whole_run(tmp_path: Path) -> None:
    write(tmp_path, "letters")
    spec = RunSpec(
        task="emnist:split=letters",
        model="logistic",
        method="sgd",
        budget=2,
        batch_size=4,
        data="sorted",
    )
    started, *_, last = simulate(spec, device="cpu", data_dir=tmp_path)
    assert isinstance(started, events.Started)
    assert started.record["dimension"] == 784 * 26 + 26
    assert {label for _, label, _ in started.labels} == set(range(26))
    assert isinstance(last, events.Finished)
