"""The contract of tasks, and their registry.

A task is a factory ``(parameters, TaskSetting) -> Task``. ``Task.load`` returns ``Images``
(labelled images, trained with a model of ``components.models``) or an ``Objective`` (a function
with a known optimum and a stochastic gradient).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dynabro_cli.core.errors import NotFoundError
from dynabro_cli.core.lazy import np, torch
from dynabro_cli.core.limits import DIGEST_DIGITS
from dynabro_cli.core.machine.host_memory import free_host_memory
from dynabro_cli.core.registration import Registry, parameter

if TYPE_CHECKING:
    from torch import Tensor

ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")


@dataclass(frozen=True)
class TaskSetting:
    """Setting of a task: the folder of data sets."""

    data_dir: Path


def in_data_dir(setting: TaskSetting, _: str) -> Path:
    """Return the folder that the path of a task's data is relative to: the folder of data sets."""
    return setting.data_dir


@dataclass(frozen=True)
class ImageShape:
    """The shape of a task's inputs, and its number of classes."""

    channels: int
    height: int
    width: int
    classes: int


@dataclass(frozen=True)
class Images:
    """Labelled images in memory: uint8 or float32 [n, c, h, w] and int64 [n]. The network gets
    (x/scale - mean)/std by channel. The arrays are tensors, or NumPy's until ``tensors``.

    ``flip`` asks for a random horizontal flip of each training image. ``notes`` are lines about the
    data, for the user.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    shape: ImageShape
    scale: float = 255.0
    flip: bool = False
    notes: tuple[str, ...] = ()

    @functools.cached_property
    def digest(self) -> str:
        """The digest of the four arrays: images and labels of both splits, in their order."""
        return digest_of_all(digest_of(getattr(self, name)) for name in ARRAYS)

    def tensors(self) -> Images:
        """Return images with tensors that share the memory of NumPy's arrays."""
        parts: Any = {name: torch.from_numpy(getattr(self, name)) for name in ARRAYS}
        return replace(self, **parts)


def digest_of(array: Tensor | np.ndarray[Any, Any]) -> str:
    """Return the SHA-256 of an array's type, shape and values; torch is loaded for tensors only."""
    kind = str(array.dtype).removeprefix("torch.")
    if not isinstance(array, np.ndarray):
        bits = torch.int16 if array.itemsize == 2 else array.dtype  # NumPy has no bfloat16
        array = array.detach().cpu().view(bits).numpy()
    steps = tuple(step // array.itemsize for step in array.strides)
    extent = 1 + sum((size - 1) * step for size, step in zip(array.shape, steps, strict=True))
    head = f"torch.{kind} {list(array.shape)}"
    if 0 < extent < array.size:  # windows that overlap: their memory is read once
        head += f" {steps}"
        array = np.lib.stride_tricks.as_strided(array, (extent,), (array.itemsize,))
    digest = hashlib.sha256(head.encode())
    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def digest_of_all(digests: Iterable[str]) -> str:
    """Return the digest of a data set of arrays with these digests, as short as a digest of
    code.
    """
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()[:DIGEST_DIGITS]


@dataclass(frozen=True)
class Pixels:
    """The parameter block of tasks whose pixels may stay unnormalised."""

    inputs: str = parameter(
        "normalised",
        choices=("normalised", "unit"),
        later=True,
        help="the network's inputs: normalised by mean and deviation, or pixels in [0, 1]",
    )

    def of(self, images: Images) -> Images:
        """Return the images with the inputs that ``inputs`` asks for."""
        if self.inputs == "normalised":
            return images
        channels = images.shape.channels
        return replace(images, mean=(0.0,) * channels, std=(1.0,) * channels)


@dataclass(frozen=True)
class Objective:
    """A function f on R^d in double precision.

    Attributes:
        start: x_1, [d].
        gradient: Maps x [d] to the gradient of f, [d].
        noise: Draws the noise of single gradients, [count, d].
        gap: Maps x to f(x) - f*.
        project: Maps x to its projection onto the domain K.
    """

    start: Tensor
    gradient: Callable[[Tensor], Tensor]
    noise: Callable[[np.random.Generator, int], Tensor]
    gap: Callable[[Tensor], Tensor]
    project: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Defaults:
    """Defaults of the task for fields that the user leaves out; ``mlmc_learning_rate`` is for
    DynaBRO.
    """

    model: str | None
    workers: int
    byzantine: int
    budget: int
    batch_size: int
    learning_rate: float
    mlmc_learning_rate: float
    lr_drop: str
    weight_decay: float
    eval_every: int


class Task(NamedTuple):
    """A task in its setting; ``shape`` and the sizes of the training and test sets are None if only
    the data show them.

    ``trains_model`` is True if the task loads ``Images``. It is False for an ``Objective``, which
    has no model but a ``dimension`` d. ``look`` finds shape and sizes without reading the data; it
    is None if they are known, or cannot be found in this way. ``digest`` is the digest of the only
    data that the task accepts (``Images.digest``); None if it accepts others. ``keep`` is True if
    reading takes long, so that the images are also kept, decoded, in the user's cache folder.
    ``arrays`` loads the images as NumPy's arrays, without torch; None if torch reads them.
    """

    defaults: Defaults
    load: Callable[[], Images | Objective]
    shape: ImageShape | None = None
    train_size: int | None = None
    trains_model: bool = True
    test_size: int | None = None
    dimension: int | None = None
    look: Callable[[], tuple[ImageShape, int, int]] | None = None
    digest: str | None = None
    keep: bool = False
    arrays: Callable[[], Images] | None = None


REGISTRY: Registry[Callable[..., Task]] = Registry("task", __package__)


COPIES = 5
"""Largest number of copies of all values in memory: as read, in the order of channels, and one
channel as floats.
"""


def check_memory(words: str, size: int) -> None:
    """Raise NotFoundError if a file's values, of ``size`` bytes when they are unpacked, cannot be
    held in memory while they are prepared. ``words`` begin the message.
    """
    free = free_host_memory()
    if free is not None and COPIES * size > free:
        raise NotFoundError(
            f"{words} about {COPIES * size / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are "
            "free; make them smaller or fewer"
        )
