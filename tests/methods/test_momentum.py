"""Worker momentum, by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dynabro_cli.errors import SpecError
from dynabro_cli.experiment.resolve import REGISTRIES
from dynabro_cli.methods._api import Method, MethodSetting, Plan


def method(text: str) -> Method:
    built: Method = REGISTRIES["methods"].parse(text).build(MethodSetting(2, 100))
    return built


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


@pytest.mark.parametrize(("form", "factor"), [("ema", 1.0), ("heavy-ball", 4.0)])
def test_golden(form: str, factor: float) -> None:
    """beta = 3/4, m_0 = 0: gradients 8, 16, 0 of the first worker give 2, 5.5, 4.125; without (1 - beta) four times that."""
    made = method(f"momentum:beta=0.75,form={form}")
    assert made.beta == 0.75
    state: dict[str, Tensor] = {}
    for own, expected in ((column(8, -4), (2, -1)), (column(16, 0), (5.5, -0.75)), (column(0, 4), (4.125, 0.4375))):
        before = own.clone()
        message, state = made.send(own, state)
        assert message.flatten().tolist() == [factor * value for value in expected]
        assert torch.equal(own, before), "gradients are not the method's to change"
    assert state["momentum"].flatten().tolist() == [factor * 4.125, factor * 0.4375]


def test_a_kept_message_is_what_momentum_goes_on_from() -> None:
    made = method("momentum:beta=0.5")
    _, state = made.send(column(4, 4), {})
    state = made.keep(column(2, -2), state)
    message, _ = made.send(column(0, 0), state)
    assert message.flatten().tolist() == [1.0, -1.0]


def test_the_direction_is_the_aggregate_of_the_messages() -> None:
    direction, accepted = method("momentum").direct([torch.tensor([3.0])], Plan(None, (1,)))
    assert direction.tolist() == [3.0]
    assert accepted is None


@pytest.mark.parametrize("text", ["momentum:beta=1", "momentum:beta=-0.1", "momentum:form=nesterov"])
def test_illegal_parameters(text: str) -> None:
    with pytest.raises(SpecError, match="is not legal"):
        method(text)
