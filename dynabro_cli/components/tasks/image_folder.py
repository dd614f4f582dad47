"""A user's folder of images."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from unicodedata import normalize

from dynabro_cli.components.tasks import cifar10, mnist
from dynabro_cli.components.tasks._api import (
    REGISTRY,
    Images,
    ImageShape,
    Task,
    TaskSetting,
    check_memory,
    in_data_dir,
)
from dynabro_cli.core.errors import NotFoundError, first_line
from dynabro_cli.core.lazy import np, torch
from dynabro_cli.core.machine.strangers_files import files_under, open_regular
from dynabro_cli.core.registration import parameter

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

CHANNELS = 3
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif")
"""Endings of the names of image files."""
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "DIB", "TIFF", "WEBP", "GIF")
"""Formats of images that are read, whatever their names: for other formats, the library passes
files to other programs.
"""
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")
"""Kinds of pixels that become RGB without loss of bits; the library would cut others (16 bits,
floats) off at 255.
"""
SIDE = 1 << 12
MOST_PIXELS = SIDE * SIDE


@dataclass(frozen=True)
class Parameters:
    name: str = parameter(
        folder=in_data_dir,
        help="the folder's name inside the data folder; part of the run's identity",
    )
    like: str = parameter(
        "none",
        choices=("none", "cifar10", "mnist"),
        help="take settings, normalisation and flips from this task",
    )
    size: int | None = parameter(
        None,
        minimum=1,
        maximum=SIDE,
        later=True,
        help="width and height to which all images are resized (bilinear); auto: as they are, "
        "all of one size",
    )


@REGISTRY.register(
    "image-folder", Parameters, reference="torchvision.datasets.ImageFolder's layout"
)
def image_folder(parameters: Parameters, setting: TaskSetting) -> Task:
    """Image folder: any <data folder>/<name>/{train,test}/<class>/* of images of one size, or with
    size=; needs --model.

    With like=none the settings are MNIST's, and images are normalised by the training set's mean
    and standard deviation of each channel. like=cifar10 or like=mnist takes settings,
    normalisation, flips and model from that task.

    All images in JPEG, PNG, GIF, WebP, TIFF, BMP and PPM at any depth are read, and other files are
    not. Files and folders whose names begin with a dot do not count. Pixels become RGB in 8 bits;
    grey images of 16 bits or more and floats are refused, and colours of 16 bits keep the upper 8.
    Transparency is dropped, the orientation in EXIF is not applied, and of several frames or pages
    the first one is read. With size=32 images are resized to 32 x 32 pixels by Pillow's bilinear
    filter, whatever their shape.

    Links are followed. Raises NotFoundError if the folders are missing or empty, if images differ
    in size, cannot be read or do not fit into memory, or if a link leads to a folder that it is in.
    """
    source = {"none": None, "cifar10": cifar10, "mnist": mnist}[parameters.like]
    defaults = source.DEFAULTS if source else replace(mnist.DEFAULTS, model=None)

    def load() -> Images:
        root, train, test = find()
        apart = sorted({*train.classes} ^ {*test.classes})
        if apart:
            place, other = ("train", "test") if apart[0] in train.classes else ("test", "train")
            # file systems and archives spell accents in two ways
            alike = [name for name in apart if normalize("NFC", name) == normalize("NFC", apart[0])]
            words = f" ({' and '.join(map(ascii, alike))} look the same)" if alike[1:] else ""
            raise NotFoundError(
                f"{root}: the classes of train/ and test/ differ: {place}/ has {apart[0]!r}, "
                f"and {other}/ does not{words}. Try: the same folders in both"
            )
        if train.size != test.size:
            raise _differing(test.paths[0], test.size, train)
        check_memory(f"{root}: its images need", train.bytes + test.bytes)
        (train_images, train_labels), (test_images, test_labels) = (
            read_pictures(train),
            read_pictures(test),
        )
        channels, height, width = train_images.shape[1:]
        mean, std = zip(
            *(_moments(train_images[:, channel]) for channel in range(channels)), strict=True
        )
        if parameters.like == "cifar10":
            mean, std = cifar10.MEAN, cifar10.STD
        elif parameters.like == "mnist":
            mean, std = (0.1307,), (0.3081,)
        shape = ImageShape(channels, height, width, len(train.classes))
        flip = parameters.like == "cifar10"
        return Images(
            train_images, train_labels, test_images, test_labels, mean, std, shape, flip=flip
        )

    def find() -> tuple[Path, Pictures, Pictures]:
        root = setting.data_dir / os.path.expanduser(parameters.name)
        return root, _find(root, "train", parameters.size), _find(root, "test", parameters.size)

    def look() -> tuple[ImageShape, int, int]:
        _, train, test = find()
        width, height = train.size
        return (
            ImageShape(CHANNELS, height, width, len(train.classes)),
            len(train.paths),
            len(test.paths),
        )

    return Task(defaults, load, look=look, keep=True)


def _moments(pixels: Tensor) -> tuple[float, float]:
    """Return mean and standard deviation of pixels as shares of the brightest value; a standard
    deviation of 0 becomes 1.
    """
    values = pixels.double().div_(255)
    return float(values.mean()), float(values.std()) or 1.0


@dataclass(frozen=True)
class Pictures:
    """Images under a folder, before they are read.

    Attributes:
        paths: The files, class by class.
        labels: The number of each file's class.
        classes: The names of the classes, in alphabetical order.
        size: Width and height of all images: of the first one, unless ``resized``.
        resized: True if images are resized to ``size``; otherwise all must have it.
    """

    paths: list[str]
    labels: list[int]
    classes: list[str]
    size: tuple[int, int]
    resized: bool = False

    @property
    def bytes(self) -> int:
        """The size of all pixels."""
        return len(self.paths) * self.size[0] * self.size[1] * CHANNELS


def _find(root: Path, split: str, side: int | None) -> Pictures:
    """Find <class>/* under ``root/split``, to be resized to ``side`` x ``side`` pixels unless it is
    None.

    Raises:
        NotFoundError: There are no images, or the folder does not have this layout.
    """
    folder, paths, labels = root / split, list[str](), list[int]()
    expected = (
        f"expected {folder}/<class>/*, the folder above it named by --data-dir or DYNABRO_DATA"
    )
    missing = f"no images under {folder.resolve()}; {expected}"
    try:
        classes = sorted(
            entry.name
            for entry in os.scandir(folder)
            if entry.is_dir() and not entry.name.startswith(".")
        )
        for label, name in enumerate(classes):
            images = files_under(folder / name, is_image)
            if not images:
                raise NotFoundError(f"{missing}: {name!r} has none")
            paths += images
            labels += [label] * len(images)
    except OSError as error:
        raise NotFoundError(missing) from error
    except ValueError as error:
        raise NotFoundError(f"{error}. Try: remove the link") from error
    if not paths:
        raise NotFoundError(missing)
    if side is not None:
        return Pictures(paths, labels, classes, (side, side), resized=True)
    with _opened(paths[0]) as first:
        return Pictures(paths, labels, classes, first.size)


def is_image(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS)


def _differing(path: str, size: tuple[int, int], pictures: Pictures) -> NotFoundError:
    return NotFoundError(
        f"{path} is {size[::-1]}, but the first image is {pictures.size[::-1]} "
        f"({pictures.paths[0]}). Try: images of one size, or "
        f"task=image-folder with size={min(pictures.size)}, which resizes them"
    )


def read_pictures(pictures: Pictures) -> tuple[Tensor, Tensor]:
    """Read images as uint8 [n, c, h, w], with their labels [n]."""
    from PIL import Image

    width, height = pictures.size
    images = np.empty((len(pictures.paths), height, width, CHANNELS), dtype=np.uint8)
    for index, path in enumerate(pictures.paths):
        with _opened(path) as image:
            if image.mode not in MODES:
                raise NotFoundError(
                    f"{path} has pixels of mode {image.mode}, and only 8 bits are read. "
                    "Try: save it with 8 bits, or task=npz with arrays of floats"
                )
            if image.size != pictures.size and not pictures.resized:
                raise _differing(path, image.size, pictures)
            colours = image.convert("RGB")
            images[index] = np.asarray(
                colours.resize(pictures.size, Image.Resampling.BILINEAR)
                if pictures.resized
                else colours
            )
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.tensor(pictures.labels)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Image.Image]:
    """Open an image by reading only its header; the pixels are read within the context.

    Raises:
        NotFoundError: The file is not an image, is damaged, or has too many pixels.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        # a smaller limit is set here
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        with open_regular(path) as file, Image.open(file, formats=FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise ValueError(
                    f"it has {image.width} x {image.height} pixels, and {MOST_PIXELS:,} are "
                    "the most that are read"
                )
            yield image
    except NotFoundError:
        raise
    except Exception as error:  # decoding a damaged file can raise nearly anything
        why = (
            ""
            if isinstance(error, UnidentifiedImageError)
            else f" ({first_line(error) or type(error).__name__})"
        )
        raise NotFoundError(
            f"{path} cannot be read as an image{why}; remove or replace it"
        ) from error
