"""DistributedDataParallel with the hook: the gradients are the rule's aggregate."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dynabro_cli.components.api import make_aggregator
from dynabro_cli.distributed import RobustState, robust_hook
from tests.distributed.worlds import World
from tests.tables import each_row


class Branches(nn.Module):
    """A network whose ranks use different parts, and that has parameters of odd sizes."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(7, 13, dtype=dtype)
        self.even, self.odd = nn.Linear(13, 5, dtype=dtype), nn.Linear(13, 5, dtype=dtype)
        self.never = nn.Linear(3, 3, dtype=dtype)

    def forward(self, inputs: Tensor, rank: int) -> Tensor:
        hidden = self.first(inputs).relu()
        return (self.odd if rank % 2 else self.even)(hidden) if rank < 9 else self.even(hidden)


def inputs_of(rank: int, step: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(6, 7, generator=generator).to(dtype)


def loss_of(model: nn.Module, rank: int, step: int, branch: int, dtype: torch.dtype) -> Tensor:
    """The loss of one rank; the last rank is Byzantine."""
    factor = -1000.0 if rank == 3 else 1.0
    return model(inputs_of(rank, step, dtype), branch).square().mean() * factor


def expected(
    text: str, steps: list[list[int]], branches: bool, dtype: torch.dtype = torch.float32
) -> list[Tensor | None]:
    """The aggregates of the gradients that each rank adds up in all steps of one exchange; the
    result of the last exchange.
    """
    rule, rows, used = make_aggregator(text, workers=4, byzantine=1), [], set()
    aggregate: Tensor
    for steps_of_one in steps:
        rows, used = [], set()
        for rank in range(4):
            model = Branches(dtype)
            for step in steps_of_one:
                loss_of(model, rank, step, rank if branches else 9, dtype).backward()
            parts = []
            for place, parameter in enumerate(model.parameters()):
                if parameter.grad is not None:
                    used.add(place)
                parts.append(
                    torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                )
            rows.append(torch.cat([part.flatten() for part in parts]))
        aggregate = rule(torch.stack(rows))
    sizes = [parameter.numel() for parameter in Branches().parameters()]
    return [part if place in used else None for place, part in enumerate(aggregate.split(sizes))]


def hooked(
    text: str,
    steps: list[list[int]],
    branches: bool,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> tuple[list[Tensor | None], list[float]]:
    """The gradients of DistributedDataParallel with the hook."""
    rank, model = dist.get_rank(), Branches(dtype)
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.0002, **options)
    state = RobustState(text, byzantine=1)
    ddp.register_comm_hook(state, robust_hook)
    for steps_of_one in steps:
        ddp.zero_grad()
        for step in steps_of_one:
            with nullcontext() if step == steps_of_one[-1] else ddp.no_sync():
                loss_of(ddp, rank, step, rank if branches else 9, dtype).backward()
    gradients = [
        None if parameter.grad is None else parameter.grad.flatten().clone()
        for parameter in model.parameters()
    ]
    return gradients, state.suspects()


def same(actual: list[Tensor | None], wanted: list[Tensor | None]) -> None:
    assert [part is None for part in actual] == [part is None for part in wanted]
    for mine, right in zip(actual, wanted, strict=True):
        assert mine is None or torch.equal(mine, right)


ONE, SEVERAL, ADDED = [[0]], [[0], [1], [2]], [[0, 1], [2, 3, 4]]


@each_row(
    ("text", "steps", "branches", "dtype", "options"),
    [
        ("cwtm", ONE, False, torch.float32, {"find_unused_parameters": True}),
        ("cwtm", SEVERAL, True, torch.float32, {"find_unused_parameters": True}),
        ("cwmed", ADDED, True, torch.float32, {"find_unused_parameters": True}),
        ("meamed", SEVERAL, False, torch.bfloat16, {"find_unused_parameters": True}),
        (
            "cwtm",
            ADDED,
            True,
            torch.float32,
            {"find_unused_parameters": True, "gradient_as_bucket_view": True},
        ),
        ("cwtm", SEVERAL, False, torch.float32, {"static_graph": True}),
    ],
)
def test_gradients_are_the_aggregate(
    text: str,
    steps: list[list[int]],
    branches: bool,
    dtype: torch.dtype,
    options: dict[str, Any],
    world: World,
) -> None:
    wanted = expected(text, steps, branches, dtype)
    for gradients, suspects in world.run(_Call(hooked, options), text, steps, branches, dtype):
        same(gradients, wanted)
        assert max(suspects) == suspects[3]


class _Call:
    """A function with named arguments, which can be sent to processes."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self.function, self.options = function, options

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments, **self.options)


def refused(text: str) -> str:
    model = nn.Linear(3, 2)
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(RobustState(text, byzantine=1), robust_hook)
    with pytest.raises(Exception, match="no_sync") as error:
        ddp(torch.ones(1, 3)).sum().backward()
    return f"{error.type.__name__}: {error.value}"


def test_rules_that_need_whole_gradients_are_refused(world: World) -> None:
    for text in ("nnm+cwtm", "krum:f=0", "centered-clipping:tau=1"):
        for line in world.run(refused, text):
            assert f"rule='{text}'" in line
            assert "aggregate_gradients" in line
            print(line)
