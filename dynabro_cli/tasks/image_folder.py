"""A folder of images of the user's own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dynabro_cli.components import parameter
from dynabro_cli.errors import NotFoundError
from dynabro_cli.tasks import cifar10, mnist
from dynabro_cli.tasks._api import REGISTRY, Images, ImageShape, Task, TaskSetting


@dataclass(frozen=True)
class Parameters:
    name: str = parameter(help="the folder's name inside the data folder; part of the run's identity")
    like: str = parameter(
        "none", choices=("none", "cifar10", "mnist"), help="take settings, normalisation and flips from this task"
    )


@REGISTRY.register("image-folder", Parameters, reference="torchvision.datasets.ImageFolder's layout")
def image_folder(parameters: Parameters, setting: TaskSetting) -> Task:
    """Image folder: any <data folder>/<name>/{train,test}/<class>/* of images of one size; needs --model.

    With like=none the settings are MNIST's, and images are normalised by the training set's mean and standard deviation
    by channel. like=cifar10 or like=mnist takes settings, normalisation and flips, and the model, from that task.

    Raises NotFoundError where the folders are missing or empty, or where images differ in size.
    """
    source = {"none": None, "cifar10": cifar10, "mnist": mnist}[parameters.like]
    defaults = source.DEFAULTS if source else replace(mnist.DEFAULTS, model=None)

    def load() -> Images:
        root = setting.data_dir / parameters.name
        train_images, train_labels, classes = _read(root / "train")
        test_images, test_labels, test_classes = _read(root / "test")
        if classes != test_classes:
            raise NotFoundError(f"{root}: the classes of train/ and test/ differ; make their folders the same")
        if train_images.shape[1:] != test_images.shape[1:]:
            raise NotFoundError(f"{root}: images of train/ and test/ differ in size; make them one size")
        channels, height, width = train_images.shape[1:]
        pixels = [train_images[:, channel].double() / 255 for channel in range(channels)]
        mean = tuple(float(values.mean()) for values in pixels)
        std = tuple(float(values.std()) or 1.0 for values in pixels)
        if parameters.like == "cifar10":
            mean, std = cifar10.MEAN, cifar10.STD
        elif parameters.like == "mnist":
            mean, std = (0.1307,), (0.3081,)
        shape = ImageShape(channels, height, width, len(classes))
        flip = parameters.like == "cifar10"
        return Images(train_images, train_labels, test_images, test_labels, mean, std, shape, flip=flip)

    return Task(defaults, load)


def _read(folder: Path) -> tuple[Tensor, Tensor, list[str]]:
    """Read <class>/* under ``folder``: uint8 images [n, c, h, w], labels [n], class names in alphabetical order."""
    from torchvision.datasets import ImageFolder

    try:
        files = ImageFolder(str(folder))
    except (FileNotFoundError, OSError) as error:
        raise NotFoundError(
            f"no images under {folder.resolve()}; expected {folder}/<class>/*, "
            "the folder above it named by --data-dir or DYNABRO_DATA"
        ) from error
    first = _pixels(files, 0)
    images = np.empty((len(files), *first.shape), dtype=np.uint8)
    for index in range(len(files)):
        pixels = _pixels(files, index)
        if pixels.shape != first.shape:
            raise NotFoundError(f"{files.samples[index][0]} is {pixels.shape[:2]} where the first image is {first.shape[:2]}")
        images[index] = pixels
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.tensor(files.targets), list(files.classes)


def _pixels(files: Any, index: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """One image as [h, w, c]; raise NotFoundError, with its name, where it cannot be read."""
    try:
        return np.asarray(files[index][0])
    except OSError as error:
        raise NotFoundError(f"{files.samples[index][0]} cannot be read as an image; remove or replace it") from error
