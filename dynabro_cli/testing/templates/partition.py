"""Workers with a growing number of samples."""

from typing import Any

import numpy as np

from dynabro_cli.plugins import partition


@partition("my-partition", reference="who, where")
def my_partition(
    labels: np.ndarray[Any, Any], *, m: int, generator: np.random.Generator
) -> list[np.ndarray[Any, Any]]:
    """Growing parts: worker i of m has about i/(1 + ... + m) of the samples, drawn at random, and
    at least one.
    """
    ends = np.cumsum(np.arange(1, m)) * (len(labels) - m) // (m * (m + 1) // 2) + np.arange(1, m)
    return np.split(generator.permutation(len(labels)), ends)
