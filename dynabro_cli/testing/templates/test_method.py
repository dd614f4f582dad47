"""Tests of ``my-method``: the contract of all methods, and its first steps."""

from pathlib import Path

from dynabro_cli.testing import check_method, directions

FILE = Path(__file__).with_name("my_method.py")


def test_contract() -> None:
    check_method("my-method", plugin=FILE)


def test_example() -> None:
    """The aggregate is 1 in every round."""
    assert directions("my-method:beta=0.5", [1.0, 1.0, 1.0], plugin=FILE) == [0.5, 0.75, 0.875]
