"""The view of an attack that sees the defence: the server's answer to other vectors, without
changing anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor

from dynabro_cli import RunSpec
from dynabro_cli.components.aggregators._api import Aggregator
from dynabro_cli.components.attacks._api import (
    BEFORE_MEMORY,
    Attack,
    AttackSetting,
    Defence,
    replace,
    stay,
)
from dynabro_cli.components.methods._api import Method, MethodSetting
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.simulation import compilation
from dynabro_cli.simulation.compilation import Compiler
from dynabro_cli.simulation.round.parts import Parts
from dynabro_cli.simulation.round.server import Question, make_server
from tests.simulation.reference import A, DynaBRO, descend, masks, noise, quadratic, trimmed

M, F = 5, 2
RATE = 0.05
ASKED = 6
Vectors = np.ndarray


def search(distance: Callable[[float], float]) -> float:
    """The line search in plain numbers: doubling steps from 1 while they lead farther, then steps
    times 0.8.
    """
    best, step, farthest, grows = 0.0, 1.0, distance(0.0), True
    for _ in range(ASKED - 1):
        found = distance(best + step)
        better = found > farthest
        if better:
            best, farthest = best + step, found
        grows = grows and better
        step = 2 * step if grows else 0.8 * step
    return best


def optimal_ipm(aggregate: Callable[[Vectors], Vectors]) -> Callable[[Vectors, Vectors], Vectors]:
    """The attack on vectors that are sent as they are."""

    def attack(own: Vectors, byzantine: Vectors) -> Vectors:
        mean = own[~byzantine].mean(0)

        def sent(epsilon: float) -> Vectors:
            return np.where(byzantine[:, None], -epsilon * mean, own)

        return sent(search(lambda epsilon: float(np.linalg.norm(aggregate(sent(epsilon)) - mean))))

    return attack


TEXT = f"optimal-ipm:evals={ASKED},delta=1"
RULES: dict[str, Callable[[Vectors], Vectors]] = {
    "mean": lambda rows: rows.mean(0),
    "cwmed": lambda rows: np.median(rows, axis=0),
    "cwtm:f=1": lambda rows: trimmed(rows, 1),
}


@pytest.mark.thorough
@pytest.mark.parametrize("clock", ["round", "computation"])
@pytest.mark.parametrize("aggregator", RULES)
def test_every_level_and_in_dynamic_rounds_every_computation(aggregator: str, clock: str) -> None:
    outcome = quadratic(
        method="dynabro:jmax=3",
        attack=TEXT,
        aggregator=aggregator,
        switching="periodic:K=3",
        clock=clock,
        workers=M,
        byzantine=F,
        learning_rate=0.001,
        budget=60,
    )
    combine = RULES[aggregator]
    steps = DynaBRO(
        M,
        masks("periodic:K=3", M, F, 80),
        clock == "round",
        3,
        optimal_ipm(combine),
        lambda rows, _: combine(rows),
    )
    gaps, norms = descend(steps, len(outcome.rounds), 0.001)
    assert_allclose(outcome.gaps, gaps, rtol=1e-9)
    assert_allclose(outcome.norms, norms, rtol=1e-9)
    assert any(item.dynamic for item in outcome.rounds) == (clock == "computation")


@pytest.mark.thorough
@pytest.mark.parametrize("entry", ["gradient", "computation", "message", "state"])
@pytest.mark.parametrize("aggregator", RULES)
def test_the_workers_momentum_is_seen(aggregator: str, entry: str) -> None:
    """An attack on gradients is judged by the aggregate of the momenta that it leads to."""
    combine, identities = RULES[aggregator], masks("periodic:K=4", M, F, 20)
    outcome = quadratic(
        method="momentum:beta=0.8",
        attack=TEXT,
        attack_entry=entry,
        aggregator=aggregator,
        switching="periodic:K=4",
        workers=M,
        byzantine=F,
        learning_rate=0.001,
        budget=20,
    )
    memory = np.zeros((M, 2))

    def direction(round_: int, x: Vectors) -> Vectors:
        nonlocal memory
        own, mask = x @ A + noise(M, round_, 0), identities[round_]
        if entry not in BEFORE_MEMORY:
            memory = 0.8 * memory + 0.2 * own
            sent = optimal_ipm(combine)(memory, mask)
            memory = sent if entry == "state" else memory
            return combine(sent)
        target = (0.8 * memory + 0.2 * own)[~mask].mean(0)

        def momenta(epsilon: float) -> Vectors:
            attacked = np.where(mask[:, None], -epsilon * own[~mask].mean(0), own)
            return 0.8 * memory + 0.2 * attacked

        memory = momenta(
            search(lambda epsilon: float(np.linalg.norm(combine(momenta(epsilon)) - target)))
        )
        return combine(memory)

    gaps, norms = descend(direction, 20, 0.001)
    assert_allclose(outcome.gaps, gaps, rtol=1e-9)
    assert_allclose(outcome.norms, norms, rtol=1e-9)


@pytest.mark.usefixtures("no_probe")
@pytest.mark.parametrize("clock", ["round", "computation"])
def test_of_how_many_mini_batches(clock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A level's message is of its prefix, and one computation's gradients are of one mini-batch."""
    calls: list[float] = []

    def aggregate(
        messages: Tensor, state: dict[str, Tensor], batches: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        calls.append(float(batches))
        return messages.mean(0), state

    entry = REGISTRIES["aggregators"].entries()["mean"]
    monkeypatch.setitem(entry.__dict__, "factory", lambda *_: Aggregator(aggregate, None))
    outcome = quadratic(
        method="dynabro:jmax=3",
        attack="optimal-ipm:evals=1",
        aggregator="mean",
        switching="periodic:K=3",
        clock=clock,
        workers=M,
        byzantine=F,
        budget=40,
    )
    expected: list[float] = []
    for row in outcome.rounds:
        done = 0
        for prefix in [1] if row.cost == 1 else [1, row.cost // 2, row.cost]:
            expected += [1] * (prefix - done) if row.dynamic else [prefix]  # asked by the attack
            expected.append(prefix)
            done = prefix
    assert calls == expected
    assert any(row.dynamic for row in outcome.rounds) == (clock == "computation")


# --- one question, asked of parts that count


def counting(
    messages: Tensor, state: dict[str, Tensor], batches: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    """A rule whose answer depends on how often it was asked, and on the number of mini-batches."""
    count = state.get("count", messages.new_zeros(()))
    return messages.mean(0) + 100 * count + 1000 * batches, {"count": count + 1}


def ask(
    entry: str,
    attack: Attack,
    batches: Tensor | None = None,
    compiler: Compiler | None = None,
    method: str = "momentum:beta=0.5",
) -> tuple[Any, dict[str, Tensor], Tensor]:
    """The server's answer to one question with separate states; the states after it, and the given
    total.
    """
    spec = RunSpec(attack_entry=entry)
    workers: Method = REGISTRIES["methods"].parse(method).build(MethodSetting(3, 10))
    given: dict[str, Any] = {} if compiler is None else {"compiler": compiler}
    parts = Parts(spec, None, workers, Aggregator(counting, None), attack, None, None, **given)  # type: ignore[arg-type]
    mask, total = torch.tensor([False, False, True]), torch.tensor([[2.0], [4.0], [9.0]])
    question = Question(total, None, batches, mask, mask, attacked=False, judged=True)
    memory = {"momentum": torch.tensor([[10.0], [20.0], [30.0]])} if "momentum" in method else {}
    return (
        make_server(parts).answer(question, {}, memory, {"count": torch.tensor(3.0)}),
        memory,
        total,
    )


def shown(seen: list[Any]) -> Attack:
    """Attack that sends 6, and keeps its view: the honest mean, and the aggregates of the own
    vectors, of 6, and of 6 again.
    """

    def messages(own: Tensor, byzantine: Tensor, _: dict[str, Tensor], defence: Defence) -> Tensor:
        sent = replace(own, byzantine, torch.tensor(6.0))
        seen.extend(
            [float(defence.honest), *(float(defence.aggregate(rows)) for rows in (own, sent, sent))]
        )
        return sent

    return Attack({}, messages, stay, sees_defence=True)


def test_golden_gradient() -> None:
    # momenta: (10 + 2)/2 = 6, (20 + 4)/2 = 12, (30 + 9)/2 = 19.5 or (30 + 6)/2 = 18; the honest
    # mean is 9, the mean 12.5 or 12; the rule adds 300, as it was asked 3 times before, and 1000
    # for one mini-batch
    seen: list[float] = []
    answer, _, total = ask("gradient", shown(seen))
    assert seen == [9.0, 1312.5, 1312.0, 1312.0]
    assert answer.aggregate.tolist() == [1312.0]
    assert answer.error.tolist() == 1312 - 9
    assert answer.method["momentum"].flatten().tolist() == [6.0, 12.0, 18.0]  # moved on once
    assert answer.aggregator["count"].tolist() == 4.0
    assert total.flatten().tolist() == [2.0, 4.0, 9.0]


@pytest.mark.parametrize("entry", ["message", "state"])
def test_golden_message(entry: str) -> None:
    # momenta 6, 12 and 19.5, of which the last is replaced by 6: the mean is 12.5 or 8
    seen: list[float] = []
    answer, _, _ = ask(entry, shown(seen))
    assert seen == [9.0, 1312.5, 1308.0, 1308.0]
    assert answer.aggregate.tolist() == [1308.0]
    assert answer.method["momentum"].flatten().tolist() == [
        6.0,
        12.0,
        6.0 if entry == "state" else 19.5,
    ]


def test_golden_levels() -> None:
    # sums of two mini-batches: means 1, 2 and 4.5; without memory they are sent as they are, and
    # the rule adds 2000
    seen: list[float] = []
    answer, _, _ = ask("gradient", shown(seen), torch.tensor(2.0), method="sgd")
    assert seen == pytest.approx([1.5, 2302.5, 2303.0, 2303.0])
    assert answer.aggregate.tolist() == [2303.0]


# --- compiled


def test_the_rule_is_compiled_and_the_attack_is_not() -> None:
    """Counted by a compiler that compiles nothing: an ordinary attack is one function with the
    rest.
    """
    compiled: list[str] = []

    class Named(Compiler):
        def __call__(self, function: Any) -> Any:
            compiled.append(function.__name__)
            return function

    compiler = Named("off", work=0, device=torch.device("cpu"))
    ask("gradient", shown([]), compiler=compiler)
    assert compiled == ["counting"]
    compiled.clear()
    ask("gradient", REGISTRIES["attacks"].parse("sf").build(None), compiler=compiler)
    assert compiled == ["messages_of", "conclude"]


@pytest.mark.thorough
@pytest.mark.parametrize("attack", ["optimal-alie:evals=5,delta=1", "fang-krum"])
def test_compiled_is_eager(attack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced as one graph, and not compiled, so that it is quick."""
    real = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda function, **options: real(function, backend="eager", **options)
    )
    monkeypatch.setattr(compilation, "missing_tool", lambda: None)
    built = REGISTRIES["attacks"].parse(attack).build(AttackSetting(3))
    compiler = Compiler("on", work=0, device=torch.device("cpu"))
    fast, _, _ = ask("gradient", built, torch.tensor(2.0), compiler)
    slow, _, _ = ask("gradient", built, torch.tensor(2.0))
    assert torch.equal(fast.aggregate, slow.aggregate)
    assert torch.equal(fast.method["momentum"], slow.method["momentum"])
    assert torch.equal(fast.aggregator["count"], slow.aggregator["count"])
    assert compiler.reason == "on"
