"""Tests of ``my-partition``: the contract of all partitions, and the sizes of its parts."""

from pathlib import Path

from dynabro_cli.testing import check_partition

FILE = Path(__file__).with_name("my_partition.py")


def test_contract() -> None:
    assert check_partition("my-partition", plugin=FILE, workers=3, samples=63) == [11, 21, 31]
