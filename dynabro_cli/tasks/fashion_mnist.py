"""Fashion-MNIST."""

from __future__ import annotations

from dynabro_cli.components import NoParameters
from dynabro_cli.tasks._api import REGISTRY, Images, Task, TaskSetting
from dynabro_cli.tasks._torchvision import load_splits
from dynabro_cli.tasks.mnist import DEFAULTS, SHAPE, TEST_SIZE, TRAIN_SIZE


@REGISTRY.register("fashion-mnist", reference="Xiao, Rasul & Vollgraf, 2017")
def fashion_mnist(_: NoParameters, setting: TaskSetting) -> Task:
    """Fashion-MNIST: 70,000 grey pictures of clothes in MNIST's format, with MNIST's settings."""

    def load() -> Images:
        train, test = load_splits("FashionMNIST", setting.data_dir, TRAIN_SIZE, TEST_SIZE)
        return Images(*train, *test, mean=(0.2860,), std=(0.3530,), shape=SHAPE)

    return Task(DEFAULTS, load, SHAPE, TRAIN_SIZE, test_size=TEST_SIZE)
