"""Stripes that a network learns to distinguish."""

from typing import Any

import numpy as np

from dynabro_cli.plugins import task


@task("my-task", reference="who, where")
def my_task() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Stripes: 8 x 8 pixels of noise with a bright row (class 0) or a bright column (class 1)."""
    # the same data in every run, whatever its seed
    draws = np.random.Generator(np.random.Philox(0))
    labels = draws.integers(2, size=500)
    images = draws.integers(100, size=(500, 8, 8), dtype=np.uint8)
    for image, label, place in zip(images, labels, draws.integers(4, size=500), strict=True):
        (image[place] if label == 0 else image[:, place + 4])[:] = 250
    return images, labels
