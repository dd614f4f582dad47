"""A share of the training set dealt at random, the rest sorted by label."""

from __future__ import annotations

from dataclasses import dataclass

from dynabro_cli.components.partitions._api import (
    REGISTRY,
    Partition,
    PartitionSetting,
    Whole,
    at_server,
    deal,
    sorted_by_label,
)
from dynabro_cli.core.lazy import np
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.streams import Streams


@dataclass(frozen=True)
class Parameters:
    similarity: float = parameter(
        above=0, maximum=1, help="gamma, the share dealt at random (at 0 it would be sorted)"
    )
    server: int = at_server()


@REGISTRY.register(
    "gamma",
    Parameters,
    reference="Karimireddy et al., ICML 2020 (SCAFFOLD), experiments; gamma-similarity of ByzFL",
)
def gamma(parameters: Parameters, setting: PartitionSetting) -> Partition:
    """Gamma-similarity: a share of the training set is dealt at random, the rest in the order of
    its labels.

    Of n samples in random order, the first round(gamma n) are cut into m pieces of equal size. The
    others are sorted by label and cut into m more pieces. Each worker has one piece of both kinds.
    gamma = 1 is a random partition, in which no two workers share a sample.
    """

    def split(labels: Whole, streams: Streams) -> list[Whole]:
        places = streams.generator("partition", 0).permutation(len(labels))
        count = round(parameters.similarity * len(labels))
        alike = deal(places[:count], setting.workers)
        apart = deal(sorted_by_label(labels, places[count:]), setting.workers)
        return [np.concatenate(pair) for pair in zip(alike, apart, strict=True)]

    return Partition(split)
