"""Fashion-MNIST."""

from __future__ import annotations

from dynabro_cli.components.tasks._api import REGISTRY, Images, Task, TaskSetting
from dynabro_cli.components.tasks._torchvision import damaged, load_splits, wrong_file
from dynabro_cli.components.tasks.mnist import DEFAULTS, SHAPE, TEST_SIZE, TRAIN_SIZE
from dynabro_cli.core.registration import NoParameters

CHECKSUMS = (
    ("train-images-idx3-ubyte", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
    ("train-labels-idx1-ubyte", "9018921c3c673c538a1fc5bad174d6f9"),
    ("t10k-images-idx3-ubyte", "8181f5470baa50b63fa0f6fddb340f0a"),
    ("t10k-labels-idx1-ubyte", "15d484375f8d13e6eb1aabb0c3f46965"),
)
"""MD5 of the unpacked files; torchvision has the checksums of the archives."""


@REGISTRY.register("fashion-mnist", reference="Xiao, Rasul & Vollgraf, 2017")
def fashion_mnist(_: NoParameters, setting: TaskSetting) -> Task:
    """Fashion-MNIST: 70,000 grey pictures of clothes in MNIST's format, with MNIST's settings.

    Raises NotFoundError if the files are missing and cannot be downloaded, or do not have the
    published content.
    """

    def load() -> Images:
        train, test = load_splits("FashionMNIST", setting.data_dir, TRAIN_SIZE, TEST_SIZE)
        wrong = wrong_file(setting.data_dir / "FashionMNIST" / "raw", CHECKSUMS)
        if wrong is not None:
            raise damaged(wrong, "its content is not Fashion-MNIST's")
        return Images(*train, *test, mean=(0.2860,), std=(0.3530,), shape=SHAPE)

    return Task(DEFAULTS, load, SHAPE, TRAIN_SIZE, test_size=TEST_SIZE)
