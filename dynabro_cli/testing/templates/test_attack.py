"""Tests of ``my-attack``: the contract of all attacks, and an example worked by hand."""

from pathlib import Path

import torch

from dynabro_cli import load_plugin, make_attack
from dynabro_cli.testing import check_attack

FILE = Path(__file__).with_name("my_attack.py")


def test_contract() -> None:
    check_attack("my-attack", plugin=FILE)


def test_example() -> None:
    load_plugin(FILE)
    vectors, byzantine = (
        torch.tensor([[1.0, -1.0], [3.0, -5.0], [7.0, 7.0]]),
        torch.tensor([False, False, True]),
    )
    assert make_attack("my-attack", workers=3)(vectors, byzantine)[2].tolist() == [-2.0, 3.0]
