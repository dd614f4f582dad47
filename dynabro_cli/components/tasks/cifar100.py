"""CIFAR-100."""

from __future__ import annotations

from dynabro_cli.components.tasks._api import REGISTRY, Images, ImageShape, Task, TaskSetting
from dynabro_cli.components.tasks._torchvision import load_splits
from dynabro_cli.components.tasks.cifar10 import DEFAULTS, TEST_SIZE, TRAIN_SIZE
from dynabro_cli.core.registration import NoParameters

SHAPE = ImageShape(channels=3, height=32, width=32, classes=100)
MEAN, STD = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)


@REGISTRY.register("cifar100", reference="Krizhevsky, 2009")
def cifar100(_: NoParameters, setting: TaskSetting) -> Task:
    """CIFAR-100: 60,000 colour pictures of 32 x 32 pixels in 100 classes, with CIFAR-10's
    settings.
    """

    def load() -> Images:
        train, test = load_splits("CIFAR100", setting.data_dir, TRAIN_SIZE, TEST_SIZE)
        return Images(*train, *test, mean=MEAN, std=STD, shape=SHAPE, flip=True)

    return Task(DEFAULTS, load, SHAPE, TRAIN_SIZE, test_size=TEST_SIZE)
