"""Torch's settings of the caller: they do not change a run, and are as before at every event."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch

from dynabro_cli import RunSpec, simulate
from dynabro_cli.core import events
from dynabro_cli.simulation import setup

SPEC = RunSpec(
    task="digits",
    method="momentum",
    aggregator="nnm+cwtm",
    attack="alie",
    learning_rate=0.1,
    budget=20,
    workers=5,
    byzantine=1,
)


def numbers() -> list[object]:
    return [
        (event.test_accuracy, event.test_loss, event.train_loss)
        for event in simulate(SPEC, threads=1, compile="off")
        if isinstance(event, events.Evaluated)
    ]


@contextlib.contextmanager
def default(dtype: torch.dtype, device: str | None = None) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)


@pytest.mark.parametrize(
    "context",
    [
        torch.autocast("cpu", torch.bfloat16),
        default(torch.float64),
        default(torch.bfloat16),
        default(torch.float32, "meta"),
        torch.device("meta"),
        torch.inference_mode(),
    ],
    ids=["autocast", "double", "bfloat16", "meta", "context of meta", "inference"],
)
def test_settings_of_the_caller(context: contextlib.AbstractContextManager[object]) -> None:
    def seen() -> tuple[object, ...]:
        return (
            torch.get_default_dtype(),
            torch.get_default_device(),
            torch.is_autocast_enabled("cpu"),
            torch.is_inference_mode_enabled(),
            torch.is_grad_enabled(),
        )

    expected, results = numbers(), list[object]()
    with context:
        before = seen()
        for event in simulate(SPEC, threads=1, compile="off"):
            assert seen() == before
            if isinstance(event, events.Evaluated):
                results.append((event.test_accuracy, event.test_loss, event.train_loss))
        assert seen() == before
    assert results == expected


def test_deterministic_algorithms_end_with_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "current", lambda _: contextlib.nullcontext())
    assert torch.get_deterministic_debug_mode() == 0
    with setup._settings(torch.device("cuda"), "auto"):
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert not torch.utils.deterministic.fill_uninitialized_memory
    assert torch.get_deterministic_debug_mode() == 0
    assert torch.utils.deterministic.fill_uninitialized_memory
