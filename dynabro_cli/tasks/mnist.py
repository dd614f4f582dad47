"""MNIST."""

from __future__ import annotations

from dynabro_cli.tasks._api import REGISTRY, Defaults, Images, ImageShape, Pixels, Task, TaskSetting
from dynabro_cli.tasks._torchvision import load_splits

SHAPE = ImageShape(channels=1, height=28, width=28, classes=10)
TRAIN_SIZE, TEST_SIZE = 60_000, 10_000
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


@REGISTRY.register("mnist", Pixels, reference="LeCun, Bottou, Bengio & Haffner, 1998; settings: DynaBRO (ICML 2024), Table 2")
def mnist(parameters: Pixels, setting: TaskSetting) -> Task:
    """MNIST: 70,000 handwritten digits of 28 x 28 pixels, normalised by (0.1307, 0.3081)."""

    def load() -> Images:
        train, test = load_splits("MNIST", setting.data_dir, TRAIN_SIZE, TEST_SIZE)
        return parameters.of(Images(*train, *test, mean=(0.1307,), std=(0.3081,), shape=SHAPE))

    return Task(DEFAULTS, load, SHAPE, TRAIN_SIZE, test_size=TEST_SIZE)
