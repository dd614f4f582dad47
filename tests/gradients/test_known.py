"""How a model's gradients are computed, remembered from one command to the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dynabro_cli.gradients import known
from dynabro_cli.gradients.engine import SHARED

WAY = known.Way(SHARED, 0)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setattr(known.platformdirs, "user_cache_path", lambda _: tmp_path / "cache")
    return tmp_path / "cache" / "gradients"


def linear(shape: Any) -> Any:
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(shape.channels * shape.height * shape.width, shape.classes))


def never(_: Any) -> Any:
    raise AssertionError("the model was built")


def test_a_trial_is_made_once(cache: Path) -> None:
    assert known.known_way(linear, linear) == WAY
    assert known.known_way(linear, never) == WAY
    assert len(list(cache.iterdir())) == 1


def test_models_of_one_file_are_told_apart(cache: Path) -> None:
    known.known_way(linear, linear)
    with pytest.raises(AssertionError, match="the model was built"):
        known.known_way(never, never)


@pytest.mark.parametrize("what", ["torch", "source", "processor"])
def test_another_program_makes_a_trial_of_its_own(
    what: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert known.known_way(linear, linear) == WAY
    if what == "torch":
        monkeypatch.setattr(known.metadata, "version", lambda _: "0.1")
    elif what == "source":
        (tmp_path / "more.py").write_text("")
        monkeypatch.setattr(known, "FOLDER", tmp_path)
    else:
        monkeypatch.setattr(known.native, "processor", lambda: "abacus")
    with pytest.raises(AssertionError, match="the model was built"):
        known.known_way(linear, never)


def test_a_cache_that_cannot_be_written_is_none(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in its place")
    assert known.known_way(linear, linear) == WAY


def test_a_model_that_no_image_fits_is_remembered_too(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dynabro_cli.gradients.known.way_of", lambda _: None)
    assert known.known_way(linear, linear) is None
    assert known.known_way(linear, never) is None


@pytest.mark.parametrize("text", ["", "nonsense", "[1, 2, 3]", "7", '"shared"'])
def test_a_damaged_answer_is_found_out_again(text: str, cache: Path) -> None:
    known.known_way(linear, linear)
    (file,) = cache.iterdir()
    file.write_text(text)
    assert known.known_way(linear, linear) == WAY
    assert known.known_way(linear, never) == WAY
