"""Normalised SGD with momentum, by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dynabro_cli.components.methods._api import MeansMethod, MethodSetting
from dynabro_cli.components.methods.nsgdm import Parameters, normalised, nsgdm
from tests.simulation.reference import quadratic
from tests.tables import each_row


def test_golden() -> None:
    """beta = 1/2: gradients (6, 8) twice give momenta (3, 4) and (4.5, 6); both have the direction
    (0.6, 0.8).
    """
    made = nsgdm(Parameters(beta=0.5), MethodSetting(2, 100))
    assert isinstance(made, MeansMethod)
    assert made.settle is not None
    state: dict[str, Tensor] = {}
    for expected in ([3.0, 4.0], [4.5, 6.0]):
        messages, state = made.send(
            torch.tensor([[6.0, 8.0], [6.0, 8.0]], dtype=torch.float64), state
        )
        assert messages.tolist() == [expected, expected]
        direction, state = made.settle(messages.mean(0), state)
        torch.testing.assert_close(direction, torch.tensor([0.6, 0.8], dtype=torch.float64))
    assert list(state) == ["momentum"]


@each_row("size", [1e-42, 1e-20, 1e20, 1e38])
def test_any_length_becomes_1_and_none_stays_0(size: float) -> None:
    direction, _ = normalised(torch.tensor([0.0, -size]), {})
    assert direction.dtype == torch.float32
    torch.testing.assert_close(direction, torch.tensor([0.0, -1.0]))
    assert normalised(torch.zeros(2), {})[0].tolist() == [0.0, 0.0]


def test_every_step_of_a_run_has_the_same_length() -> None:
    outcome = quadratic(method="nsgdm", workers=5, byzantine=2, budget=30, learning_rate=0.1)
    assert outcome.norms == pytest.approx([1.0] * 30)
