"""A user's folder of images."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dynabro_cli.components import parameter
from dynabro_cli.deferred import np
from dynabro_cli.errors import NotFoundError
from dynabro_cli.lazy import torch
from dynabro_cli.machine.host_memory import free_host_memory
from dynabro_cli.machine.strangers_files import files_under, open_regular
from dynabro_cli.tasks import cifar10, mnist
from dynabro_cli.tasks._api import REGISTRY, Images, ImageShape, Task, TaskSetting

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

CHANNELS = 3
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Endings of the names of image files."""
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "DIB", "TIFF", "WEBP", "GIF")
"""Formats of images that are read, whatever their names: for other formats, the library passes files to other programs."""
MOST_PIXELS = 1 << 24
COPIES = 5
"""Largest number of copies of all pixels in memory: as read, in the order of channels, and one channel as floats."""


@dataclass(frozen=True)
class Parameters:
    name: str = parameter(help="the folder's name inside the data folder; part of the run's identity")
    like: str = parameter(
        "none", choices=("none", "cifar10", "mnist"), help="take settings, normalisation and flips from this task"
    )


@REGISTRY.register("image-folder", Parameters, reference="torchvision.datasets.ImageFolder's layout")
def image_folder(parameters: Parameters, setting: TaskSetting) -> Task:
    """Image folder: any <data folder>/<name>/{train,test}/<class>/* of images of one size; needs --model.

    With like=none the settings are MNIST's, and images are normalised by the training set's mean and standard deviation of each
    channel. like=cifar10 or like=mnist takes settings, normalisation, flips and model from that task.

    Links are followed if they stay inside the folder. Raises NotFoundError if the folders are missing or empty, if images
    differ in size or do not fit into memory, or if a link leads out of the folder.
    """
    source = {"none": None, "cifar10": cifar10, "mnist": mnist}[parameters.like]
    defaults = source.DEFAULTS if source else replace(mnist.DEFAULTS, model=None)

    def load() -> Images:
        root = setting.data_dir / parameters.name
        train, test = _find(root, "train"), _find(root, "test")
        if train.classes != test.classes:
            raise NotFoundError(f"{root}: the classes of train/ and test/ differ; make their folders the same")
        if train.size != test.size:
            raise NotFoundError(f"{root}: images of train/ and test/ differ in size; make them one size")
        check_memory(root, train.bytes + test.bytes)
        (train_images, train_labels), (test_images, test_labels) = read_pictures(train), read_pictures(test)
        channels, height, width = train_images.shape[1:]
        mean, std = zip(*(_moments(train_images[:, channel]) for channel in range(channels)), strict=True)
        if parameters.like == "cifar10":
            mean, std = cifar10.MEAN, cifar10.STD
        elif parameters.like == "mnist":
            mean, std = (0.1307,), (0.3081,)
        shape = ImageShape(channels, height, width, len(train.classes))
        flip = parameters.like == "cifar10"
        return Images(train_images, train_labels, test_images, test_labels, mean, std, shape, flip=flip)

    def look() -> tuple[ImageShape, int, int]:
        train, test = (_find(setting.data_dir / parameters.name, split) for split in ("train", "test"))
        width, height = train.size
        return ImageShape(CHANNELS, height, width, len(train.classes)), len(train.paths), len(test.paths)

    return Task(defaults, load, look=look)


def _moments(pixels: Tensor) -> tuple[float, float]:
    """Return mean and standard deviation of pixels as shares of the brightest value; a standard deviation of 0 becomes 1."""
    values = pixels.double().div_(255)
    return float(values.mean()), float(values.std()) or 1.0


@dataclass(frozen=True)
class Pictures:
    """Images under a folder, before they are read.

    Attributes:
        paths: The files, class by class.
        labels: The number of each file's class.
        classes: The names of the classes, in alphabetical order.
        size: Width and height of the first image, which all others must have.
    """

    paths: list[str]
    labels: list[int]
    classes: list[str]
    size: tuple[int, int]

    @property
    def bytes(self) -> int:
        """The size of all pixels."""
        return len(self.paths) * self.size[0] * self.size[1] * CHANNELS


def _find(root: Path, split: str) -> Pictures:
    """Find <class>/* under ``root/split``.

    Raises:
        NotFoundError: There are no images, or the folder does not have this layout.
    """
    folder, paths, labels, looked_at = root / split, list[str](), list[int](), 0
    expected = f"expected {folder}/<class>/*, the folder above it named by --data-dir or DYNABRO_DATA"
    missing = f"no images under {folder.resolve()}; {expected}"
    try:
        inside = root.resolve(strict=True)
        classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
        for label, name in enumerate(classes):
            found, looked_at = files_under(folder / name, inside, is_image, looked_at)
            if not found:
                raise NotFoundError(f"{missing}: {name!r} has none")
            paths += found
            labels += [label] * len(found)
    except OSError as error:
        raise NotFoundError(missing) from error
    except ValueError as error:
        raise NotFoundError(f"{error}; copy what belongs to the data set into it") from error
    if not paths:
        raise NotFoundError(missing)
    with _opened(paths[0]) as first:
        return Pictures(paths, labels, classes, first.size)


def is_image(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS)


def check_memory(root: Path, pixels: int) -> None:
    """Raise NotFoundError if the pixels cannot be held in memory while they are prepared."""
    free = free_host_memory()
    if free is not None and COPIES * pixels > free:
        raise NotFoundError(
            f"{root}: its images need about {COPIES * pixels / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free; "
            "make them smaller or fewer"
        )


def read_pictures(found: Pictures) -> tuple[Tensor, Tensor]:
    """Read images as uint8 [n, c, h, w], with their labels [n]."""
    width, height = found.size
    images = np.empty((len(found.paths), height, width, CHANNELS), dtype=np.uint8)
    for index, path in enumerate(found.paths):
        with _opened(path) as image:
            if image.size != found.size:
                raise NotFoundError(f"{path} is {image.size[::-1]}, but the first image is {(height, width)}")
            images[index] = np.asarray(image.convert("RGB"))
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.tensor(found.labels)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Image.Image]:
    """Open an image by reading only its header; the pixels are read within the context.

    Raises:
        NotFoundError: The file is not an image, is damaged, or has too many pixels.
    """
    from PIL import Image

    try:
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # a smaller limit is set here
        with open_regular(path) as file, Image.open(file, formats=FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise ValueError(
                    f"it has {image.width} x {image.height} pixels, and {MOST_PIXELS:,} are the most that are read"
                )
            yield image
    except NotFoundError:
        raise
    except Exception as error:  # decoding a damaged file can raise nearly anything
        why = f" ({error})" if type(error) is ValueError else ""
        raise NotFoundError(f"{path} cannot be read as an image{why}; remove or replace it") from error
