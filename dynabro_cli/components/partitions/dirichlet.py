"""Label proportions drawn from a Dirichlet distribution."""

from __future__ import annotations

from dataclasses import dataclass

from dynabro_cli.components.partitions._api import (
    REGISTRY,
    Partition,
    PartitionSetting,
    Whole,
    at_server,
)
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.lazy import np
from dynabro_cli.core.registration import format_value, parameter
from dynabro_cli.core.streams import Streams

MOST_DRAWS = 100
"""Largest number of draws; the partition is refused if each of them leaves a worker without a
sample.
"""


@dataclass(frozen=True)
class Parameters:
    alpha: float = parameter(
        above=0, help="concentration: the smaller, the more the workers differ"
    )
    by: str = parameter(
        "worker",
        choices=("worker", "label"),
        help="draw the proportions of labels for each worker, or the proportions of workers "
        "for each label",
    )
    server: int = at_server()


@REGISTRY.register(
    "dirichlet", Parameters, reference="Hsu, Qi & Brown, 2019 (arXiv:1909.06335), Section 3"
)
def dirichlet(parameters: Parameters, setting: PartitionSetting) -> Partition:
    """Dirichlet: each worker's proportions of the c labels are drawn from Dir(alpha, ..., alpha).

    by=worker (Hsu et al.): parts of equal size. One worker after the other draws q from Dir(alpha,
    ..., alpha) over the labels. Then it draws its samples without replacement: first a label by q
    among the labels that have samples left, then any sample of this label.

    by=label (Yurochkin et al., 2019; Li et al., 2022; ByzFL): each label's samples are cut in
    proportions drawn from Dir(alpha, ..., alpha) over the workers, so that the parts also differ in
    size. Draws that leave a worker without a sample are repeated. Raises SpecError after a hundred
    such draws.

    Differs from the paper: Hsu et al. draw q from Dir(alpha p), with p the labels' distribution. If
    c labels are equally frequent, their alpha is c times the alpha here, which is the alpha of most
    code.
    """

    def split(labels: Whole, streams: Streams) -> list[Whole]:
        if parameters.by == "worker":
            generator = streams.generator("partition", 0)
            counts = _of_workers(np.bincount(labels), setting.workers, parameters.alpha, generator)
            return _places(labels, counts, generator)
        for draw in range(MOST_DRAWS):
            generator = streams.generator("partition", draw)
            counts = _of_labels(np.bincount(labels), setting.workers, parameters.alpha, generator)
            if counts.any(1).all():
                return _places(labels, counts, generator)
        raise SpecError(
            f"data=dirichlet:alpha={format_value(parameters.alpha)},by=label left one of "
            f"{setting.workers} workers without a "
            f"sample in each of {MOST_DRAWS} draws. Try: a larger alpha, or by=worker"
        )

    return Partition(split)


def _of_workers(
    remaining: Whole, workers: int, alpha: float, generator: np.random.Generator
) -> Whole:
    """Return the number of samples by worker and label, [m, c], for parts of equal size;
    ``remaining`` [c] is available.
    """
    remaining, total = remaining.copy(), int(remaining.sum())
    counts = np.zeros((workers, len(remaining)), dtype=np.int64)
    for worker in range(workers):
        proportions = generator.dirichlet(np.full(len(remaining), alpha))
        missing = total // workers + (worker < total % workers)
        while missing:  # draws beyond the rest of a label are repeated with the other labels
            weights = np.where(remaining > 0, proportions, 0.0)
            # with a small alpha all proportions may belong to labels that are used up
            if weights.sum() < 1e-300:
                weights = remaining.astype(float)
            drawn = np.minimum(generator.multinomial(missing, weights / weights.sum()), remaining)
            counts[worker] += drawn
            remaining -= drawn
            missing -= int(drawn.sum())
    return counts


def _of_labels(present: Whole, workers: int, alpha: float, generator: np.random.Generator) -> Whole:
    """Return the number of samples by worker and label, [m, c], with each label's samples cut in
    random proportions.
    """
    proportions = generator.dirichlet(np.full(workers, alpha), size=len(present))  # [c, m]
    ends = np.floor(proportions.cumsum(1) * present[:, None]).astype(np.int64)
    ends[:, -1] = present
    return np.diff(ends, axis=1, prepend=0).T


def _places(labels: Whole, counts: Whole, generator: np.random.Generator) -> list[Whole]:
    """Deal the samples of each label in random order, in the numbers of ``counts`` [m, c]."""
    order = generator.permutation(len(labels))
    pieces = [
        np.split(order[labels[order] == label], counts[:-1, label].cumsum())
        for label in range(counts.shape[1])
    ]
    return [np.concatenate(parts) for parts in zip(*pieces, strict=True)]
