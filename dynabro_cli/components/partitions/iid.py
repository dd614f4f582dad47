"""Every worker has the whole training set."""

from __future__ import annotations

from dataclasses import dataclass

from dynabro_cli.components.partitions._api import REGISTRY, Partition, PartitionSetting, at_server


@dataclass(frozen=True)
class Parameters:
    server: int = at_server()


@REGISTRY.register(
    "iid",
    Parameters,
    reference="DynaBRO (ICML 2024), Section 2: all workers share one distribution",
)
def iid(_: Parameters, setting: PartitionSetting) -> Partition:
    """Homogeneous: every worker draws its mini-batches from the whole training set."""
    return Partition(None)
