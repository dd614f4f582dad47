"""CIFAR-10."""

from __future__ import annotations

from dynabro_cli.components.tasks._api import (
    REGISTRY,
    Defaults,
    Images,
    ImageShape,
    Task,
    TaskSetting,
)
from dynabro_cli.components.tasks._torchvision import load_splits
from dynabro_cli.core.registration import NoParameters

SHAPE = ImageShape(channels=3, height=32, width=32, classes=10)
TRAIN_SIZE, TEST_SIZE = 50_000, 10_000
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
DEFAULTS = Defaults(
    model="cnn-cifar",
    workers=25,
    byzantine=12,
    budget=8000,
    batch_size=64,
    learning_rate=0.01,
    mlmc_learning_rate=0.05,
    lr_drop="0.75:0.1",
    weight_decay=1e-4,
    eval_every=200,
)


@REGISTRY.register("cifar10", reference="Krizhevsky, 2009; settings: DynaBRO (ICML 2024), Table 2")
def cifar10(_: NoParameters, setting: TaskSetting) -> Task:
    """CIFAR-10: 60,000 colour pictures of 32 x 32 pixels in 10 classes, with random horizontal
    flips in training.
    """

    def load() -> Images:
        train, test = load_splits("CIFAR10", setting.data_dir, TRAIN_SIZE, TEST_SIZE)
        return Images(*train, *test, mean=MEAN, std=STD, shape=SHAPE, flip=True)

    return Task(DEFAULTS, load, SHAPE, TRAIN_SIZE, test_size=TEST_SIZE)
