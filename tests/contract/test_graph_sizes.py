"""Graphs that torch compiles do not grow with the number of workers: the time to compile would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

from dynabro_cli.components.methods._api import JudgingMethod, Measured, MethodSetting, senders
from tests.components.methods.made import made
from tests.contract import test_aggregators as rules
from tests.contract import test_attacks as attacks
from tests.contract import test_methods as methods

M, F = 200, 49
MOST = 700
"""More nodes than any part has with 17 workers; a network that sorts 200 rows alone has 5,000."""

TEXTS = [text for text in rules.TEXTS if text not in ("mda", "smea")]
"""Rules without ``mda`` and ``smea``, which refuse so many subsets."""


def nodes(function: Callable[..., Any], *arguments: Any) -> int:
    """Count the nodes of the graph that is compiled for a call, whose result must be the same."""
    sizes = []

    def keep(module: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        sizes.append(len(module.graph.nodes))
        return module.forward

    torch.compiler.reset()
    compiled = torch.compile(
        function, backend=aot_autograd(fw_compiler=keep), fullgraph=True, dynamic=False
    )
    with torch.no_grad():
        torch.testing.assert_close(compiled(*arguments), function(*arguments), equal_nan=True)
    return sum(sizes)  # 0 if nothing is computed


@pytest.mark.parametrize(
    "text", ["cwtm", *(pytest.param(text, marks=pytest.mark.thorough) for text in TEXTS)]
)
def test_rules(text: str) -> None:
    rule = rules.make(text, M, F)._rule
    messages, batches = rules.draw(0, M, 3).float(), torch.tensor(4.0)
    assert nodes(rule.of_sound or rule.aggregate, messages, {}, batches) < MOST


@pytest.mark.thorough
@pytest.mark.parametrize("text", attacks.TEXTS)
def test_attacks(text: str) -> None:
    attack, own, byzantine = attacks.made(text, M), attacks.draw(M), torch.arange(M) < F
    state = dict(attack.initial)
    if not attack.sees_defence:  # those are not compiled
        assert nodes(attack.messages, own, byzantine, state) < MOST
    if attack.observe is not None:
        assert nodes(attack.observe, own, byzantine, state) < MOST


@pytest.mark.thorough
@pytest.mark.parametrize("text", methods.METHODS)
def test_methods(text: str) -> None:
    method = made(text, MethodSetting(M, 1000), Measured(kappa=1.0))
    vectors = attacks.draw(M)
    assert nodes(senders(method).send, vectors, {}) < MOST
    if isinstance(method, JudgingMethod):
        assert nodes(method.judge, vectors, vectors[0], {}) < MOST
