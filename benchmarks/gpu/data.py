"""Images for the checks: MNIST if the folder has it, otherwise artificial images of the same shape and number."""

from __future__ import annotations

import functools
import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.steps import How
from dynabro_cli.tasks import cifar10, digits, mnist
from dynabro_cli.tasks._api import Images, ImageShape


def has_mnist(how: How) -> bool:
    """Return True if the folder of data sets has MNIST."""
    return how.data_dir is not None and (Path(how.data_dir) / "MNIST" / "raw" / "train-images-idx3-ubyte").exists()


def made(shape: ImageShape, count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Make learnable images [n, c, h, w] (a picture for each class, under noise) and their labels."""
    pictures = np.random.default_rng(0).integers(0, 256, (shape.classes, shape.channels, shape.height, shape.width))
    source = np.random.default_rng(seed)
    labels = source.integers(0, shape.classes, count)
    noise = source.integers(0, 256, (count, *pictures.shape[1:]), dtype=np.uint8)
    images = (pictures[labels].astype(np.uint8) // 4 + noise // 4 * 3).astype(np.uint8)
    return torch.from_numpy(images), torch.from_numpy(labels)


@functools.cache
def images_of(task: str, how: How) -> Images:
    """Return the images of ``mnist``, ``cifar10`` or ``digits``, read or made."""
    if task == "mnist" and has_mnist(how):
        read: Any = _mnist(Path(str(how.data_dir)))
        return Images(*read, mean=(0.1307,), std=(0.3081,), shape=mnist.SHAPE)
    module = {"mnist": mnist, "cifar10": cifar10, "digits": digits}[task]
    train, test = how.of(module.TRAIN_SIZE, 256), how.of(module.TEST_SIZE, 64)
    channels = module.SHAPE.channels
    both = *made(module.SHAPE, train, 1), *made(module.SHAPE, test, 2)
    return Images(*both, mean=(0.5,) * channels, std=(0.25,) * channels, shape=module.SHAPE, flip=task == "cifar10")


def _mnist(folder: Path) -> tuple[torch.Tensor, ...]:
    from dynabro_cli.tasks._torchvision import load_splits

    train, test = load_splits("MNIST", folder, mnist.TRAIN_SIZE, mnist.TEST_SIZE)
    return *train, *test


def folder_with_mnist(how: How) -> str:
    """Return a folder with MNIST's files for other processes; if MNIST is missing, with artificial images."""
    if has_mnist(how):
        return str(how.data_dir)
    folder = Path(tempfile.mkdtemp(prefix="dynabro-gpu-"))
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, count, seed in (("train", mnist.TRAIN_SIZE, 1), ("t10k", mnist.TEST_SIZE, 2)):
        images, labels = made(mnist.SHAPE, count, seed)
        head = struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(head + images.numpy().tobytes())
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(
            struct.pack(">4BI", 0, 0, 8, 1, count) + labels.byte().numpy().tobytes()
        )
    return str(folder)
