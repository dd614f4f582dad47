"""SGD, by hand."""

from __future__ import annotations

import torch

from dynabro_cli.components.methods._api import MethodSetting, Plan
from dynabro_cli.components.registries import REGISTRIES


def test_gradients_go_out_as_they_are_and_come_back_aggregated() -> None:
    method = REGISTRIES["methods"].parse("sgd").build(MethodSetting(2, 100))
    gradients = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    messages, state = method.send(gradients, {})
    assert messages is gradients
    assert state == {}
    direction, accepted = method.direct([messages.mean(0)], Plan(None, (1,)))
    assert direction.tolist() == [2.0, 4.0]
    assert accepted is None
    assert method.keep(messages, {}) == {}
    assert method.beta is None
