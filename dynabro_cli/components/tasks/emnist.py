"""EMNIST."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from dynabro_cli.components.tasks._api import REGISTRY, Images, Task, TaskSetting
from dynabro_cli.components.tasks._torchvision import load_splits
from dynabro_cli.components.tasks.mnist import DEFAULTS, SHAPE
from dynabro_cli.core.registration import parameter

if TYPE_CHECKING:
    from torch import Tensor


class Split(NamedTuple):
    """A split of the data set; ``first`` is the number of its first class in the files."""

    classes: int
    train: int
    test: int
    first: int = 0


SPLITS = {
    "balanced": Split(47, 112_800, 18_800),
    "letters": Split(26, 124_800, 20_800, first=1),
    "digits": Split(10, 240_000, 40_000),
    "mnist": Split(10, 60_000, 10_000),
    "bymerge": Split(47, 697_932, 116_323),
    "byclass": Split(62, 697_932, 116_323),
}


@dataclass(frozen=True)
class Parameters:
    split: str = parameter(
        "balanced", choices=tuple(SPLITS), help="characters of the split, and their classes"
    )


@REGISTRY.register("emnist", Parameters, reference="Cohen, Afshar, Tapson & van Schaik, IJCNN 2017")
def emnist(parameters: Parameters, setting: TaskSetting) -> Task:
    """EMNIST: handwritten letters and digits in MNIST's format, with MNIST's settings and
    normalisation.

    balanced: 131,600 letters and digits in 47 classes of equal size. letters: 145,600 letters in 26
    classes, upper and lower case together. digits: 280,000 digits in 10 classes. mnist: 70,000
    digits. byclass and bymerge: all 814,255 characters in 62 and 47 classes that differ in size.

    The files have every image transposed, and torchvision does not change that; here images are
    upright. The classes of letters, 1 to 26 in the files, become 0 to 25.

    The archive is checked when it is downloaded. No checksums of the unpacked files are published,
    so damage that keeps their sizes is not found; a run's ``code_digests`` have the digest of what
    it has read.
    """
    split = SPLITS[parameters.split]
    shape = replace(SHAPE, classes=split.classes)

    def load() -> Images:
        parts = load_splits(
            "EMNIST", setting.data_dir, split.train, split.test, split=parameters.split
        )
        train, test = ((_upright(images), labels - split.first) for images, labels in parts)
        return Images(*train, *test, mean=(0.1307,), std=(0.3081,), shape=shape)

    return Task(DEFAULTS, load, shape, split.train, test_size=split.test)


def _upright(images: Tensor) -> Tensor:
    """Swap rows and columns."""
    return images.transpose(2, 3).contiguous()
