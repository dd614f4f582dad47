"""Tests of ``my-task``: the contract of all tasks, and its first image."""

from pathlib import Path

from dynabro_cli.components.tasks._api import Images
from dynabro_cli.testing import check_task

FILE = Path(__file__).with_name("my_task.py")


def test_contract() -> None:
    data = check_task("my-task", plugin=FILE)
    assert isinstance(data, Images)
    bright = data.train_images[0, 0] == 250
    assert bright.all(1).any() == (data.train_labels[0] == 0)
