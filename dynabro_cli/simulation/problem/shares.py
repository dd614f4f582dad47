"""Training samples of each worker and of the server, and held-out samples; all are drawn once,
before the first round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dynabro_cli.components.partitions._api import Partition, Whole
from dynabro_cli.components.tasks._api import Images
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.streams import Streams
from dynabro_cli.experiment.complete import held_out

Labelled = tuple[Tensor, Tensor]
"""Images [n, c, h, w] and labels [n]."""
Counts = tuple[tuple[int, int, int], ...]
"""(worker, label, count) for every label of a worker's samples."""

SAME_FOR_ALL = Streams(0)
"""Seed of the held-out samples, independent of the run's seed: runs with different seeds are
compared on the same samples.
"""


def hold_out(images: Images, share: float) -> tuple[Images, Labelled | None]:
    """Draw a share of the training set uniformly; return the rest and the share.

    Every run on a data set has the same held-out samples; a smaller share is a part of a larger
    share.
    """
    if not share:
        return images, None
    return _taken(
        images, held_out(share, len(images.train_labels)), SAME_FOR_ALL.generator("validation", 0)
    )


def for_server(images: Images, count: int, streams: Streams) -> tuple[Images, Labelled | None]:
    """Draw the server's samples from the training set, uniformly by the run's seed; return the
    rest, and the drawn samples.

    Raises:
        SpecError: Nothing is left for the workers.
    """
    if not count:
        return images, None
    if count >= len(images.train_labels):
        raise SpecError(
            f"server={count} leaves no sample of {len(images.train_labels)} to the workers. "
            "Try: a smaller server="
        )
    return _taken(images, count, streams.generator("trusted", 0))


def _taken(images: Images, count: int, generator: np.random.Generator) -> tuple[Images, Labelled]:
    order = torch.from_numpy(generator.permutation(len(images.train_labels)))
    taken, kept = order[:count].sort().values, order[count:].sort().values
    rest = replace(
        images, train_images=images.train_images[kept], train_labels=images.train_labels[kept]
    )
    return rest, (images.train_images[taken], images.train_labels[taken])


@dataclass(frozen=True)
class Shares:
    """The training samples of each worker.

    Attributes:
        order: Indices of samples in the training set: worker 0's first, then worker 1's, ...
        starts: The start of each worker's samples in ``order``, [m, 1].
        sizes: The number of each worker's samples, [m, 1].
        counts: The numbers by label.
    """

    order: Whole
    starts: Whole
    sizes: Whole
    counts: Counts

    def draw(self, generator: np.random.Generator, batch_size: int) -> Whole:
        """Draw a mini-batch for each worker, uniformly with replacement from its samples: indices
        [m, B].
        """
        drawn: Whole = generator.integers(self.sizes, size=(len(self.sizes), batch_size))
        places: Whole = self.order[self.starts + drawn]
        return places

    def of(self, worker: int) -> Whole:
        """Return the indices of a worker's samples in the training set."""
        start, size = int(self.starts[worker, 0]), int(self.sizes[worker, 0])
        places: Whole = self.order[start : start + size]
        return places


def share_out(
    partition: Partition, name: str, images: Images, workers: int, streams: Streams
) -> Shares | None:
    """Give each worker its training samples; return None if every worker has all samples.

    Args:
        partition: The way in which samples are shared out.
        name: The partition's name, for errors.
        images: The data.
        workers: m.
        streams: The run's random streams.

    Raises:
        SpecError: A worker would have no samples.
    """
    if partition.split is None:
        return None
    labels = images.train_labels.numpy()
    if workers > len(labels):
        raise SpecError(
            f"data={name} cannot share {len(labels)} training samples among workers={workers}. "
            "Try: fewer --workers"
        )
    parts = partition.split(labels, streams)
    empty = sum(not len(part) for part in parts)
    if empty:
        raise SpecError(
            f"data={name} leaves {empty} of {workers} workers without a sample. Try: another --data"
        )
    sizes = np.array([len(part) for part in parts])
    starts = np.concatenate([[0], sizes.cumsum()[:-1]])
    drawn = [
        (worker, *np.unique(labels[part], return_counts=True)) for worker, part in enumerate(parts)
    ]
    counts = [
        (worker, int(label), int(n))
        for worker, worker_labels, many in drawn
        for label, n in zip(worker_labels, many, strict=True)
    ]
    return Shares(np.concatenate(parts), starts[:, None], sizes[:, None], tuple(counts))
