"""Test of ``my-figure``: it draws a stored run."""

from pathlib import Path

from dynabro_cli.testing import check_figure

FILE = Path(__file__).with_name("my_figure.py")


def test_contract(tmp_path: Path) -> None:
    numbers = check_figure("my-figure", tmp_path, plugin=FILE)
    assert list(numbers.columns) == ["method", "wall_seconds"]
