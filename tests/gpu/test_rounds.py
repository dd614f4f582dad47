"""Whole runs on a GPU that is not there: set-up, rounds, evaluation, checkpoint and resume."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from dynabro_cli import RunSpec, events
from dynabro_cli.experiment.resolve import REGISTRIES, resolve
from dynabro_cli.gradients import graphs
from dynabro_cli.gradients.graphs import GraphedGradients
from dynabro_cli.simulation.loop import Simulation
from dynabro_cli.simulation.setup import simulate_run
from tests.gpu.fake import FakeGPU

pytestmark = pytest.mark.thorough

FIRST = 3
"""Rounds in which tables are sent to the GPU, and passes are captured."""


def allowing(gpu: FakeGPU, function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function wait for the GPU."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        with gpu.allowed():
            return function(*arguments, **keywords)

    return call


def capture(run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """Replay a pass by running it again."""
    result = run().clone()
    return lambda: (result.copy_(run()), None)[1], result


@pytest.fixture
def rounds(gpu: FakeGPU, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGPU]:
    """Let a run wait for the GPU where it may: every 16 rounds, in evaluations and checkpoints, and in its first rounds."""
    monkeypatch.setattr(GraphedGradients, "_record", allowing(gpu, GraphedGradients._record))
    monkeypatch.setattr(graphs, "capture_kernels", capture)
    one = Simulation._round

    def round_(simulation: Simulation) -> Any:
        with gpu.allowed(simulation._state.round < FIRST):
            return one(simulation)

    monkeypatch.setattr(Simulation, "_round", round_)
    return gpu


def run_of(gpu: FakeGPU, spec: RunSpec, resume: bytes | None = None) -> list[events.Event]:
    """Run a spec on the GPU; a checkpoint is asked for after every round."""
    with gpu.allowed():
        return list(simulate_run(resolve(spec), device="cuda", compile="off", resume=resume, wanted=lambda: True))


def small(**more: Any) -> RunSpec:
    given = {"task": "digits", "model": "cnn-digits", "method": "sgd", "aggregator": "cwtm", "attack": "sf"}
    given |= {"switching": "static", "workers": 5, "byzantine": 1, "batch_size": 2, "budget": 6, "eval_every": 3}
    return RunSpec(**(given | more))


OWN: dict[str, dict[str, Any]] = {
    "byzantine-sgd": {"aggregator": None, "budget": 40},
    "safeguard": {"aggregator": None, "budget": 40},
    "marina-pp": {"method": "marina-pp:batches=2"},
}
"""Fields of methods that take no rule, that spend budget before their first round, or that would spend all of it on one."""


@pytest.mark.parametrize("method", REGISTRIES["methods"].entries())
def test_methods(method: str, rounds: FakeGPU) -> None:
    spec = small(**({"method": method} | OWN.get(method, {})))
    found = run_of(rounds, spec)
    assert isinstance(found[-1], events.Finished)
    checkpoints = [event for event in found if isinstance(event, events.Checkpointed)]
    again = run_of(rounds, spec, checkpoints[0].data)
    assert isinstance(again[0], events.Started)
    assert again[0].resumed == checkpoints[0].totals
    assert isinstance(again[-1], events.Finished)


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: x.cpu(),
        lambda x: bool(x.any()),
        lambda x: x + torch.ones(x.shape),
        lambda x: torch.tensor([1.0], device=x.device),
    ],
)
def test_a_rule_that_waits_or_is_elsewhere_is_found(
    wait: Callable[[Tensor], object], rounds: FakeGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Simulation._observe

    def waits(simulation: Simulation, who: Any) -> None:
        if simulation._state.round >= FIRST:
            wait(simulation._parts.problem.x)
        one(simulation, who)

    monkeypatch.setattr(Simulation, "_observe", waits)
    with pytest.raises((AssertionError, RuntimeError), match=r"host|device"):
        run_of(rounds, small())
