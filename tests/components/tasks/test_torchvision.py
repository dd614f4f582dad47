"""Data sets in torchvision's layout: found, missing and damaged, without a network."""

from __future__ import annotations

import hashlib
import pickle
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import datasets

from dynabro_cli import RunSpec, simulate
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.components.tasks import cifar10, cifar100, fashion_mnist, mnist
from dynabro_cli.components.tasks._api import Images, TaskSetting, digest_of, digest_of_all
from dynabro_cli.components.tasks._torchvision import load_splits
from dynabro_cli.core import events
from dynabro_cli.core.errors import NotFoundError

TRAIN, TEST = 12, 5


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Disable the network: every look-up of a host fails, and is noted."""
    asked: list[Any] = []

    def refuse(address: Any, *_: Any, **__: Any) -> Any:
        asked.append(address)
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.delenv("DYNABRO_DATA", raising=False)
    return asked


def idx(array: np.ndarray) -> bytes:
    """MNIST's file format: magic number, big-endian dimensions, bytes."""
    head = [0x0800 + array.ndim, *array.shape]
    return b"".join(number.to_bytes(4, "big") for number in head) + array.astype(np.uint8).tobytes()


def pixels(count: int, shape: tuple[int, ...], seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.Generator(np.random.PCG64(seed))
    return generator.integers(256, size=(count, *shape), dtype=np.uint8), generator.integers(
        10, size=count
    )


def write_mnist(
    root: Path, name: str = "MNIST", train: int = TRAIN, test: int = TEST
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    folder = root / name / "raw"
    folder.mkdir(parents=True)
    splits = {"train": pixels(train, (28, 28), 1), "t10k": pixels(test, (28, 28), 2)}
    for split, (images, labels) in splits.items():
        (folder / f"{split}-images-idx3-ubyte").write_bytes(idx(images))
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(idx(labels))
    return splits


def publish(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    """Let the files in ``root`` be the published ones of MNIST and Fashion-MNIST."""
    for module, name in ((mnist, "MNIST"), (fashion_mnist, "FashionMNIST")):
        files = sorted((root / name / "raw").glob("*-ubyte"))
        monkeypatch.setattr(
            module,
            "CHECKSUMS",
            [(file.name, hashlib.md5(file.read_bytes()).hexdigest()) for file in files],
        )
    if (root / "MNIST").exists():
        parts = load_splits("MNIST", root, TRAIN, TEST)
        digests = [digest_of(array) for split in parts for array in split]
        monkeypatch.setattr(mnist, "DIGEST", digest_of_all(digests))


def write_cifar(
    root: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, label_key: str
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Pickles in CIFAR's layout; the published checksums belong to the real files, so they are
    dropped.
    """
    for name in ("train_list", "test_list"):
        monkeypatch.setattr(kind, name, [[file, None] for file, _ in getattr(kind, name)])
    monkeypatch.setattr(kind, "meta", kind.meta | {"md5": None})
    folder = root / kind.base_folder
    folder.mkdir(parents=True)
    splits = {"train": pixels(TRAIN, (3, 32, 32), 3), "test": pixels(TEST, (3, 32, 32), 4)}
    for files, (images, labels) in (
        (kind.train_list, splits["train"]),
        (kind.test_list, splits["test"]),
    ):
        parts = zip(
            np.array_split(images, len(files)), np.array_split(labels, len(files)), strict=True
        )
        for (file, _), (part, classes) in zip(files, parts, strict=True):
            entry = {"data": part.reshape(len(part), -1), label_key: classes.tolist()}
            (folder / file).write_bytes(pickle.dumps(entry))
    (folder / kind.meta["filename"]).write_bytes(
        pickle.dumps({kind.meta["key"]: [str(number) for number in range(10)]})
    )
    return splits


def load(task: str, root: Path) -> Images:
    images = REGISTRIES["tasks"].parse(task).build(TaskSetting(root)).load()
    assert isinstance(images, Images)
    return images


@pytest.mark.parametrize(
    ("task", "module", "name", "mean", "std"),
    [
        ("mnist", mnist, "MNIST", 0.1307, 0.3081),
        ("fashion-mnist", fashion_mnist, "FashionMNIST", 0.2860, 0.3530),
    ],
)
def test_grey_pictures(
    task: str,
    module: Any,
    name: str,
    mean: float,
    std: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    calls: list[Any],
) -> None:
    monkeypatch.setattr(module, "TRAIN_SIZE", TRAIN)
    monkeypatch.setattr(module, "TEST_SIZE", TEST)
    splits = write_mnist(tmp_path, name)
    publish(monkeypatch, tmp_path)
    images = load(task, tmp_path)
    assert images.train_images.shape == (TRAIN, 1, 28, 28)
    assert (images.train_images.dtype, images.train_labels.dtype) == (torch.uint8, torch.int64)
    for got, labels, split in (
        (images.train_images, images.train_labels, "train"),
        (images.test_images, images.test_labels, "t10k"),
    ):
        assert np.array_equal(got[:, 0].numpy(), splits[split][0])
        assert np.array_equal(labels.numpy(), splits[split][1])
    assert (images.mean, images.std, images.scale, images.flip) == ((mean,), (std,), 255.0, False)
    assert images.shape == mnist.SHAPE
    assert calls == []


@pytest.mark.parametrize(
    ("task", "module", "kind", "key", "classes"),
    [
        ("cifar10", cifar10, datasets.CIFAR10, "labels", 10),
        ("cifar100", cifar100, datasets.CIFAR100, "fine_labels", 100),
    ],
)
def test_colour_pictures(
    task: str,
    module: Any,
    kind: Any,
    key: str,
    classes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    calls: list[Any],
) -> None:
    monkeypatch.setattr(module, "TRAIN_SIZE", TRAIN)
    monkeypatch.setattr(module, "TEST_SIZE", TEST)
    splits = write_cifar(tmp_path, monkeypatch, kind, key)
    images = load(task, tmp_path)
    for got, labels, split in (
        (images.train_images, images.train_labels, "train"),
        (images.test_images, images.test_labels, "test"),
    ):
        assert np.array_equal(got.numpy(), splits[split][0])  # [n, c, h, w], as stored
        assert got.is_contiguous()
        assert np.array_equal(labels.numpy(), splits[split][1])
    assert len(images.mean) == len(images.std) == 3
    assert (images.shape.classes, images.flip) == (classes, True)
    assert calls == []


def test_the_papers_normalisation() -> None:
    assert (cifar10.MEAN, cifar10.STD) == ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))


SIZES = {
    "mnist": (60_000, 10_000),
    "fashion-mnist": (60_000, 10_000),
    "cifar10": (50_000, 10_000),
    "cifar100": (50_000, 10_000),
}


@pytest.mark.parametrize("task", SIZES)
def test_published_sizes(task: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def note(name: str, data_dir: Path, train: int, test: int) -> None:
        asked.append((data_dir, train, test))
        raise NotFoundError(name)

    module = {
        "mnist": mnist,
        "fashion-mnist": fashion_mnist,
        "cifar10": cifar10,
        "cifar100": cifar100,
    }[task]
    monkeypatch.setattr(module, "load_splits", note)
    built = REGISTRIES["tasks"].parse(task).build(TaskSetting(tmp_path))
    with pytest.raises(NotFoundError):
        built.load()
    assert asked == [(tmp_path, *SIZES[task])]
    assert built.train_size == SIZES[task][0]


@pytest.mark.parametrize("name", ["MNIST", "FashionMNIST", "CIFAR10", "CIFAR100"])
def test_missing_files_without_a_network(
    name: str, tmp_path: Path, calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(NotFoundError) as caught:
        load_splits(name, tmp_path / "data", 10, 10)
    message = str(caught.value)
    assert (
        f"{name} was not found under {tmp_path / 'data'} and could not be downloaded (" in message
    )
    assert "--data-dir or DYNABRO_DATA" in message
    assert "\n" not in message
    assert caught.value.exit_code == 66
    assert calls != []
    assert capsys.readouterr().out == "", "standard output is for data"


def test_of_two_that_miss_the_files_one_fetches_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[bool] = []
    missed = threading.Event()
    others: list[threading.Thread] = []

    class Slow:
        """A data set whose files take as long to come as another process needs to find that they
        are missing.
        """

        data, targets = np.zeros((TRAIN, 28, 28), np.uint8), np.zeros(TRAIN)

        def __init__(self, *, root: Path, train: bool, download: bool) -> None:
            if download:
                fetched.append(train)
                if not others:
                    others.append(
                        threading.Thread(target=load_splits, args=("Slow", tmp_path, TRAIN, TRAIN))
                    )
                    others[0].start()
                    assert missed.wait(60)
                (root / "file").touch()
            elif not (root / "file").exists():
                if threading.current_thread() in others:
                    missed.set()
                raise RuntimeError("Dataset not found")

    monkeypatch.setattr(datasets, "Slow", Slow, raising=False)
    load_splits("Slow", tmp_path, TRAIN, TRAIN)
    others[0].join()
    assert fetched == [True]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(
        NotFoundError, match=r"was not found under .*file/data and could not be downloaded"
    ):
        load_splits("MNIST", tmp_path / "file" / "data", 10, 10)


def test_where_data_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In ``data_dir``, else in DYNABRO_DATA: whole runs, of files that are only in one of two
    folders.
    """
    monkeypatch.setattr(mnist, "TRAIN_SIZE", TRAIN)
    monkeypatch.setattr(mnist, "TEST_SIZE", TEST)
    full, empty = tmp_path / "full", tmp_path / "empty"
    write_mnist(full)
    publish(monkeypatch, full)
    spec = RunSpec(task="mnist", model="logistic", method="sgd", budget=1, batch_size=4)
    monkeypatch.setenv("DYNABRO_DATA", str(empty))
    with pytest.raises(NotFoundError, match=f"not found under {empty} "):
        list(simulate(spec, device="cpu"))
    first = list(simulate(spec, device="cpu", data_dir=full))
    monkeypatch.setenv("DYNABRO_DATA", str(full))
    assert list(simulate(spec, device="cpu")) == first
    assert isinstance(first[-1], events.Finished)
    with pytest.raises(NotFoundError, match=f"not found under {empty} "):
        list(simulate(spec, device="cpu", data_dir=empty))


@pytest.mark.parametrize(
    ("train", "test", "got"), [(TRAIN - 1, TEST, TRAIN - 1), (TRAIN, TEST + 2, TEST + 2)]
)
def test_wrong_sizes(train: int, test: int, got: int, tmp_path: Path) -> None:
    write_mnist(tmp_path, train=train, test=test)
    with pytest.raises(
        NotFoundError, match=f"is damaged: {got} images and {got} labels instead of"
    ):
        load_splits("MNIST", tmp_path, TRAIN, TEST)


DAMAGE = {
    "cut short": lambda content: content[:-100],
    "empty": lambda content: b"",
    "only a header": lambda content: content[:16],
    "a web page": lambda content: b"<html><body>302 Found</body></html>",
    "of an unknown type": lambda content: b"\x00\x00\x0a\x03" + content[4:],
    "of another type": lambda content: b"\x00\x00\x09\x03" + content[4:],
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_files(how: str, tmp_path: Path) -> None:
    write_mnist(tmp_path)
    file = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    file.write_bytes(DAMAGE[how](file.read_bytes()))
    with pytest.raises(
        NotFoundError,
        match=rf"^{file} is damaged: it cannot be read or has another checksum. Try: remove "
        rf"the file and run again",
    ):
        load_splits("MNIST", tmp_path, TRAIN, TEST)


@pytest.mark.parametrize(
    ("task", "module", "name", "file"),
    [
        ("mnist", mnist, "MNIST", "train-images-idx3"),
        ("mnist", mnist, "MNIST", "train-labels-idx1"),
        ("mnist", mnist, "MNIST", "t10k-images-idx3"),
        ("mnist", mnist, "MNIST", "t10k-labels-idx1"),
        ("fashion-mnist", fashion_mnist, "FashionMNIST", "train-images-idx3"),
    ],
)
def test_other_content_of_the_right_size(
    task: str, module: Any, name: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TRAIN_SIZE", TRAIN)
    monkeypatch.setattr(module, "TEST_SIZE", TEST)
    write_mnist(tmp_path, name)
    publish(monkeypatch, tmp_path)
    load(task, tmp_path)
    path = tmp_path / name / "raw" / f"{file}-ubyte"
    content = path.read_bytes()
    path.write_bytes(content[:-4] + content[:-5:-1])  # in another order
    with pytest.raises(
        NotFoundError,
        match=rf"^{path} is damaged: its content is not .*MNIST's.*--task npz:file=FILE",
    ) as caught:
        load(task, tmp_path)
    assert caught.value.exit_code == 66


def test_labels_for_some_images_only(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    file = tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte"
    file.write_bytes(idx(np.zeros(TRAIN - 2)))
    with pytest.raises(
        NotFoundError, match=f"is damaged: {TRAIN} images and {TRAIN - 2} labels instead of {TRAIN}"
    ):
        load_splits("MNIST", tmp_path, TRAIN, TEST)


def test_a_cifar_file_with_another_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[Any]
) -> None:
    write_cifar(tmp_path, monkeypatch, datasets.CIFAR10, "labels")
    monkeypatch.setattr(
        datasets.CIFAR10, "test_list", [["test_batch", "40351d587109b95175f43aff81a1287e"]]
    )
    with pytest.raises(
        NotFoundError, match="/test_batch is damaged: it cannot be read or has another checksum"
    ):
        load_splits("CIFAR10", tmp_path, TRAIN, TEST)
    assert calls != [], "what is damaged is fetched anew"
