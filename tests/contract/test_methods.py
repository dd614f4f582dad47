"""What every training method promises to the loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from dynabro_cli.methods._api import Method, MethodSetting, Plan
from dynabro_cli.resolve import REGISTRIES

M, D = 4, 3
METHODS = [
    *REGISTRIES["methods"].entries(),
    "momentum:beta=0.99,form=heavy-ball",
    "dynabro:jmax=0",
    "dynabro:jmax=auto",
    "dynabro:filter=option1,noise_bound=1e9",
    "dynabro:filter=option2,noise_bound=1e9",
]


def build(text: str) -> Method:
    method: Method = REGISTRIES["methods"].parse(text).build(MethodSetting(M, 1000, kappa=1.0))
    return method


def plans(method: Method) -> list[Plan]:
    return [method.plan(np.random.Generator(np.random.Philox(seed))) for seed in range(60)]


@pytest.mark.parametrize("text", METHODS)
def test_plans_are_drawn_from_the_generator_alone(text: str) -> None:
    assert plans(build(text)) == plans(build(text))


@pytest.mark.parametrize("text", METHODS)
def test_prefixes_grow_from_one_mini_batch(text: str) -> None:
    for plan in plans(build(text)):
        assert plan.prefixes[0] == 1
        assert list(plan.prefixes) == sorted(plan.prefixes)
        assert all(isinstance(prefix, int) for prefix in plan.prefixes)


@pytest.mark.parametrize("text", METHODS)
def test_a_message_for_every_prefix_and_a_direction_of_them(text: str) -> None:
    """All gradients equal to c make g_1 a multiple of c, whatever the plan."""
    c = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    for plan in set(plans(build(text))):
        method, aggregates = build(text), []
        state: dict[str, Tensor] = {}
        for _ in plan.prefixes:
            message, state = method.send(c.repeat(M, 1), state)
            assert message.shape == (M, D)
            aggregates.append(message.mean(0))
        direction, accepted = method.direct(aggregates, plan)
        gain = 1 - method.beta if method.beta is not None and "heavy-ball" not in text else 1.0
        torch.testing.assert_close(direction, gain * c)
        assert accepted is None or (accepted.dtype == torch.bool and bool(accepted))
        assert all(value.shape[0] == M for value in state.values())


@pytest.mark.parametrize("text", METHODS)
def test_directions_are_linear_in_the_gradients(text: str) -> None:
    """With linear aggregation, round after round: doubling every gradient doubles every g_t."""
    single, double = build(text), build(text)
    states: list[dict[str, Tensor]] = [{}, {}]
    generator = torch.Generator().manual_seed(0)
    for plan in plans(single)[:10]:
        gradients = [torch.randn(M, D, generator=generator, dtype=torch.float64) for _ in plan.prefixes]
        results = []
        for index, (method, scale) in enumerate(((single, 1), (double, 2))):
            aggregates = []
            for gradient in gradients:
                message, states[index] = method.send(scale * gradient, states[index])
                aggregates.append(message.mean(0))
            results.append(method.direct(aggregates, plan)[0])
        torch.testing.assert_close(2 * results[0], results[1])


@pytest.mark.parametrize("text", METHODS)
def test_what_is_remembered_is_declared(text: str) -> None:
    """The gradients of an earlier round show in a message exactly where the method says that they can."""
    sent = []
    for earlier in (1.0, 5.0):
        method = build(text)
        _, state = method.send(torch.full((M, D), earlier), {})
        sent.append(method.send(torch.ones(M, D), state)[0])
    assert torch.equal(*sent) == (not build(text).remembers)


@pytest.mark.parametrize("text", METHODS)
def test_a_state_of_rows_is_0_at_first_and_belongs_to_the_workers(text: str) -> None:
    """What lets some workers send: a state of zeros is none, and each row depends on that worker's gradients alone."""
    method = build(text)
    if not method.by_row:
        return
    first, second = (torch.randn(M, D, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    sent, state = method.send(first.clone(), {})
    assert state
    assert all(value.shape[0] == M for value in state.values())
    zeros = {name: torch.zeros_like(value) for name, value in state.items()}
    assert torch.equal(method.send(first.clone(), zeros)[0], sent)
    kept = {name: value.clone() for name, value in state.items()}
    both, _ = method.send(second.clone(), {name: value.clone() for name, value in kept.items()})
    some, _ = method.send(second[1:3].clone(), {name: value[1:3].clone() for name, value in kept.items()})
    assert torch.equal(some, both[1:3])


@pytest.mark.parametrize("text", METHODS)
def test_the_largest_level_is_the_largest_that_has_a_correction(text: str) -> None:
    method = build(text)
    levels = [plan.level for plan in plans(method) if plan.level is not None and len(plan.prefixes) > 1]
    assert (method.jmax is None) == (not method.mlmc)
    assert max(levels, default=0) <= (method.jmax or 0)
