"""Gradients of a model over the ranks, without DistributedDataParallel, for any rule."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dynabro_cli.components.api import make_aggregator
from dynabro_cli.core.errors import SpecError
from dynabro_cli.distributed import RobustState, aggregate_gradients
from tests.distributed.worlds import World
from tests.tables import each_row


class Parts(nn.Module):
    """Parameters in two types; ranks use different parts, and one part is never used."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 6)
        self.even, self.odd = nn.Linear(6, 3, dtype=dtype), nn.Linear(6, 3, dtype=dtype)
        self.never = nn.Linear(2, 2)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)

    def loss(self, rank: int) -> Tensor:
        generator = torch.Generator().manual_seed(rank)
        hidden = self.first(torch.randn(5, 4, generator=generator)).to(self.even.weight.dtype)
        return (self.odd if rank % 2 else self.even)(hidden).square().mean() * (rank + 1)


def gradients(model: nn.Module) -> list[Tensor | None]:
    return [parameter.grad for parameter in model.parameters()]


def aggregated(text: str, dtype: torch.dtype) -> list[Tensor | None]:
    model = Parts(dtype)
    model.loss(dist.get_rank()).backward()
    memory = model.first.weight.grad
    aggregate_gradients(model, text, byzantine=1)
    assert model.first.weight.grad is memory  # it may be a view of a bucket
    return gradients(model)


@each_row(
    ("text", "dtype"),
    [
        ("nnm+gm", torch.float32),
        ("cwtm", torch.bfloat16),
        ("cwtm", torch.float64),
        ("cge", torch.float32),
    ],
)
def test_gradients_of_all_parameters_are_one_vector(
    text: str, dtype: torch.dtype, world: World
) -> None:
    rows = []
    for rank in range(4):
        model = Parts(dtype)
        model.loss(rank).backward()
        rows.append(
            [
                torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                for parameter in list(model.parameters())[:7][1:]
            ]
        )
        types = {part.dtype for part in rows[0]}
    widest = torch.float64 if torch.float64 in types else torch.float32
    matrix = torch.stack([torch.cat([part.flatten().to(widest) for part in row]) for row in rows])
    wanted = make_aggregator(text, workers=4, byzantine=1)(matrix)
    for frozen, *actual in world.run(aggregated, text, dtype):
        assert frozen is None
        assert [part is None for part in actual] == [False] * 6 + [True] * 2
        expected = wanted.split([part.numel() for part in rows[0]])
        for part, right in zip(actual[:6], expected, strict=True):
            torch.testing.assert_close(
                part.flatten(), right.to(part.dtype), rtol=1e-6 if "gm" in text else 0, atol=0
            )


def without_gradients() -> list[Any]:
    model = nn.Linear(2, 2)
    state = aggregate_gradients(model, "cwtm", byzantine=1)
    aggregate_gradients([], "nnm+gm", byzantine=1)
    return [*gradients(model), state.suspects()[0] != state.suspects()[0]]


def test_a_model_without_gradients_stays_so(world: World) -> None:
    assert world.run(without_gradients) == [[None, None, True]] * 4


def averaged_before() -> list[str]:
    model = DistributedDataParallel(nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(SpecError) as error:
        aggregate_gradients(model, "cwtm", byzantine=1)
    with model.no_sync():
        model(torch.ones(1, 2)).sum().backward()
    aggregate_gradients(model, "cwtm", byzantine=1)
    return error.value.problems


def test_gradients_that_are_averaged_already_are_refused(world: World) -> None:
    for (line,) in world.run(averaged_before):
        assert line.startswith("model=DistributedDataParallel: ")
        assert "Try: " in line


def with_memory() -> tuple[list[str], bool]:
    problems = []
    for text in ("centered-clipping:tau=1", "bucketing:s=1+cwtm"):
        model = nn.Linear(2, 2)
        model(torch.ones(1, 2)).sum().backward()
        before = model.weight.grad.clone()
        with pytest.raises(SpecError) as error:
            aggregate_gradients(model, text, byzantine=1)
        problems += error.value.problems
    state = RobustState("centered-clipping:tau=1", byzantine=1)
    assert aggregate_gradients(model, state) is state
    return problems, torch.equal(model.weight.grad, before)


def test_a_rule_that_remembers_needs_a_state(world: World) -> None:
    for problems, unchanged in world.run(with_memory):
        assert len(problems) == 2
        assert all("RobustState(" in line for line in problems)
        assert not unchanged


def unclear() -> list[str]:
    problems = []
    for rule, options in (
        ("cwtm", {}),
        (RobustState("cwtm", byzantine=1), {"byzantine": 0}),
        ("cwtn", {"byzantine": 1}),
        ("fltrust", {"byzantine": 1}),
    ):
        model = nn.Linear(2, 2)
        model(torch.ones(1, 2)).sum().backward()
        with pytest.raises(ValueError) as error:
            aggregate_gradients(model, rule, **options)
        problems.append(str(error.value))
    return problems


def test_errors_say_what_to_type(world: World) -> None:
    for lines in world.run(unclear):
        assert lines[0].startswith("byzantine=None")
        assert lines[1].startswith("byzantine=0: ")
        assert "cwtm" in lines[2]
        assert lines[3].startswith("rule='fltrust': it needs")
        assert ".aggregate(gradient, server=" in lines[3]
        assert len(lines) == 4
