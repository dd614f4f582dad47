"""Whole runs on a GPU that is not there: set-up, rounds, evaluation, checkpoint and resume."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.fake_gpu import FakeGPU, HiddenWaitError, launches, on_gpu, one_gpu
from dynabro_cli import RunSpec
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core import events
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.gradients import engine, graphs
from dynabro_cli.gradients.engine import GPU_PASS_VALUES
from dynabro_cli.gradients.graphs import Graphed
from dynabro_cli.simulation.loop import Simulation
from dynabro_cli.simulation.round.parts import State
from dynabro_cli.simulation.round.update import Update
from dynabro_cli.simulation.setup import simulate_run
from tests.contract.test_attacks import TEXTS as ATTACKS
from tests.contract.test_switching import NAMES as STRATEGIES
from tests.contract.test_switching import NEEDED as SWITCHING
from tests.simulation.recorder import capturing, repeated

pytestmark = pytest.mark.thorough

FIRST = 3
"""Rounds in which tables are sent to the GPU."""


def allowing(gpu: FakeGPU, function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function wait for the GPU."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        with gpu.allowed():
            return function(*arguments, **keywords)

    return call


@pytest.fixture
def rounds(gpu: FakeGPU, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGPU]:
    """Let a run wait for the GPU where it may: every 16 rounds, in evaluations and checkpoints, and
    in its first rounds.
    """
    monkeypatch.setattr(Graphed, "_agrees", allowing(gpu, Graphed._agrees))
    monkeypatch.setattr(graphs, "KernelCapture", capturing(repeated))
    one = Simulation._round

    def round_(simulation: Simulation) -> Any:
        with gpu.allowed(simulation._state.round < FIRST):
            return one(simulation)

    monkeypatch.setattr(Simulation, "_round", round_)
    return gpu


def run_of(gpu: FakeGPU, spec: RunSpec, resume: bytes | None = None) -> list[events.Event]:
    """Run a spec on the GPU; a checkpoint is asked for after every round."""
    with gpu.allowed():
        return list(
            simulate_run(
                resolve(spec), device="cuda", compile="auto", resume=resume, wanted=lambda: True
            )
        )


def small(**more: Any) -> RunSpec:
    given = {
        "task": "digits",
        "model": "cnn-digits",
        "method": "sgd",
        "aggregator": "cwtm",
        "attack": "sf",
    }
    given |= {
        "switching": "static",
        "workers": 5,
        "byzantine": 1,
        "batch_size": 2,
        "budget": 6,
        "eval_every": 3,
    }
    return RunSpec(**(given | more))


OWN: dict[str, dict[str, Any]] = {
    "byzantine-sgd": {"aggregator": None, "budget": 16},
    "safeguard": {"aggregator": None, "budget": 16},
    "marina-pp": {"method": "marina-pp:batches=2"},
}
"""Fields of methods that take no rule, that spend budget before their first round, or that would
spend all of it on one.
"""


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


@pytest.mark.parametrize("method", ["sgd", "dynabro:jmax=2", "mu2-sgd"])
def test_trusted_data_at_the_server(method: str, rounds: FakeGPU) -> None:
    spec = small(method=method, aggregator="fltrust", data="iid:server=20", budget=12)
    assert isinstance(run_of(rounds, spec)[-1], events.Finished)


def test_the_gpu_of_a_run_is_the_current_one_while_it_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    current: list[int] = []
    one, decide = Simulation._round, Simulation._evaluate

    def noted(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: (
            current.append(torch.cuda.current_device()),
            function(*arguments),
        )[1]

    monkeypatch.setattr(Simulation, "_round", noted(one))
    monkeypatch.setattr(Simulation, "_evaluate", noted(decide))
    monkeypatch.setattr(graphs, "KernelCapture", capturing(repeated))
    with one_gpu(devices=2) as gpu, gpu.allowed():
        for event in simulate_run(resolve(small()), device="cuda:1", compile="auto"):
            # what the caller does meanwhile is left alone
            assert torch.cuda.current_device() == 0, event
    assert set(current) == {1}
    assert len(current) > 6


def test_the_graphs_of_a_run_are_recorded_at_its_end(rounds: FakeGPU) -> None:
    first, *_, last = run_of(rounds, small())
    assert isinstance(first, events.Started)
    assert json.loads(first.record["versions"])["graphs"] == "no form has come 5 times"
    assert isinstance(last, events.Finished)
    assert last.how == {"graphs": "on: 1 forms, 1 replays"}


def test_passes_do_not_depend_on_the_memory(
    rounds: FakeGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set()
    for free, total in ((100, 140), (1, 140), (1, 8)):
        memory = free << 30, total << 30
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_, memory=memory: memory)
        with rounds.allowed():
            started = next(simulate_run(resolve(small()), device="cuda", compile="auto"))
        assert isinstance(started, events.Started)
        found.add(json.loads(started.record["versions"])["pass_values"])
    (values,) = found
    assert 0.9 * GPU_PASS_VALUES < values <= GPU_PASS_VALUES  # the model's activations are limited


@pytest.mark.parametrize(
    ("values", "activations", "expected"),
    [
        (4 * 64, 1e9, [3, 3, 3]),  # nine workers with a sample of 64 values each; not 4, 4 and 1
        (1 << 20, 1e9, [9]),
        (1 << 20, 1.0, [1] * 9),  # a model whose activations of a sample exceed the limit
    ],
)
def test_passes_are_equally_large(
    values: float,
    activations: float,
    expected: list[int],
    gpu: FakeGPU,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "GPU_PASS_VALUES", values)
    monkeypatch.setattr(engine, "GPU_PASS_BYTES", activations)
    sizes: list[int] = []
    passes = nn.Sequential.forward
    monkeypatch.setattr(
        nn.Sequential, "forward", lambda self, x: sizes.append(len(x)) or passes(self, x)
    )
    with gpu.allowed():
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).to("cuda")
        gradients = engine.WorkerGradients(model, 9, compare=False)
        gradients(
            on_gpu(torch.randn(9, 1, 1, 8, 8)), on_gpu(torch.zeros(9, 1, dtype=torch.int64)), 1, ()
        )
    assert sizes[1:] == expected  # the first one counts the activations


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
    one = Update.__call__

    def waits(update: Update, inputs: Any, state: State) -> Any:
        if state.round >= FIRST:
            wait(update._parts.problem.x)
        return one(update, inputs, state)

    monkeypatch.setattr(Update, "__call__", waits)
    with pytest.raises((AssertionError, RuntimeError), match=r"host|device"):
        run_of(rounds, small())


ONE_OF_A_KIND = ("alie", "label-flip", "mimic", "optimal-ipm", "poisonedfl", "fang-trimmed-mean")
"""Attacks that read the honest messages' statistics, the labels, one worker's row, the defence's
answers, or the model's way, or that draw numbers.
"""


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(
            text.replace("worker=8", "worker=4"),
            marks=() if text in ONE_OF_A_KIND else pytest.mark.slow,
        )
        for text in ATTACKS
    ],
)
def test_attacks(attack: str, rounds: FakeGPU) -> None:
    run_of(
        rounds, small(attack=attack, method="momentum:beta=0.9", budget=FIRST + 2, eval_every=100)
    )


FOLLOWING = {"adaptive", "evade"}
"""Strategies that read a value of every round, as it decides who is Byzantine in the next one."""


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategies(strategy: str, rounds: FakeGPU) -> None:
    text, nine = SWITCHING.get(strategy, strategy), {"workers": 9, "byzantine": 3}
    spec = small(switching=text, method="dynabro:jmax=3", budget=30, eval_every=1000, **nine)
    with pytest.raises(HiddenWaitError) if strategy in FOLLOWING else contextlib.nullcontext():
        last = run_of(rounds, spec)[-1]
        assert isinstance(last, events.Finished)
        assert last.totals.rounds > FIRST + 2  # which must not wait


@pytest.mark.parametrize("model", ["cnn-digits", "cnn-cifar"])  # the second one has dropout
@pytest.mark.parametrize("eager", [4, 100])
def test_one_row_is_sent_in_a_round(
    model: str, eager: int, rounds: FakeGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches, seeds, identities and the rate are in it; beside a graph, its copy and the copy of
    the round's numbers are launched.
    """
    sent, launched = [], []
    one = Simulation._round
    monkeypatch.setattr(graphs, "EAGER", eager)
    monkeypatch.setattr(graphs, "KernelCapture", capturing(lambda run: (int, run())))

    def round_(simulation: Simulation) -> Any:
        before = rounds.sent
        rounds.counted()
        record = one(simulation)
        sent.append(rounds.sent - before)
        launched.append(launches(rounds.counted()))
        return record

    monkeypatch.setattr(Simulation, "_round", round_)
    run_of(rounds, small(model=model, attack="ipm", budget=8, eval_every=100))
    assert sent[FIRST:] == [1] * 5 or eager == 4
    assert (launched[-1] == 2) is (eager == 4)  # the replays before it are compared
