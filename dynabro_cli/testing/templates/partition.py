"""Workers with ever more samples."""

from __future__ import annotations

import numpy as np

from dynabro_cli.components import NoParameters
from dynabro_cli.partitions._api import REGISTRY, Partition, PartitionSetting, Whole
from dynabro_cli.streams import Streams


@REGISTRY.register("my-partition", reference="who, where")
def my_partition(_: NoParameters, setting: PartitionSetting) -> Partition:
    """Growing parts: worker i of m has about i/(1 + ... + m) of the samples, drawn at random, and at least one."""
    m = setting.workers

    def split(labels: Whole, streams: Streams) -> list[Whole]:
        places = streams.generator("partition", 0).permutation(len(labels))
        ends = np.cumsum(np.arange(1, m)) * (len(labels) - m) // (m * (m + 1) // 2) + np.arange(1, m)
        return np.split(places, ends)

    return Partition(split)
