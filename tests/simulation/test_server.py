"""The server's aggregates if a method filters workers itself, or has rounds of two kinds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from dynabro_cli import RunSpec
from dynabro_cli.components.aggregators._api import Aggregator
from dynabro_cli.components.attacks._api import memoryless
from dynabro_cli.components.methods._api import GatheringMethod, JudgingMethod, MeansMethod, Method
from dynabro_cli.core.streams import Streams
from dynabro_cli.simulation.round.decision import mean_of
from dynabro_cli.simulation.round.parts import Parts, Question
from dynabro_cli.simulation.round.server import make_server

NOBODY = torch.zeros(3, dtype=torch.bool)


def gathers_nothing(*_: object) -> Any:
    raise AssertionError("the vectors are given")


def counting(step: int) -> Aggregator:
    """Rule that returns the number of its calls, and remembers it."""

    def aggregate(
        messages: Tensor, state: dict[str, Tensor], _: int | Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        assert set(state) <= {"calls"}
        calls = state.get("calls", torch.zeros(())) + step
        return calls.expand(messages.shape[1]), {"calls": calls}

    return Aggregator(aggregate, None)


def parts(method: Method, cohort: Aggregator | None = None) -> Parts:
    attack = memoryless(lambda own, byzantine: torch.where(byzantine[:, None], own + 100, own))
    spec = RunSpec(workers=3, byzantine=1, attack_entry="gradient")
    return Parts(spec, None, method, counting(1), attack, None, Streams(0), cohort=cohort)  # type: ignore[arg-type]


def test_mean_of_those_who_count() -> None:
    messages = torch.tensor([[1.0], [math.nan], [5.0]])
    assert mean_of(messages, torch.tensor([True, False, True])).tolist() == [3.0]
    assert mean_of(messages, NOBODY).tolist() == [0.0]


def test_a_method_that_filters_has_the_last_word() -> None:
    def judge(
        messages: Tensor, x: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        assert x.tolist() == [7.0]
        return messages[:, 0] < 50, {"seen": messages.sum()}

    server = make_server(parts(JudgingMethod(judge=judge)))
    byzantine = torch.tensor([False, True, False])
    question = Question(
        torch.tensor([[1.0], [2.0], [6.0]]),
        None,
        None,
        byzantine,
        byzantine,
        False,
        True,
        x=torch.tensor([7.0]),
    )
    answer = server.answer(question, {}, {}, {})
    assert answer.aggregate.tolist() == [3.5]
    assert answer.error == 0.0
    assert answer.method["seen"] == 109.0
    assert answer.aggregator == {}  # the rule is not asked


def test_what_a_rule_remembers_of_two_kinds_of_rounds_is_apart() -> None:
    server = make_server(
        parts(GatheringMethod(gather=gathers_nothing, cohort=2), cohort=counting(10))
    )
    state: dict[str, Tensor] = {}
    found = []
    for cohort in (None, [0, 2], None, [1, 2], [0, 1]):
        some = None if cohort is None else torch.tensor(cohort)
        answer = server.answer(
            Question(torch.ones(3, 1), None, None, NOBODY, NOBODY, False, False, cohort=some),
            {},
            {},
            state,
        )
        state = answer.aggregator
        found.append(answer.aggregate.item())
    assert found == [1, 10, 2, 20, 30]


def test_messages_are_received_then_chosen_and_the_aggregate_is_settled() -> None:
    method = GatheringMethod(
        gather=gathers_nothing,
        receive=lambda messages, _: messages.clamp_max(4),
        settle=lambda result, state: (-result, {"last": result}),
        cohort=2,
    )
    first = Aggregator(lambda messages, state, _: (messages[0], state), None)
    server = make_server(parts(method, cohort=first))
    byzantine = torch.tensor([False, True, True])
    question = Question(
        torch.tensor([[1.0], [2.0], [3.0]]),
        None,
        None,
        byzantine,
        byzantine,
        False,
        True,
        cohort=torch.tensor([0, 1]),
    )
    answer = server.answer(question, {}, {}, {})
    assert answer.aggregate.tolist() == [-1.0]
    assert answer.method["last"].tolist() == [1.0]
    assert answer.error == 0.0  # worker 0 is the only honest one of the two


@pytest.mark.parametrize("sample", ["cohort", "answering"])
def test_a_sample_of_which_nobody_sends_numbers_brings_nothing(sample: str) -> None:
    """If all workers send NaN, the aggregate is not finite, and the run has diverged."""
    first = Aggregator(lambda messages, state, _: (messages[0], state), None)
    method = (
        GatheringMethod(gather=gathers_nothing, cohort=2) if sample == "cohort" else MeansMethod()
    )
    made = parts(method, cohort=first if sample == "cohort" else None)
    made.aggregator = first
    server = make_server(made)
    gradients = torch.tensor([[math.nan], [math.inf], [math.nan]])
    whole = Question(gradients, None, None, NOBODY, NOBODY, False, False)
    assert not bool(server.answer(whole, {}, {}, {}).aggregate.isfinite().any())
    some = torch.tensor([0, 1]) if sample == "cohort" else torch.tensor([0, 1, 4])
    assert server.answer(whole._replace(**{sample: some}), {}, {}, {}).aggregate.tolist() == [0.0]
