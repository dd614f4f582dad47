"""The number of threads of a run."""

from __future__ import annotations

import pytest
import torch

from dynabro_cli import RunSpec, simulate
from dynabro_cli.simulation import setup

pytestmark = pytest.mark.usefixtures("same_threads_after")

SPEC = RunSpec(task="quadratic", method="sgd", attack="none", aggregator="mean", budget=1)


def threads_of(*, small: bool, monkeypatch: pytest.MonkeyPatch, **given: int) -> int:
    monkeypatch.setattr(setup, "ONE_THREAD_VALUES", 1 << 18 if small else 0)
    list(simulate(SPEC, **given))  # type: ignore[arg-type]
    return torch.get_num_threads()


def test_a_small_run_takes_one_thread_unless_another_number_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.set_num_threads(3)
    assert threads_of(small=False, monkeypatch=monkeypatch) == 3
    assert threads_of(small=True, monkeypatch=monkeypatch) == 1
    assert threads_of(small=True, monkeypatch=monkeypatch) == 1
    assert threads_of(small=False, monkeypatch=monkeypatch) == 3, "the number that was there before"
    assert threads_of(small=True, threads=2, monkeypatch=monkeypatch) == 2
    assert threads_of(small=False, monkeypatch=monkeypatch) == 2


@pytest.mark.parametrize(
    ("model", "small"), [("mlp", True), ("cnn-digits", True), ("mlp:hidden=1000", False)]
)
def test_which_runs_are_small(model: str, small: bool) -> None:
    run = setup.resolve(RunSpec(task="digits", model=model))
    assert setup._is_small(run) is small
