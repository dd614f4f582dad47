"""Tests of ``my-model``: the contract of all models, and its size."""

from pathlib import Path

from dynabro_cli.testing import check_model

FILE = Path(__file__).with_name("my_model.py")


def test_contract() -> None:
    assert (
        check_model("my-model:width=5", plugin=FILE, shape=(1, 8, 8, 10))
        == (64 + 1) * 5 + (5 + 1) * 10
    )
