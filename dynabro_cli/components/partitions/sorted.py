"""The training set cut in the order of its labels."""

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
from dynabro_cli.core.streams import Streams


@dataclass(frozen=True)
class Parameters:
    server: int = at_server()


@REGISTRY.register(
    "sorted",
    Parameters,
    reference="Karimireddy et al., ICML 2020 (SCAFFOLD): 0% similarity; extreme of ByzFL",
)
def sorted_(_: Parameters, setting: PartitionSetting) -> Partition:
    """Sorted by label: the training set in the order of its labels is cut into m pieces of equal
    size, one per worker.

    Parts of equal size cannot differ more: worker 1 has the first labels and worker m the last, and
    most workers have one or two labels. The seed assigns the samples of a label.
    """

    def split(labels: Whole, streams: Streams) -> list[Whole]:
        places = streams.generator("partition", 0).permutation(len(labels))
        return deal(sorted_by_label(labels, places), setting.workers)

    return Partition(split)
