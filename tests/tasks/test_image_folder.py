"""Folders of images of the user's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dynabro_cli import RunSpec, events, simulate
from dynabro_cli.errors import NotFoundError, SpecError
from dynabro_cli.resolve import REGISTRIES, resolve
from dynabro_cli.tasks import cifar10, mnist
from dynabro_cli.tasks._api import Images, TaskSetting

CLASSES = ("ant", "bee", "cat")


def write(
    root: Path, split: str, counts: dict[str, int], size: tuple[int, int] = (6, 5), seed: int = 0
) -> dict[str, np.ndarray]:
    """Write PNGs of random pixels, ``counts`` of them a class; return them by class, [n, h, w, 3]."""
    generator = np.random.Generator(np.random.PCG64(seed))
    written = {}
    for name, count in counts.items():
        folder = root / split / name
        folder.mkdir(parents=True)
        written[name] = generator.integers(256, size=(count, *size, 3), dtype=np.uint8)
        for index, picture in enumerate(written[name]):
            Image.fromarray(picture).save(folder / f"{index:02}.png")
    return written


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder with a data set called insects."""
    write(tmp_path / "insects", "train", dict.fromkeys(CLASSES, 4), seed=1)
    write(tmp_path / "insects", "test", {"ant": 1, "bee": 2, "cat": 1}, seed=2)
    return tmp_path


def load(folder: Path, text: str = "image-folder:name=insects") -> Images:
    images = REGISTRIES["tasks"].parse(text).build(TaskSetting(folder)).load()
    assert isinstance(images, Images)
    return images


def test_images_classes_and_labels(tmp_path: Path) -> None:
    train = write(tmp_path / "insects", "train", {"cat": 2, "ant": 3, "bee": 1}, seed=1)
    test = write(tmp_path / "insects", "test", {"ant": 1, "bee": 2, "cat": 1}, seed=2)
    images = load(tmp_path)
    assert images.train_labels.tolist() == [0, 0, 0, 1, 2, 2], "classes in alphabetical order"
    assert images.test_labels.tolist() == [0, 1, 1, 2]
    for got, written in ((images.train_images, train), (images.test_images, test)):
        expected = np.concatenate([written[name] for name in CLASSES])
        assert np.array_equal(got.permute(0, 2, 3, 1).numpy(), expected)
        assert got.dtype == torch.uint8
    assert vars(images.shape) == {"channels": 3, "height": 6, "width": 5, "classes": 3}


def test_normalisation_by_the_training_images(folder: Path) -> None:
    images = load(folder)
    values = images.train_images.double() / 255
    assert images.mean == pytest.approx(values.mean((0, 2, 3)).tolist(), rel=1e-12)
    assert images.std == pytest.approx([float(values[:, channel].std()) for channel in range(3)], rel=1e-12)
    assert not images.flip


def test_a_constant_channel_is_not_divided_by_zero(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / "black" / split / "a").mkdir(parents=True)
        Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / "black" / split / "a" / "0.png")
    assert load(tmp_path, "image-folder:name=black").std == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("like", "mean", "std", "flip"),
    [("cifar10", cifar10.MEAN, cifar10.STD, True), ("mnist", (0.1307,), (0.3081,), False)],
)
def test_like_another_task(like: str, mean: tuple[float, ...], std: tuple[float, ...], flip: bool, folder: Path) -> None:
    images = load(folder, f"image-folder:name=insects,like={like}")
    assert (images.mean, images.std, images.flip) == (mean, std, flip)
    source = resolve(RunSpec(task=like))
    ours = resolve(RunSpec(task=f"image-folder:name=insects,like={like}"))
    assert vars(ours.spec) == vars(source.spec) | {"task": f"image-folder:name=insects,like={like}"}


def test_settings_are_mnists_and_the_model_has_to_be_named(folder: Path) -> None:
    with pytest.raises(SpecError, match="has no default model; type --model NAME"):
        resolve(RunSpec(task="image-folder:name=insects"))
    spec = resolve(RunSpec(task="image-folder:name=insects", model="mlp")).spec
    assert (spec.workers, spec.budget, spec.batch_size) == (17, mnist.DEFAULTS.budget, mnist.DEFAULTS.batch_size)
    with pytest.raises(SpecError, match="'image-folder' needs name="):
        resolve(RunSpec(task="image-folder", model="mlp"))


@pytest.mark.parametrize("like", ["none", "cifar10", "mnist"])
def test_a_run(like: str, folder: Path) -> None:
    task = f"image-folder:name=insects,like={like}"
    spec = RunSpec(task=task, model="mlp:hidden=3", method="sgd", workers=3, budget=2, batch_size=12)
    stream = list(simulate(spec, data_dir=folder, device="cpu"))
    assert isinstance(stream[0], events.Started)
    assert stream[0].record["dimension"] == 90 * 3 + 3 + 3 * 3 + 3
    assert isinstance(stream[-1], events.Finished)
    with pytest.raises(SpecError, match="batch_size=13 is larger than the 12 training samples"):
        list(simulate(RunSpec(**vars(spec) | {"batch_size": 13}), data_dir=folder, device="cpu"))
    with pytest.raises(SpecError, match="'cnn-mnist' needs images of at least 16 x 16 pixels, and the task's are 6 x 5"):
        list(simulate(RunSpec(**vars(spec) | {"model": "cnn-mnist"}), data_dir=folder, device="cpu"))


def test_missing_folders(folder: Path) -> None:
    with pytest.raises(NotFoundError, match=f"no images under {folder}/wasps/train; .*--data-dir or DYNABRO_DATA"):
        load(folder, "image-folder:name=wasps")
    (folder / "insects" / "test").rename(folder / "insects" / "tests")
    with pytest.raises(NotFoundError, match=f"no images under {folder}/insects/test;"):
        load(folder)


def test_folders_without_images(folder: Path) -> None:
    for file in (folder / "insects" / "test" / "bee").iterdir():
        file.unlink()
    with pytest.raises(NotFoundError, match="no images under"):
        load(folder)
    (folder / "bare" / "train").mkdir(parents=True)
    with pytest.raises(NotFoundError, match=f"no images under {folder}/bare/train"):
        load(folder, "image-folder:name=bare")


def test_differing_classes(folder: Path) -> None:
    (folder / "insects" / "test" / "bee").rename(folder / "insects" / "test" / "wasp")
    with pytest.raises(NotFoundError, match="insects: the classes of train/ and test/ differ"):
        load(folder)


def test_differing_sizes(tmp_path: Path) -> None:
    write(tmp_path / "insects", "train", {"ant": 2})
    write(tmp_path / "insects", "test", {"ant": 2}, size=(5, 6))
    with pytest.raises(NotFoundError, match="insects: images of train/ and test/ differ in size"):
        load(tmp_path)
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(tmp_path / "insects" / "train" / "ant" / "09.png")
    with pytest.raises(NotFoundError, match=r"ant/09.png is \(9, 9\) where the first image is \(6, 5\)"):
        load(tmp_path)


def test_a_file_that_is_no_image(folder: Path) -> None:
    file = folder / "insects" / "train" / "bee" / "01.png"
    file.write_text("not a picture")
    with pytest.raises(NotFoundError, match=r"bee/01\.png"):
        load(folder)
