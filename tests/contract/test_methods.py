"""Promises of every training method to the loop."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dynabro_cli.components.methods._api import (
    GatheringMethod,
    JudgingMethod,
    MeansMethod,
    Measured,
    Method,
    MethodSetting,
    Plan,
)
from dynabro_cli.components.registries import REGISTRIES
from tests.components.methods.made import made
from tests.tables import each_row

M, D = 4, 3
METHODS = [
    *REGISTRIES["methods"].entries(),
    "momentum:beta=0.99,form=heavy-ball",
    "dynabro:jmax=0",
    "dynabro:jmax=auto",
    "dynabro:filter=option1,noise_bound=1e9",
    "dynabro:filter=option2,noise_bound=1e9",
    "dynabro:filter=adaptive,clip=4",
    "byzantine-sgd:noise_bound=1,empty=wait",
    "safeguard:guards=single,noise_bound=1",
    "safeguard:noise_bound=1,step=before,empty=wait",
    "local-steps:H=3",
]


def build(text: str) -> Method:
    return made(text, MethodSetting(M, 1000), Measured(kappa=1.0))


JUDGES = [text for text in METHODS if isinstance(build(text), JudgingMethod)]
GATHERERS = [text for text in METHODS if isinstance(build(text), GatheringMethod)]


SENDERS = [text for text in METHODS if isinstance(build(text), MeansMethod)]


def plans(method: Method) -> list[Plan]:
    return [method.plan(np.random.Generator(np.random.Philox(seed))) for seed in range(60)]


@each_row("text", METHODS)
def test_plans_are_drawn_from_the_generator_alone(text: str) -> None:
    assert plans(build(text)) == plans(build(text))


@each_row("text", METHODS)
def test_prefixes_grow_from_one_mini_batch(text: str) -> None:
    for plan in plans(build(text)):
        assert plan.prefixes[0] == 1 or (text in GATHERERS and len(plan.prefixes) == 1)
        assert list(plan.prefixes) == sorted(plan.prefixes)
        assert all(isinstance(prefix, int) for prefix in plan.prefixes)


@each_row("text", SENDERS)
def test_a_message_for_every_prefix_and_a_direction_of_them(text: str) -> None:
    """If all gradients equal c, g_1 is a multiple of c, whatever the plan."""
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


@each_row("text", SENDERS)
def test_directions_are_linear_in_the_gradients(text: str) -> None:
    """Doubling every gradient doubles every g_t, round after round, if aggregation is linear."""
    single, double = build(text), build(text)
    states: list[dict[str, Tensor]] = [{}, {}]
    generator = torch.Generator().manual_seed(0)
    for plan in plans(single)[:10]:
        gradients = [
            torch.randn(M, D, generator=generator, dtype=torch.float64) for _ in plan.prefixes
        ]
        results = []
        for index, (method, scale) in enumerate(((single, 1), (double, 2))):
            aggregates = []
            for gradient in gradients:
                message, states[index] = method.send(scale * gradient, states[index])
                aggregates.append(message.mean(0))
            results.append(method.direct(aggregates, plan)[0])
        torch.testing.assert_close(2 * results[0], results[1])


@each_row("text", SENDERS)
def test_what_is_remembered_is_declared(text: str) -> None:
    """The gradients of an earlier round show in a message exactly where the method says that they
    can.
    """
    sent = []
    for earlier in (1.0, 5.0):
        method = build(text)
        _, state = method.send(torch.full((M, D), earlier), {})
        sent.append(method.send(torch.ones(M, D), state)[0])
    assert torch.equal(*sent) == (not build(text).remembers)


@each_row("text", [text for text in SENDERS if build(text).by_row])
def test_a_state_of_rows_is_0_at_first_and_belongs_to_the_workers(text: str) -> None:
    """Conditions for letting only some workers send: zeros are an empty state, and a row depends
    only on its worker.
    """
    method = build(text)
    first, second = (
        torch.randn(M, D, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)
    )
    sent, state = method.send(first.clone(), {})
    assert state
    assert all(value.shape[0] == M for value in state.values())
    zeros = {name: torch.zeros_like(value) for name, value in state.items()}
    assert torch.equal(method.send(first.clone(), zeros)[0], sent)
    kept = {name: value.clone() for name, value in state.items()}
    both, _ = method.send(second.clone(), {name: value.clone() for name, value in kept.items()})
    some, _ = method.send(
        second[1:3].clone(), {name: value[1:3].clone() for name, value in kept.items()}
    )
    assert torch.equal(some, both[1:3])


@each_row(
    "text", [text for text in METHODS if any(plan.level is not None for plan in plans(build(text)))]
)
def test_the_largest_level_is_the_largest_that_has_a_correction(text: str) -> None:
    method = build(text)
    levels = [
        plan.level for plan in plans(method) if plan.level is not None and len(plan.prefixes) > 1
    ]
    assert max(levels, default=0) <= (method.jmax or 0)


def judge(
    text: str, messages: Tensor, state: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The verdict of a method that knows V, at x = 0."""
    method = made(text, MethodSetting(M, 1000), Measured(noise=1.0))
    assert isinstance(method, JudgingMethod)
    return method.judge(messages, torch.zeros(D), state)


@each_row("text", JUDGES)
def test_equal_messages_all_count(text: str) -> None:
    state: dict[str, Tensor] = {}
    for round_ in range(70):  # past the end of the shortest default window, and of the longest
        good, state = judge(text, torch.full((M, D), float(round_)), state)
        assert good.shape == (M,)
        assert good.dtype == torch.bool
        assert bool(good.all())


@each_row("text", JUDGES)
@each_row("value", [float("nan"), 3e38])
def test_what_is_not_finite_never_counts_and_leaves_no_trace_in_others(
    text: str, value: float
) -> None:
    """3e38 is finite, but its square is not; a square of Inf is the same Inf."""
    generator = torch.Generator().manual_seed(0)
    state: dict[str, Tensor] = {}
    for _ in range(5):
        messages = torch.rand(M, D, generator=generator)
        messages[2, 1] = value
        before = messages.clone()
        good, state = judge(text, messages, state)
        assert torch.equal(messages, before) or value != value
        if "step=before" not in text or value != 3e38:
            assert good.tolist() == [True, True, False, True]
    assert all(kept.isfinite().all() for kept in state.values()) or value == 3e38


@each_row("text", JUDGES)
def test_a_verdict_depends_on_messages_and_state_alone(text: str) -> None:
    generator = torch.Generator().manual_seed(1)
    rounds = [4 * torch.randn(M, D, generator=generator) for _ in range(40)]
    found = []
    for _ in range(2):
        state: dict[str, Tensor] = {}
        verdicts = []
        for messages in rounds:
            good, state = judge(text, messages, state)
            verdicts.append(good.tolist())
        found.append(verdicts)
    assert found[0] == found[1]


@each_row("text", GATHERERS)
def test_gathering_is_drawn_and_asked_for_as_planned(text: str) -> None:
    """If all gradients equal c everywhere, the first direction is c, and nothing else changes x."""
    c = torch.tensor([1.0, -2.0, 0.5])

    class Constant:
        x = torch.zeros(D)

        def gradients(self, computation: int, points: Tensor | None = None) -> Tensor:
            assert computation < plan.prefixes[-1]
            return c.repeat(M, 1)

        def large(self, batches: int) -> Tensor:
            assert batches == plan.prefixes[-1]
            return c.repeat(M, 1)

        def attacked(self, gradients: Tensor, computation: int) -> Tensor:
            return gradients

    method, workers, state = build(text), Constant(), {}
    plan = method.plan_of(0, np.random.default_rng(0))
    for following in plans(method)[:20]:
        assert isinstance(method, GatheringMethod)
        gathered = method.gather(workers, plan, state)
        assert gathered.vectors.shape == (M, D)
        messages = (
            gathered.vectors
            if method.receive is None
            else method.receive(gathered.vectors, gathered.state)
        )
        direction, state = messages.mean(0), gathered.state
        if method.settle is not None:
            direction, state = method.settle(direction, state)
        if text == "mu2-sgd":  # a share of c, the rest later, because its points are averages
            direction = direction * c.norm() / direction.norm()
        torch.testing.assert_close(direction, c)
        assert (plan.cohort is None) or (len(plan.cohort) == method.cohort)
        assert workers.x.tolist() == [0.0] * D
        plan = following
