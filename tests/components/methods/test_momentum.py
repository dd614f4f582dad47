"""Worker momentum, by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dynabro_cli import RunSpec, simulate
from dynabro_cli.components.methods._api import MeansMethod, MethodSetting, Plan
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.events import Diverged, Finished


def method(text: str) -> MeansMethod:
    built: MeansMethod = REGISTRIES["methods"].parse(text).build(MethodSetting(2, 100))
    return built


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


@pytest.mark.parametrize(("form", "factor"), [("ema", 1.0), ("heavy-ball", 4.0)])
def test_golden(form: str, factor: float) -> None:
    """beta = 3/4, m_0 = 0: gradients 8, 16, 0 of the first worker give 2, 5.5, 4.125; without (1 -
    beta) four times that.
    """
    made = method(f"momentum:beta=0.75,form={form}")
    assert made.beta == 0.75
    state: dict[str, Tensor] = {}
    for own, expected in (
        (column(8, -4), (2, -1)),
        (column(16, 0), (5.5, -0.75)),
        (column(0, 4), (4.125, 0.4375)),
    ):
        before = own.clone()
        message, state = made.send(own, state)
        assert message.flatten().tolist() == [factor * value for value in expected]
        assert torch.equal(own, before), "gradients are not the method's to change"
    assert state["momentum"].flatten().tolist() == [factor * 4.125, factor * 0.4375]


def test_golden_that_starts_at_the_first_gradient() -> None:
    """beta = 3/4, m_1 = g_1 = 8: then 6 + 16/4, and 3/4 of that."""
    made, zero = method("momentum:beta=0.75,start=gradient"), method("momentum:beta=0.75")
    state: dict[str, Tensor] = {}
    for own, expected in (
        (column(8, -4), (8, -4)),
        (column(16, 0), (10, -3)),
        (column(0, 4), (7.5, -1.25)),
    ):
        message, state = made.send(own, state)
        assert message.flatten().tolist() == list(expected)
    assert zero.by_row
    assert not made.by_row, (
        "the row of a worker that has not answered yet is 0, not its first gradient"
    )
    assert method("momentum:form=heavy-ball,start=gradient").by_row


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


@pytest.mark.parametrize(
    ("mode", "remembered"),
    [("poisoned", (3.0, 4.0)), ("frozen", (2.0, 4.0)), ("reset", (0.0, 4.0))],
)
def test_what_a_byzantine_worker_remembers(mode: str, remembered: tuple[float, float]) -> None:
    """beta = 1/2: after gradients 4 and 4 both have m = 2; then they are 4 and 6, and the first
    worker is Byzantine.
    """
    made = method(f"momentum:beta=0.5,byzantine={mode}")
    byzantine = torch.tensor([True, False])
    state: dict[str, Tensor] = {}
    for own, mask in ((column(4, 4), ~byzantine & byzantine), (column(4, 6), byzantine)):
        before = state
        message, state = made.send(own, state)
        expected = message.clone()
        if made.recall is not None:
            state = made.recall(before, state, mask)
        assert torch.equal(message, expected), "what is sent does not change"
    assert message.flatten().tolist() == [3.0, 4.0]
    assert state["momentum"].flatten().tolist() == list(remembered)


@pytest.mark.parametrize("mode", ["frozen", "reset"])
def test_a_worker_that_is_byzantine_from_the_start_remembers_nothing(mode: str) -> None:
    made = method(f"momentum:beta=0.5,byzantine={mode}")
    message, state = made.send(column(4, 4), {})
    assert made.recall is not None
    state = made.recall({}, state, torch.tensor([True, False]))
    assert message.flatten().tolist() == [2.0, 2.0]
    assert state["momentum"].flatten().tolist() == [0.0, 2.0]


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["frozen", "reset"])
def test_workers_recover_from_an_attack_that_their_memory_would_keep(mode: str) -> None:
    """Every worker is Byzantine at some time, and then sends an Inf, which a poisoned momentum
    never loses.
    """
    fields = {
        "model": "logistic",
        "aggregator": "cwmed",
        "attack": "inf",
        "switching": "round-robin:K=2",
    }
    sizes = {"workers": 5, "byzantine": 2, "budget": 40, "eval_every": 20}
    ends = {
        text: list(
            simulate(RunSpec.from_mapping({"method": f"momentum:beta=0.5{text}"} | fields | sizes))
        )[-1]
        for text in ("", f",byzantine={mode}")
    }
    assert isinstance(ends[""], Diverged)
    assert isinstance(ends[f",byzantine={mode}"], Finished)


@pytest.mark.parametrize(
    "text", ["momentum:beta=1", "momentum:beta=-0.1", "momentum:form=nesterov"]
)
def test_illegal_parameters(text: str) -> None:
    with pytest.raises(SpecError, match="is not legal"):
        method(text)
