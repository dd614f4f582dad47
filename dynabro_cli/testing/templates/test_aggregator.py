"""Tests of ``my-aggregator``: the contract of all rules, and an example worked by hand."""

from pathlib import Path

import torch

from dynabro_cli import load_plugin, make_aggregator
from dynabro_cli.testing import check_aggregator

FILE = Path(__file__).with_name("my_aggregator.py")


def test_contract() -> None:
    check_aggregator("my-aggregator", plugin=FILE, but=["large"])  # its sums and squares overflow


def test_example() -> None:
    load_plugin(FILE)
    messages = torch.tensor([[1.0], [2.0], [3.0], [4.0], [90.0]])
    assert make_aggregator("my-aggregator", workers=5, byzantine=1)(messages).tolist() == [2.5]
