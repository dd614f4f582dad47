"""Handwritten digits that come with scikit-learn."""

from __future__ import annotations

import gzip
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dynabro_cli.components.tasks._api import (
    REGISTRY,
    Defaults,
    Images,
    ImageShape,
    Pixels,
    Task,
    TaskSetting,
)
from dynabro_cli.core.errors import NotFoundError
from dynabro_cli.core.lazy import np, torch

SHAPE = ImageShape(channels=1, height=8, width=8, classes=10)
TRAIN_SIZE, TEST_SIZE = 1437, 360
DIGEST = "a35beacb5b14"
"""``Images.digest`` of scikit-learn's file in this split."""
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


@REGISTRY.register(
    "digits",
    Pixels,
    reference="Alpaydin & Kaynak, UCI Optical Recognition of Handwritten Digits, 1998",
)
def digits(parameters: Pixels, setting: TaskSetting) -> Task:
    """Digits: 1,797 real handwritten digits of 8 x 8 pixels, bundled with scikit-learn; nothing is
    downloaded.

    A fixed stratified split: 1,437 images for training, 360 for testing.
    """
    return Task(
        DEFAULTS,
        lambda: parameters.of(_load()),
        SHAPE,
        TRAIN_SIZE,
        test_size=TEST_SIZE,
        digest=DIGEST,
    )


def _load() -> Images:
    table = _table()
    images = torch.from_numpy(table[:, :-1].reshape(-1, 1, 8, 8))  # grey levels 0 to 16
    labels = torch.from_numpy(table[:, -1].astype(np.int64))
    train, test = (torch.from_numpy(part) for part in _split(table[:, -1]))
    data = Images(
        images[train],
        labels[train],
        images[test],
        labels[test],
        mean=(0.305,),
        std=(0.376,),
        shape=SHAPE,
        scale=16.0,
    )
    if data.digest != DIGEST:
        raise NotFoundError(
            "task=digits: scikit-learn's digits are damaged: their content is not the "
            "published one. "
            "Try: pip install --force-reinstall scikit-learn"
        )
    return data


def _table() -> np.ndarray[Any, Any]:
    """Return the rows of scikit-learn's file, 64 pixels and the label each: uint8 [1797, 65].

    Importing scikit-learn to read one file would take half as long as importing torch.

    Raises:
        NotFoundError: scikit-learn is not installed, or its file is damaged or in another place.
    """
    package = find_spec("sklearn")
    folders = [] if package is None else package.submodule_search_locations or []
    try:
        with gzip.open(
            Path(*folders[:1], "datasets", "data", "digits.csv.gz"), "rt", encoding="ascii"
        ) as file:
            numbers = np.fromstring(file.read().replace("\n", ","), dtype=np.float64, sep=",")
        return numbers.reshape(TRAIN_SIZE + TEST_SIZE, 65).astype(np.uint8)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise NotFoundError(
            f"task=digits: scikit-learn's digits cannot be read ({error}). Try: pip install "
            "scikit-learn"
        ) from error


def _split(labels: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the indices of training and test samples.

    Each class has its rounded share of both; remaining places go to the classes with the largest
    remainders. The random draws equal those in scikit-learn's ``train_test_split`` with
    ``stratify`` and ``random_state=0``.
    """
    generator = np.random.RandomState(0)
    exact = np.bincount(labels) * TRAIN_SIZE / len(labels)
    sizes = np.floor(exact).astype(np.int64)
    for remainder in np.unique(exact - sizes)[::-1]:
        tied, missing = (
            np.flatnonzero(exact - np.floor(exact) == remainder),
            TRAIN_SIZE - sizes.sum(),
        )
        if missing:
            sizes[generator.choice(tied, min(missing, len(tied)), replace=False)] += 1
    orders = [generator.permutation(np.flatnonzero(labels == label)) for label in range(len(sizes))]
    train = np.concatenate([order[:size] for order, size in zip(orders, sizes, strict=True)])
    test = np.concatenate([order[size:] for order, size in zip(orders, sizes, strict=True)])
    return generator.permutation(train), generator.permutation(test)
