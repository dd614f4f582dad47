"""Folders of images of the user's own."""

from __future__ import annotations

import os
import shutil
import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dynabro_cli import RunSpec, simulate
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.components.tasks import _api, cifar10, mnist
from dynabro_cli.components.tasks._api import Images, TaskSetting
from dynabro_cli.core import events
from dynabro_cli.core.errors import NotFoundError, SpecError
from dynabro_cli.experiment.resolve import resolve

CLASSES = ("ant", "bee", "cat")


def write(
    root: Path, split: str, counts: dict[str, int], size: tuple[int, int] = (6, 5), seed: int = 0
) -> dict[str, np.ndarray]:
    """Write PNGs of random pixels, ``counts`` of them a class; return them by class, [n, h, w,
    3].
    """
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
    assert images.std == pytest.approx(
        [float(values[:, channel].std()) for channel in range(3)], rel=1e-12
    )
    assert not images.flip


def test_a_constant_channel_is_not_divided_by_zero(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / "black" / split / "a").mkdir(parents=True)
        Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(
            tmp_path / "black" / split / "a" / "0.png"
        )
    assert load(tmp_path, "image-folder:name=black").std == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("like", "mean", "std", "flip"),
    [("cifar10", cifar10.MEAN, cifar10.STD, True), ("mnist", (0.1307,), (0.3081,), False)],
)
def test_like_another_task(
    like: str, mean: tuple[float, ...], std: tuple[float, ...], flip: bool, folder: Path
) -> None:
    images = load(folder, f"image-folder:name=insects,like={like}")
    assert (images.mean, images.std, images.flip) == (mean, std, flip)
    source = resolve(RunSpec(task=like))
    ours = resolve(RunSpec(task=f"image-folder:name=insects,like={like}"))
    assert vars(ours.spec) == vars(source.spec) | {"task": f"image-folder:name=insects,like={like}"}


def test_settings_are_mnists_and_the_model_has_to_be_named(folder: Path) -> None:
    with pytest.raises(SpecError, match=r"has no default model. Try: --model NAME"):
        resolve(RunSpec(task="image-folder:name=insects"))
    spec = resolve(RunSpec(task="image-folder:name=insects", model="mlp")).spec
    assert (spec.workers, spec.budget, spec.batch_size) == (
        17,
        mnist.DEFAULTS.budget,
        mnist.DEFAULTS.batch_size,
    )
    with pytest.raises(SpecError, match="'image-folder' needs name="):
        resolve(RunSpec(task="image-folder", model="mlp"))


@pytest.mark.parametrize("like", ["none", "cifar10", "mnist"])
def test_a_run(like: str, folder: Path) -> None:
    task = f"image-folder:name=insects,like={like}"
    spec = RunSpec(
        task=task, model="mlp:hidden=3", method="sgd", workers=3, budget=2, batch_size=12
    )
    stream = list(simulate(spec, data_dir=folder, device="cpu"))
    assert isinstance(stream[0], events.Started)
    assert stream[0].record["dimension"] == 90 * 3 + 3 + 3 * 3 + 3
    assert isinstance(stream[-1], events.Finished)
    with pytest.raises(SpecError, match="batch_size=13 is larger than the 12 training samples"):
        list(simulate(RunSpec(**vars(spec) | {"batch_size": 13}), data_dir=folder, device="cpu"))
    with pytest.raises(
        SpecError,
        match="'cnn-mnist' needs images of at least 16 x 16 pixels, but the task's are 6 x 5",
    ):
        list(
            simulate(RunSpec(**vars(spec) | {"model": "cnn-mnist"}), data_dir=folder, device="cpu")
        )


def test_missing_folders(folder: Path) -> None:
    with pytest.raises(
        NotFoundError, match=f"no images under {folder}/wasps/train; .*--data-dir or DYNABRO_DATA"
    ):
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
    with pytest.raises(
        NotFoundError,
        match="insects: the classes of train/ and test/ differ: train/ has 'bee', and test/ does",
    ):
        load(folder)


def test_differing_sizes(tmp_path: Path) -> None:
    write(tmp_path / "insects", "train", {"ant": 2})
    write(tmp_path / "insects", "test", {"ant": 2}, size=(5, 6))
    first = (
        r"but the first image is \(6, 5\) \(.*/train/ant/00.png\). Try: images of one "
        r"size, or .* size=5"
    )
    with pytest.raises(NotFoundError, match=rf"/test/ant/00.png is \(5, 6\), {first}"):
        load(tmp_path)
    shutil.rmtree(tmp_path / "insects" / "test")
    write(tmp_path / "insects", "test", {"ant": 2})
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(
        tmp_path / "insects" / "train" / "ant" / "09.png"
    )
    with pytest.raises(NotFoundError, match=rf"train/ant/09.png is \(9, 9\), {first}"):
        load(tmp_path)


def test_images_are_resized(tmp_path: Path) -> None:
    """Bilinear: two by two pixels become their mean; and a picture of another shape is
    stretched.
    """
    for split in ("train", "test"):
        (tmp_path / "grey" / split / "a").mkdir(parents=True)
        Image.fromarray(np.array([[0, 0, 40, 40]] * 4, np.uint8)).save(
            tmp_path / "grey" / split / "a" / "0.PNG"
        )
        Image.fromarray(np.full((6, 2), 90, np.uint8)).save(
            tmp_path / "grey" / split / "a" / "1.png"
        )
    images = load(tmp_path, "image-folder:name=grey,size=2")
    # weights 3, 3, 1 of the pixels that the filter covers
    assert images.train_images[0, 0].tolist() == [[6, 34]] * 2
    assert images.test_images[1].unique().tolist() == [90]
    run = resolve(RunSpec(task="image-folder:name=grey,size=2", model="mlp"))
    assert run.key != resolve(RunSpec(task="image-folder:name=grey", model="mlp")).key
    assert vars(run.with_data(tmp_path).parts.task.look()[0]) == {
        "channels": 3,
        "height": 2,
        "width": 2,
        "classes": 1,
    }  # type: ignore[misc]


def test_hidden_files_and_folders_do_not_count(folder: Path) -> None:
    before = load(folder)
    for place in ("train", "train/bee", "test", "test/bee"):
        (folder / "insects" / place / ".ipynb_checkpoints").mkdir()
        shutil.copy(
            folder / "insects" / "train" / "ant" / "00.png",
            folder / "insects" / place / ".ipynb_checkpoints",
        )
    (folder / "insects" / "train" / "bee" / "._00.png").write_bytes(b"\0\5\x16\7")
    for name in ("Thumbs.db", ".DS_Store"):
        (folder / "insects" / "train" / name).write_bytes(b"index")
        (folder / "insects" / "train" / "bee" / name).write_bytes(b"index")
    after = load(folder)
    assert after.train_images.equal(before.train_images)
    assert (after.test_labels.tolist(), after.shape) == (before.test_labels.tolist(), before.shape)


@pytest.mark.parametrize(
    ("pixels", "name", "mode"),
    [
        (np.full((6, 5), 40_000, np.uint16), "00.png", "I;16"),
        (np.full((6, 5), 40_000, np.uint16), "00.tif", "I;16"),
        (np.full((6, 5), 40_000, np.int32), "00.tif", "I"),
        (np.full((6, 5), 0.5, np.float32), "00.tif", "F"),
    ],
)
def test_pixels_of_more_bits_are_refused(
    pixels: np.ndarray, name: str, mode: str, folder: Path
) -> None:
    (folder / "insects" / "train" / "bee" / "00.png").unlink()
    Image.fromarray(pixels).save(folder / "insects" / "train" / "bee" / name)
    refused(
        folder,
        rf"train/bee/{name} has pixels of mode {mode}, and only 8 bits are read. Try: save it "
        rf"with 8 bits",
    )


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK"])
def test_pixels_of_8_bits_are_converted(mode: str, folder: Path) -> None:
    name = "00.tif" if mode == "CMYK" else "00.png"
    (folder / "insects" / "train" / "ant" / "00.png").unlink()
    Image.new("RGB", (5, 6), "white").convert(mode).save(
        folder / "insects" / "train" / "ant" / name
    )
    assert load(folder).train_images[0].unique().tolist() == [255]


def test_a_gif_counts_with_its_first_frame(folder: Path) -> None:
    frames = [Image.new("L", (5, 6), grey) for grey in (70, 200)]
    frames[0].save(
        folder / "insects" / "train" / "ant" / "000.gif", save_all=True, append_images=frames[1:]
    )
    images = load(folder)
    assert len(images.train_images) == 13
    assert images.train_images[1].unique().tolist() == [70]  # after 00.png


def test_a_folder_has_one_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [
        "insects",
        "insects/",
        "./insects",
        ".//insects/.",
        f"../{folder.name}/insects",
        "a/../insects",
        '"insects"',
    ]
    runs = [
        resolve(RunSpec(task=f"image-folder:name={text}", model="mlp"), folder) for text in texts
    ]
    assert {run.spec.task for run in runs} == {"image-folder:name=insects"}
    assert {run.key for run in runs} == {
        resolve(RunSpec(task="image-folder:name=insects", model="mlp")).key
    }
    (folder / "elsewhere" / "deep").mkdir(parents=True)
    (folder / "a").symlink_to(folder / "elsewhere" / "deep")
    # another folder, or its whole path
    for text in ("a/../insects", "../insects", str(folder / "insects")):
        assert resolve(
            RunSpec(task=f"image-folder:name={text}", model="mlp"), folder
        ).spec.task.endswith(f"={text}")


def test_a_file_that_is_no_image(folder: Path) -> None:
    file = folder / "insects" / "train" / "bee" / "01.png"
    file.write_text("not a picture")
    with pytest.raises(NotFoundError, match=r"bee/01\.png"):
        load(folder)


def refused(folder: Path, why: str) -> None:
    with pytest.raises(NotFoundError, match=why) as error:
        load(folder)
    assert len(str(error.value).splitlines()) == 1


def test_a_link_out_of_the_folder_is_followed(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    Image.fromarray(np.zeros((6, 5, 3), np.uint8)).save(elsewhere / "more.png")
    train = folder / "insects" / "train"
    (train / "bee" / "99.png").symlink_to(elsewhere / "more.png")
    (train / "cat" / "others").symlink_to(elsewhere)
    assert load(folder).train_labels.tolist() == [0] * 4 + [1] * 5 + [2] * 5


def test_links_within_the_folder_and_to_it_are_followed(folder: Path) -> None:
    train = folder / "insects" / "train"
    (train / "bee" / "also.png").symlink_to(train / "bee" / "00.png")
    (train / "bee" / "again").symlink_to(train / "ant")
    (folder / "bugs").symlink_to(folder / "insects")
    images = load(folder, "image-folder:name=bugs")
    assert images.train_labels.tolist() == [0] * 4 + [1] * 9 + [2] * 4


@pytest.mark.parametrize("target", [".", "..", "../..", "loop"])
def test_a_link_that_never_ends_is_refused(target: str, folder: Path) -> None:
    (folder / "insects" / "train" / "bee" / "loop").symlink_to(target)
    refused(folder, "/bee/loop.* is a link to a folder that it is in|no images under")


@pytest.mark.timeout(60)
def test_a_fifo_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "insects" / "train" / "bee" / "99.png")
    refused(folder, r"bee/99.png cannot be read as an image \(it is not a regular file\)")


def png(width: int, height: int) -> bytes:
    """The beginning of a PNG that says so of its size, with a few bytes of pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(bytes(1000)))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("name", ["00.png", "02.png"])
@pytest.mark.parametrize("size", [(4097, 4096), (60_000, 60_000)])
def test_a_decompression_bomb_is_not_decoded(
    name: str, size: tuple[int, int], folder: Path
) -> None:
    (folder / "insects" / "train" / "ant" / name).write_bytes(png(*size))
    tracemalloc.start()
    refused(
        folder, f"ant/{name} cannot be read as an image|ant/{name} is .*, but the first image is"
    )
    assert tracemalloc.get_traced_memory()[1] < 100e6
    tracemalloc.stop()


def test_images_that_do_not_fit_into_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_api, "free_host_memory", lambda: 16 * 90 * _api.COPIES)
    assert len(load(folder).train_images) == 12
    monkeypatch.setattr(_api, "free_host_memory", lambda: 16 * 90 * _api.COPIES - 1)
    refused(
        folder,
        "insects: its images need about .* GB of memory, and .* GB are free; make them smaller "
        "or fewer",
    )


def test_only_images_are_opened_whatever_they_are_called(folder: Path) -> None:
    """PostScript is a program, which the library would hand to another one."""
    (folder / "insects" / "train" / "bee" / "01.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 6\n"
    )
    refused(folder, "bee/01.png cannot be read as an image")
