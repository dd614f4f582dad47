"""Every worker has the whole training set."""

from __future__ import annotations

from dynabro_cli.components.partitions._api import REGISTRY, PartitionSetting


def test_there_is_nothing_to_split() -> None:
    assert REGISTRY.parse("iid").build(PartitionSetting(3)).split is None
