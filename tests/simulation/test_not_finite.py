"""Runs in which workers send NaN and Inf: Byzantine to every rule; and diverged where all of them
do.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from dynabro_cli import RunSpec, simulate
from dynabro_cli.components.attacks._api import Attack, AttackSetting, memoryless
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core import events
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.simulation.compilation import Compiler
from dynabro_cli.simulation.setup import simulate_run

BAD = (math.nan, math.inf, -math.inf)


def test_finite_gradients_whose_squares_are_no_numbers_are_recorded_and_end_no_run() -> None:
    spec = RunSpec(
        task="digits",
        attack="shift:lambda=1e22",
        aggregator="mean",
        method="sgd",
        budget=2,
        learning_rate=1e-30,
    )
    done = [
        event
        for event in simulate(spec)
        if isinstance(event, events.RoundsDone | events.Finished | events.Diverged)
    ]
    assert isinstance(done[-1], events.Finished)
    assert isinstance(done[0], events.RoundsDone)
    for item in done[0].rounds:
        assert item.gradient_norm == pytest.approx(item.aggregation_error, rel=1e-3)
        # 8/17 of 1e22, times the root of the number of parameters
        assert 1e23 < item.gradient_norm < 1e24


@dataclasses.dataclass(frozen=True)
class Sends:
    """Stand-in for an attack: the workers that ``who(byzantine)`` marks send the numbers in
    turn.
    """

    numbers: Sequence[float]
    all_coordinates: bool = False
    who: Callable[[Tensor], Tensor] = lambda byzantine: byzantine
    name: ClassVar[str] = "sends"
    mapping: ClassVar[dict[str, str]] = {"name": "sends"}
    inner: ClassVar[tuple[()]] = ()
    entry: ClassVar[Any] = REGISTRIES["attacks"].entry("sf")  # whose source a run of it names

    def build(self, setting: AttackSetting) -> Attack:
        numbers = torch.tensor(
            [self.numbers[i % len(self.numbers)] for i in range(setting.workers)]
        )[:, None]

        def messages(own: Tensor, byzantine: Tensor) -> Tensor:
            columns = torch.arange(own.shape[1]) < (own.shape[1] if self.all_coordinates else 1)
            return torch.where(self.who(byzantine)[:, None] & columns, numbers.to(own.dtype), own)

        return memoryless(messages)


def outcome(attack: Sends, **fields: Any) -> tuple[list[events.Round], events.Event]:
    spec = RunSpec(
        **{"task": "quadratic", "workers": 9, "byzantine": 2, "budget": 24, "method": "sgd"}
        | fields
    )
    run = dataclasses.replace(resolve(spec), attack=attack)  # type: ignore[arg-type]
    stream = list(simulate_run(run, threads=1))
    return [
        item for event in stream if isinstance(event, events.RoundsDone) for item in event.rounds
    ], stream[-1]


@pytest.fixture(
    params=[False, pytest.param(True, marks=pytest.mark.thorough)], ids=["eager", "traced"]
)
def _compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's function as it is, and as one graph, in which the host cannot look."""
    if request.param:
        torch.compiler.reset()
        monkeypatch.setattr(
            Compiler,
            "__call__",
            lambda _, function: torch.compile(function, backend="eager", fullgraph=True),
        )


@pytest.mark.usefixtures("_compiled")
@pytest.mark.parametrize(
    ("fields", "aggregator"),
    [
        ({"method": "sgd"}, "mean"),
        ({"method": "sgd"}, "cwtm"),
        ({"method": "dynabro"}, "cwtm"),
        ({"method": "momentum", "attack_entry": "message"}, "cwtm"),
    ],
)
def test_byzantine_workers_that_send_them_might_as_well_send_zeros(
    fields: dict[str, str], aggregator: str
) -> None:
    bad, last = outcome(Sends(BAD), aggregator=aggregator, **fields)
    zeros, expected = outcome(Sends([0.0], all_coordinates=True), aggregator=aggregator, **fields)
    # how far such a message moves the aggregate
    assert {item.acceptance for item in bad} <= {None, 0.0}
    bad, zeros = (
        [dataclasses.replace(item, acceptance=None) for item in rounds] for rounds in (bad, zeros)
    )
    # among them the aggregates' distances from the honest means, which are numbers
    assert bad == zeros
    assert last == expected
    assert isinstance(last, events.Finished)


@pytest.mark.usefixtures("_compiled")
def test_an_honest_worker_that_sends_them_is_treated_so_but_is_honest() -> None:
    """The mean of the honest messages is then not finite, nor is the distance from it."""
    rounds, last = outcome(
        Sends([math.inf], who=lambda byzantine: ~byzantine & (torch.arange(9) < 4)),
        aggregator="cwmed",
    )
    assert isinstance(last, events.Finished)
    assert all(math.isnan(item.aggregation_error or 0.0) for item in rounds)
    assert all(math.isfinite(item.gradient_norm) for item in rounds)


@pytest.mark.usefixtures("_compiled")
@pytest.mark.parametrize("aggregator", ["mean", "cwmed", "krum", "centered-clipping:tau=1"])
def test_where_nobody_sends_numbers_the_run_has_diverged(aggregator: str) -> None:
    """At once, even where no coordinate has as many of them as would make its median one."""
    _, last = outcome(Sends(BAD, who=torch.ones_like), aggregator=aggregator)
    assert isinstance(last, events.Diverged)
    assert last.round == 0
