"""Tests of ``my-switching``: the contract of all strategies, and an example worked by hand."""

from pathlib import Path

from dynabro_cli import load_plugin, make_switching
from dynabro_cli.testing import check_switching

FILE = Path(__file__).with_name("my_switching.py")


def test_contract() -> None:
    check_switching("my-switching", plugin=FILE)


def test_example() -> None:
    load_plugin(FILE)
    masks = [
        make_switching("my-switching:K=2", workers=4, byzantine=2).mask(tick)
        for tick in (0, 1, 2, 6)
    ]
    assert [mask.nonzero().flatten().tolist() for mask in masks] == [[0, 1], [0, 1], [1, 2], [0, 3]]
