"""The contract of partitions of the training set among the workers, and their registry.

A partition is a factory ``(parameters, PartitionSetting) -> Partition``. Each worker draws its
mini-batches uniformly with replacement from its own part, whether it is honest or Byzantine. The
parts depend only on the data set, the number of workers and the seed: two methods with the same
seed share the data in the same way.

The server may have samples, too: the parameter ``server`` of a partition is their number. They are
drawn uniformly before the workers' parts, from a separate random stream. No worker has them,
whatever the rule, so that rules with and without trusted data train on the same samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.lazy import np
from dynabro_cli.core.registration import Registry, parameter
from dynabro_cli.core.streams import Streams

Whole: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
"""Array of integers: labels or indices of samples."""


@dataclass(frozen=True)
class PartitionSetting:
    """Setting of a partition.

    Attributes:
        workers: The number m of workers.
    """

    workers: int


class Partition(NamedTuple):
    """A partition in its setting.

    Attributes:
        split: Maps the labels [n] of the training set and the run's streams, of which it uses
            ``partition``, to the indices of each worker's samples: m arrays that have every sample
            once. None if every worker has the whole set.
    """

    split: Callable[[Whole, Streams], list[Whole]] | None


REGISTRY: Registry[Callable[..., Partition]] = Registry("partition", __package__)


def at_server() -> Any:
    """Declare the parameter ``server`` of a partition."""
    return parameter(
        0,
        minimum=0,
        later=True,
        help="samples that the server holds, and no worker: trusted data of its rule",
    )


def server_samples(text: str) -> int:
    """Return the number of samples that the server holds; 0 if the partition has no such parameter,
    or is not legal.
    """
    try:
        return getattr(REGISTRY.parse(text).parameters, "server", 0)
    except SpecError:
        return 0  # resolve reports it


def sorted_by_label(labels: Whole, places: Whole) -> Whole:
    """Return ``places`` in the order of their labels; samples with one label keep their order."""
    return places[np.argsort(labels[places], kind="stable")]


def deal(places: Whole, workers: int) -> list[Whole]:
    """Cut ``places`` into one piece for each worker; sizes differ by at most one, and larger pieces
    come first.
    """
    return np.array_split(places, workers)
