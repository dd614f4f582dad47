"""Every worker has the whole training set."""

from __future__ import annotations

from dynabro_cli.components import NoParameters
from dynabro_cli.partitions._api import REGISTRY, Partition, PartitionSetting


@REGISTRY.register("iid", reference="DynaBRO (ICML 2024), Section 2: all workers share one distribution")
def iid(_: NoParameters, setting: PartitionSetting) -> Partition:
    """Homogeneous: every worker draws its mini-batches from the whole training set."""
    return Partition(None)
