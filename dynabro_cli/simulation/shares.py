"""Which training samples are whose, and which are held out: both drawn once, before the first round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dynabro_cli.components import Component
from dynabro_cli.errors import SpecError
from dynabro_cli.experiment.samples import held_out
from dynabro_cli.partitions._api import PartitionSetting, Whole
from dynabro_cli.streams import Streams
from dynabro_cli.tasks._api import Images

Labelled = tuple[Tensor, Tensor]
"""Images [n, c, h, w] and labels [n]."""
Counts = tuple[tuple[int, int, int], ...]
"""(worker, label, count) for every label of which a worker has samples."""

SAME_FOR_ALL = Streams(0)
"""Where the held-out samples come from, whatever the run's seed: runs with different seeds are chosen by the same samples."""


def hold_out(images: Images, share: float) -> tuple[Images, Labelled | None]:
    """Take a share of the training set out of it, drawn uniformly; return what is left, and what was taken.

    The same samples for every run on a data set; those of a smaller share are among those of a larger one.
    """
    if not share:
        return images, None
    count = held_out(share, len(images.train_labels))
    order = torch.from_numpy(SAME_FOR_ALL.generator("validation", 0).permutation(len(images.train_labels)))
    taken, kept = order[:count].sort().values, order[count:].sort().values
    rest = replace(images, train_images=images.train_images[kept], train_labels=images.train_labels[kept])
    return rest, (images.train_images[taken], images.train_labels[taken])


@dataclass(frozen=True)
class Shares:
    """The training samples of each worker.

    Attributes:
        order: Places of samples in the training set, those of worker 0 first, then those of worker 1, ...
        starts: Where each worker's begin in ``order``, [m, 1].
        sizes: How many each has, [m, 1].
        counts: How many of them have which label.
    """

    order: Whole
    starts: Whole
    sizes: Whole
    counts: Counts

    def draw(self, generator: np.random.Generator, batch_size: int) -> Whole:
        """Draw a mini-batch for each worker, uniformly with replacement from its samples: places [m, B]."""
        drawn: Whole = generator.integers(self.sizes, size=(len(self.sizes), batch_size))
        places: Whole = self.order[self.starts + drawn]
        return places

    def of(self, worker: int) -> Whole:
        """The places of a worker's samples in the training set."""
        start, size = int(self.starts[worker, 0]), int(self.sizes[worker, 0])
        places: Whole = self.order[start : start + size]
        return places


def share_out(partition: Component[Any], images: Images, workers: int, streams: Streams) -> Shares | None:
    """Give each worker its training samples; None where each has them all.

    Raises:
        SpecError: A worker would have none.
    """
    split = partition.build(PartitionSetting(workers)).split
    if split is None:
        return None
    labels = images.train_labels.numpy()
    if workers > len(labels):
        raise SpecError(
            f"data={partition.text} cannot share {len(labels)} training samples among workers={workers}; type fewer --workers"
        )
    parts = split(labels, streams)
    empty = sum(not len(part) for part in parts)
    if empty:
        raise SpecError(f"data={partition.text} leaves {empty} of {workers} workers without a sample; type another --data")
    sizes = np.array([len(part) for part in parts])
    starts = np.concatenate([[0], sizes.cumsum()[:-1]])
    found = [(worker, *np.unique(labels[part], return_counts=True)) for worker, part in enumerate(parts)]
    counts = [(worker, int(label), int(n)) for worker, own, many in found for label, n in zip(own, many, strict=True)]
    return Shares(np.concatenate(parts), starts[:, None], sizes[:, None], tuple(counts))
