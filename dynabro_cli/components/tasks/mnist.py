"""MNIST."""

from __future__ import annotations

from dynabro_cli.components.tasks._api import (
    REGISTRY,
    Defaults,
    Images,
    ImageShape,
    Pixels,
    Task,
    TaskSetting,
)
from dynabro_cli.components.tasks._torchvision import damaged, load_splits, wrong_file

SHAPE = ImageShape(channels=1, height=28, width=28, classes=10)
TRAIN_SIZE, TEST_SIZE = 60_000, 10_000
DIGEST = "4cd9b86cdb59"
"""``Images.digest`` of the published files."""
CHECKSUMS = (
    ("train-images-idx3-ubyte", "6bbc9ace898e44ae57da46a324031adb"),
    ("train-labels-idx1-ubyte", "a25bea736e30d166cdddb491f175f624"),
    ("t10k-images-idx3-ubyte", "2646ac647ad5339dbf082846283269ea"),
    ("t10k-labels-idx1-ubyte", "27ae3e4e09519cfbb04c329615203637"),
)
"""MD5 of the unpacked files; torchvision has the checksums of the archives."""
DEFAULTS = Defaults(
    model="cnn-mnist",
    workers=17,
    byzantine=8,
    budget=5000,
    batch_size=32,
    learning_rate=0.01,
    mlmc_learning_rate=0.05,
    lr_drop="0.8:0.1",
    weight_decay=1e-4,
    eval_every=100,
)


@REGISTRY.register(
    "mnist",
    Pixels,
    reference="LeCun, Bottou, Bengio & Haffner, 1998; settings: DynaBRO (ICML 2024), Table 2",
)
def mnist(parameters: Pixels, setting: TaskSetting) -> Task:
    """MNIST: 70,000 handwritten digits of 28 x 28 pixels, normalised by (0.1307, 0.3081).

    Raises NotFoundError if the files are missing and cannot be downloaded, or do not have the
    published content.
    """

    def load() -> Images:
        train, test = load_splits("MNIST", setting.data_dir, TRAIN_SIZE, TEST_SIZE)
        images = Images(*train, *test, mean=(0.1307,), std=(0.3081,), shape=SHAPE)
        if images.digest != DIGEST:
            folder = setting.data_dir / "MNIST" / "raw"
            raise damaged(wrong_file(folder, CHECKSUMS) or folder, "its content is not MNIST's")
        return parameters.of(images)

    return Task(DEFAULTS, load, SHAPE, TRAIN_SIZE, test_size=TEST_SIZE, digest=DIGEST)
