"""Handwritten digits that come with scikit-learn."""

from __future__ import annotations

from dynabro_cli.lazy import torch
from dynabro_cli.tasks._api import REGISTRY, Defaults, Images, ImageShape, Pixels, Task, TaskSetting

SHAPE = ImageShape(channels=1, height=8, width=8, classes=10)
TRAIN_SIZE, TEST_SIZE = 1437, 360
DEFAULTS = Defaults(
    model="cnn-digits",
    workers=17,
    byzantine=8,
    budget=5000,
    batch_size=16,
    learning_rate=0.01,
    mlmc_learning_rate=0.05,
    lr_drop="0.8:0.1",
    weight_decay=1e-4,
    eval_every=100,
)


@REGISTRY.register("digits", Pixels, reference="Alpaydin & Kaynak, UCI Optical Recognition of Handwritten Digits, 1998")
def digits(parameters: Pixels, setting: TaskSetting) -> Task:
    """Digits: 1,797 real handwritten digits of 8 x 8 pixels, bundled with scikit-learn; nothing is downloaded.

    A fixed stratified split: 1,437 images for training, 360 for testing.
    """
    return Task(DEFAULTS, lambda: parameters.of(_load()), SHAPE, TRAIN_SIZE, test_size=TEST_SIZE)


def _load() -> Images:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data = load_digits()
    images = torch.from_numpy(data.images).to(torch.uint8)[:, None]  # grey levels 0 to 16
    labels = torch.from_numpy(data.target).long()
    train, test = train_test_split(
        range(len(labels)), train_size=TRAIN_SIZE, test_size=TEST_SIZE, stratify=data.target, random_state=0
    )
    return Images(
        images[train], labels[train], images[test], labels[test], mean=(0.305,), std=(0.376,), shape=SHAPE, scale=16.0
    )
