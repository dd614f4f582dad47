"""Tests of ``my-pre-aggregator``: the contract of all pre-aggregators, and an example worked by
hand.
"""

from pathlib import Path

import torch

from dynabro_cli import load_plugin, make_pre_aggregator
from dynabro_cli.testing import check_pre_aggregator

FILE = Path(__file__).with_name("my_pre_aggregator.py")


def test_contract() -> None:
    # it shortens towards 0
    check_pre_aggregator("my-pre-aggregator", plugin=FILE, but=["origin", "large"])


def test_example() -> None:
    load_plugin(FILE)
    messages = torch.tensor([[1.0], [-2.0], [90.0]])
    assert make_pre_aggregator("my-pre-aggregator", workers=3, byzantine=1)(messages).tolist() == [
        [1.0],
        [-2.0],
        [2.0],
    ]
