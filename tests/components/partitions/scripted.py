"""Streams whose draws are written down, so that partitions can be worked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np


class Scripted:
    """Stand-in for ``Streams`` and its generator: proportions and counts in the given order;
    permutations change nothing.
    """

    def __init__(
        self, proportions: list[Any] | None = None, counts: list[list[int]] | None = None
    ) -> None:
        self.proportions, self.counts = proportions or [], counts or []
        self.asked: list[tuple[Any, ...]] = []

    def generator(self, *counter: Any) -> Scripted:
        self.asked.append(counter)
        return self

    def permutation(self, count: int) -> np.ndarray[Any, Any]:
        return np.arange(count)

    def dirichlet(self, alpha: Any, size: int | None = None) -> np.ndarray[Any, Any]:
        self.asked.append(("dirichlet", list(alpha), size))
        return np.array(self.proportions.pop(0), dtype=float)

    def multinomial(self, count: int, weights: Any) -> np.ndarray[Any, Any]:
        self.asked.append(("multinomial", count, [round(float(weight), 6) for weight in weights]))
        return np.array(self.counts.pop(0))


def split(text: str, labels: list[int], workers: int, streams: Any) -> list[list[int]]:
    """The places of each worker's samples."""
    from dynabro_cli.components.partitions._api import REGISTRY, PartitionSetting

    whole = REGISTRY.parse(text).build(PartitionSetting(workers)).split
    return [part.tolist() for part in whole(np.array(labels), streams)]
