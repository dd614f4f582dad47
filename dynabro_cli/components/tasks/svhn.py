"""Street View House Numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dynabro_cli.components.tasks import cifar10
from dynabro_cli.components.tasks._api import REGISTRY, Images, ImageShape, Task, TaskSetting
from dynabro_cli.components.tasks._torchvision import wrong_file
from dynabro_cli.core.errors import NotFoundError
from dynabro_cli.core.lazy import np, torch
from dynabro_cli.core.machine.strangers_files import open_regular
from dynabro_cli.core.registration import NoParameters

if TYPE_CHECKING:
    from torch import Tensor

SHAPE = ImageShape(channels=3, height=32, width=32, classes=10)
TRAIN_SIZE, TEST_SIZE = 73_257, 26_032
MEAN, STD = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)
DEFAULTS = replace(cifar10.DEFAULTS, model="resnet18")


@REGISTRY.register("svhn", reference="Netzer et al., NIPS 2011 workshop; cropped digits, format 2")
def svhn(_: NoParameters, setting: TaskSetting) -> Task:
    """SVHN: 99,289 colour pictures of digits from house numbers, 32 x 32 pixels, with CIFAR-10's
    settings and ResNet-18.

    The task reads <data folder>/SVHN/train_32x32.mat and test_32x32.mat, the files of the data
    set's page, and downloads nothing. The extra training set is not used. Pictures are not flipped,
    because digits are not symmetric.

    Raises NotFoundError if a file is missing, or does not have the published content.
    """

    def load() -> Images:
        folder = setting.data_dir / "SVHN"
        train, test = _read(folder / "train_32x32.mat"), _read(folder / "test_32x32.mat")
        return Images(*train, *test, mean=MEAN, std=STD, shape=SHAPE)

    return Task(DEFAULTS, load, SHAPE, TRAIN_SIZE, test_size=TEST_SIZE)


def _read(file: Path) -> tuple[Tensor, Tensor]:
    """Return the pictures uint8 [n, 3, 32, 32] and the digits [n]; the file has [32, 32, 3, n], and
    10 for the digit 0.
    """
    from scipy.io import loadmat
    from torchvision.datasets import SVHN

    named = [(name, md5) for _, name, md5 in SVHN.split_list.values() if name == file.name]
    try:
        # before it is unpacked: a small file may unpack to more than the memory
        if wrong_file(file.parent, named):
            raise ValueError("its content is not SVHN's")
        with open_regular(file) as opened:
            table = loadmat(opened, variable_names=("X", "y"))
        pictures, digits = (
            np.asarray(table["X"]),
            np.asarray(table["y"]).reshape(-1).astype(np.int64),
        )
    except Exception as error:  # decoding a damaged file can raise nearly anything
        raise NotFoundError(
            f"task=svhn: {file} cannot be read ({error}). Try: the data set's own file in that "
            "place, or another --data-dir"
        ) from error
    images = torch.from_numpy(np.ascontiguousarray(pictures.transpose(3, 2, 0, 1)))
    return images, torch.from_numpy(digits % 10)
