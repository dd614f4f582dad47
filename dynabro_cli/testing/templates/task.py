"""Stripes that a network learns to tell apart."""

from __future__ import annotations

import numpy as np

from dynabro_cli.components import NoParameters
from dynabro_cli.lazy import torch
from dynabro_cli.tasks._api import REGISTRY, Defaults, Images, ImageShape, Task, TaskSetting

SHAPE = ImageShape(channels=1, height=8, width=8, classes=2)
TRAIN, TEST = 400, 100
DEFAULTS = Defaults(
    model="logistic",
    workers=9,
    byzantine=4,
    budget=500,
    batch_size=8,
    learning_rate=0.05,
    mlmc_learning_rate=0.1,
    lr_drop="none",
    weight_decay=0.0,
    eval_every=50,
)


@REGISTRY.register("my-task", reference="who, where")
def my_task(_: NoParameters, setting: TaskSetting) -> Task:
    """Stripes: 8 x 8 pixels of noise with a bright row (class 0) or a bright column (class 1)."""
    return Task(DEFAULTS, _load, SHAPE, TRAIN, test_size=TEST)


def _load() -> Images:
    draws = np.random.Generator(np.random.Philox(0))  # the same data in every run, whatever its seed
    labels = draws.integers(2, size=TRAIN + TEST)
    images = draws.integers(100, size=(TRAIN + TEST, 1, 8, 8), dtype=np.uint8)
    for image, label, place in zip(images, labels, draws.integers(4, size=TRAIN + TEST), strict=True):
        (image[0, place] if label == 0 else image[0, :, place + 4])[:] = 250
    pictures, classes = torch.from_numpy(images), torch.from_numpy(labels)
    train, test = slice(TRAIN), slice(TRAIN, None)
    data = pictures[train], classes[train], pictures[test], classes[test]
    return Images(*data, mean=(0.29,), std=(0.27,), shape=SHAPE)
