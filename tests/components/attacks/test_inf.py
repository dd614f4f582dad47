"""Infinite vectors."""

from __future__ import annotations

import math

import pytest
import torch

from dynabro_cli import RunSpec, simulate
from dynabro_cli.components.api import make_attack, make_switching
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.events import Finished, Round, RoundsDone
from tests.tables import each_row


def test_golden() -> None:
    own = torch.tensor([[1.0, -2.0], [3.0, 4.0], [-5.0, 0.5]])
    messages = make_attack("inf", workers=3)(own, torch.tensor([True, False, True]))
    assert messages.tolist() == [[math.inf, math.inf], [3.0, 4.0], [math.inf, math.inf]]


@pytest.mark.parametrize("count", [1, 4])
def test_one_to_all(count: int) -> None:
    messages = make_attack("inf", workers=4)(torch.zeros(4, 2), torch.arange(4) < count)
    assert messages.isinf().all(1).tolist() == [True] * count + [False] * (4 - count)


def test_no_parameters() -> None:
    with pytest.raises(SpecError, match="'inf' has no parameter 'sign'"):
        make_attack("inf:sign=1", workers=3)


def rounds_of(spec: RunSpec) -> list[Round]:
    happened = list(simulate(spec))
    assert isinstance(happened[-1], Finished)
    return [row for event in happened if isinstance(event, RoundsDone) for row in event.rounds]


KRUM = {"task": "quadratic", "aggregator": "krum:f=4", "workers": 11, "byzantine": 2, "budget": 40}


either = pytest.mark.parametrize("attack", ["inf", "nan"])


@either
@each_row(("method", "clock"), [("sgd", "round"), ("dynabro:jmax=2", "computation")])
def test_a_run_that_withstands_it_has_finite_rows(attack: str, method: str, clock: str) -> None:
    """The distance from the honest mean is a finite number, although the other workers' vectors are
    not finite.
    """
    rounds = rounds_of(RunSpec(**KRUM, method=method, attack=attack, clock=clock))
    assert all(
        math.isfinite(row.gradient_norm) and math.isfinite(row.aggregation_error or 0.0)
        for row in rounds
    )
    assert all(row.aggregation_error is not None for row in rounds)


@either
def test_workers_whose_memory_is_poisoned_count_as_byzantine(attack: str) -> None:
    """By the second turn more than two of eleven are poisoned; the distance is that from those
    left.
    """
    fields = KRUM | {"budget": 4, "seed": 1}
    switching = make_switching("periodic:K=2", workers=11, byzantine=2, seed=1)
    ever = switching.mask(0) | switching.mask(2)
    assert int(ever.sum()) > 2
    poisoned = rounds_of(
        RunSpec(**fields, method="momentum", attack=attack, switching="periodic:K=2")
    )
    spared = rounds_of(
        RunSpec(
            **fields,
            method="momentum",
            attack=attack,
            switching="periodic:K=2",
            attack_entry="message",
        )
    )
    assert all(math.isfinite(row.aggregation_error or math.nan) for row in (*poisoned, *spared))
    assert poisoned[0] == spared[0]
    assert poisoned[3] != spared[3]
