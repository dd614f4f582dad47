"""DynaBRO on four processes, with gloo: the simulator and the real thing check each other."""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import safetensors.torch
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel

from dynabro_cli import RunSpec, make_switching, simulate
from dynabro_cli.components.methods._api import MethodSetting
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.components.tasks._api import TaskSetting
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.events import RoundsDone, Weights
from dynabro_cli.core.streams import Streams
from dynabro_cli.distributed import DynaBRO, Step
from dynabro_cli.simulation.need import build_network
from dynabro_cli.simulation.problem.images import ImageProblem
from tests.distributed.worlds import World, first
from tests.tables import each_row

RANKS, ROUNDS, SEED, RATE, BATCH = 4, 50, 3, 0.1, 8
SWITCHING = "periodic:K=3"


class Case(NamedTuple):
    """A chain, and the parameters of DynaBRO."""

    chain: str
    parameters: dict[str, Any]

    @property
    def method(self) -> str:
        """The method's text in a simulation."""
        return "dynabro:" + ",".join(f"{key}={value}" for key, value in self.parameters.items())


CASES = {
    "cwtm": Case("cwtm", {"jmax": 3}),
    "adaptive": Case("cwtm", {"jmax": 3, "filter": "adaptive", "tau": 0.7}),
    "clip": Case("nnm+cwtm", {"jmax": 3, "clip": 1.0}),
    "option1": Case("nnm+cwtm", {"jmax": 3, "filter": "option1", "noise_bound": 0.01}),
    "option2": Case("mfm", {"jmax": 3, "filter": "option2", "noise_bound": 0.3}),
}
MORE = {
    "gm": Case("gm", {"jmax": 6}),
    "clip": Case("nnm+gm", {"jmax": 5, "filter": "adaptive", "clip": 2.0}),
    "centered clipping": Case("centered-clipping:tau=1", {"jmax": 4}),
    "nnm": Case("nnm+cwmed", {"jmax": 4, "filter": "adaptive", "tau": 1.0}),
    "dnc": Case("dnc", {"jmax": 2}),
    "mfm": Case("mfm:threshold=6", {"jmax": 2}),
    "no levels": Case("cwmed", {"jmax": 0}),
}
"""Cases for a thorough test: rules by Gram matrices, with states, and with draws."""


def spec_of(case: Case) -> RunSpec:
    """The run of a case; its budget ends with the last of ``ROUNDS`` rounds."""
    method = REGISTRIES["methods"].parse(case.method).build(MethodSetting(RANKS, 1))
    plans = [method.plan(Streams(SEED).generator("level", round_)) for round_ in range(ROUNDS)]
    *chain, rule = case.chain.split("+")
    return RunSpec(
        task="digits",
        model="mlp",
        method=case.method,
        aggregator=rule,
        pre_aggregators="+".join(chain) or "none",
        attack="sf",
        switching=SWITCHING,
        workers=RANKS,
        byzantine=1,
        budget=sum(plan.prefixes[-1] for plan in plans),
        eval_every=1000,
        batch_size=BATCH,
        learning_rate=RATE,
        lr_drop="none",
        weight_decay=0.0,
        seed=SEED,
    )


class Job:
    """A rank's part of a training job that draws what a simulation draws."""

    def __init__(self, case: Case, rank: int) -> None:
        self.rank = rank
        images = REGISTRIES["tasks"].parse("digits").build(TaskSetting(Path())).load()
        streams = Streams(SEED)
        mlp = REGISTRIES["models"].parse("mlp")
        self.model = build_network(mlp, images.shape, streams)
        twin = build_network(mlp, images.shape, streams)
        self.problem = ImageProblem(images, twin, RANKS, BATCH, streams, torch.device("cpu"))
        self.switching = make_switching(SWITCHING, workers=RANKS, byzantine=1, seed=SEED)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)
        self.dynabro = DynaBRO(
            self.model,
            case.chain,
            byzantine=1,
            budget=spec_of(case).budget,
            seed=SEED,
            **case.parameters,
        )

    def round(self) -> Step:
        """One round: a Byzantine rank flips the signs of its gradients."""
        round_, computations = self.dynabro.round, itertools.count()
        sign = -1 if self.switching.mask(round_)[self.rank] else 1

        def loss() -> Tensor:
            (drawn,) = self.problem.draw(round_, (next(computations),), torch.tensor([self.rank]))
            (inputs,), (labels,) = self.problem._batches(drawn, self.problem._train)
            return sign * F.cross_entropy(self.model(inputs), labels)

        step = self.dynabro.step(loss)
        self.optimizer.step()
        return step


def trained(case: Case) -> dict[str, Any]:
    """A rank's results."""
    job = Job(case, dist.get_rank())
    start = nn.utils.parameters_to_vector(job.model.parameters()).clone()
    steps = [job.round() for _ in range(ROUNDS)]
    return {
        "steps": [(step.level, step.accepted, step.mini_batches) for step in steps],
        "losses": [float(step.loss) for step in steps],
        "spent": job.dynabro.spent,
        "moved": float((nn.utils.parameters_to_vector(job.model.parameters()) - start).norm()),
        "model": job.model.state_dict(),
    }


def resumed(case: Case) -> bool:
    """Stop after 10 rounds, load the states in new objects, and compare after 10 more."""
    first, second = Job(case, dist.get_rank()), Job(case, dist.get_rank())
    for _ in range(10):
        first.round()
    held = io.BytesIO()
    torch.save([first.dynabro.state_dict(), first.model.state_dict()], held)
    held.seek(0)
    of_dynabro, of_model = torch.load(held, weights_only=True)
    second.dynabro.load_state_dict(of_dynabro)
    second.model.load_state_dict(of_model)
    same = [first.round()[:3] == second.round()[:3] for _ in range(10)]
    return all(same) and all(
        torch.equal(one, other)
        for one, other in zip(
            first.model.state_dict().values(), second.model.state_dict().values(), strict=True
        )
    )


@pytest.fixture(scope="module")
def results(world: World) -> list[dict[str, Any]]:
    """Every rank's results, by case."""
    by_case = {name: world.run(trained, case) for name, case in CASES.items()}
    return [{name: ranks[rank] for name, ranks in by_case.items()} for rank in range(RANKS)]


def check(case: Case, mine: dict[str, Any]) -> None:
    """Compare levels, verdicts and parameters after 50 rounds with a simulation's."""
    spec = spec_of(case)
    events = list(simulate(spec, compile="off", weights="end"))
    rounds = [one for event in events if isinstance(event, RoundsDone) for one in event.rounds]
    (weights,) = (event for event in events if isinstance(event, Weights))
    assert mine["steps"] == [(one.level, one.accepted, one.cost) for one in rounds]
    assert len(rounds) == ROUNDS
    assert mine["spent"] == spec.budget
    assert mine["moved"] > 0.1
    for key, tensor in safetensors.torch.load(weights.data).items():
        torch.testing.assert_close(mine["model"][key], tensor, rtol=0, atol=1e-5)


@each_row("name", list(CASES))
def test_the_ranks_train_what_a_simulation_trains(results: list[dict[str, Any]], name: str) -> None:
    check(CASES[name], results[0][name])


@pytest.mark.thorough
@each_row("name", list(MORE))
def test_more_rules_train_what_a_simulation_trains(world: World, name: str) -> None:
    check(MORE[name], world.run(trained, MORE[name])[0])


def test_every_rank_has_the_same_parameters(results: list[dict[str, Any]]) -> None:
    for name in CASES:
        first, *others = (result[name] for result in results)
        for other in others:
            assert other["steps"] == first["steps"]
            for key, tensor in first["model"].items():
                assert torch.equal(other["model"][key], tensor)
        assert len({tuple(result[name]["losses"]) for result in results}) == RANKS


def test_the_cases_judge(results: list[dict[str, Any]]) -> None:
    """The filters accept and reject, so that the comparisons above see both."""
    for name in ("adaptive", "option1"):
        assert {accepted for _, accepted, _ in results[0][name]["steps"]} == {True, False, None}


@each_row("chain", ["centered-clipping:tau=1", "dnc"])
def test_a_job_continues_bit_for_bit(world: World, chain: str) -> None:
    """The first rule remembers its last aggregate, the second counts its draws."""
    assert world.run(resumed, Case(chain, {"jmax": 3})) == [True] * RANKS


class Small(nn.Module):
    """One layer that is used, with statistics of batches, and one that is not."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.norm, self.used, self.unused = nn.BatchNorm1d(3), nn.Linear(3, 1), nn.Linear(2, 2)
        self.table = nn.Embedding(4, 3, sparse=True)
        self.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.used(self.norm(self.frozen(x)) + self.table(torch.arange(len(x)) % 4))
        return result


def small(dtype: torch.dtype, wrong: float | None, ranks: int) -> dict[str, Any]:
    """Train a model that each of the first ranks draws by itself; the last one multiplies its
    losses.
    """
    group, rank = first(ranks), dist.get_rank()
    if rank >= ranks:
        return {}
    torch.manual_seed(rank)
    model = Small(dtype)
    model.norm.running_mean.fill_(rank)
    before = model.frozen.weight.clone()
    parameters = {"jmax": 2, "filter": "adaptive", "process_group": group}
    dynabro = DynaBRO(model, "cwtm", byzantine=1, budget=100, **parameters)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    factor = wrong if wrong is not None and rank == ranks - 1 else 1.0
    optimizer, verdicts = torch.optim.Adam(model.parameters(), 0.01), []
    while dynabro.spent < 40:
        step = dynabro.step(
            lambda: factor * model(torch.randn(8, 3, dtype=dtype)).square().mean().float()
        )
        verdicts.append(step.accepted)
        optimizer.step()
    return {
        "start": start,
        "end": dict(model.state_dict()),
        "verdicts": verdicts,
        "kinds": {each.grad.dtype for each in model.parameters() if each.grad is not None},
        "unused": model.unused.weight.grad,
        "frozen": model.frozen.weight.grad,
        "suspects": dynabro.state.suspects(),
        "drawn": before,
    }


@each_row(
    "dtype, wrong, ranks",
    [
        (torch.float32, None, RANKS),
        (torch.float32, math.nan, RANKS),
        (torch.float32, math.inf, RANKS),
        (torch.float32, -1e30, RANKS),
        (torch.bfloat16, -1e3, RANKS),
        (torch.float64, -1e3, RANKS - 1),
    ],
)
def test_ranks_stay_equal(
    world: World, dtype: torch.dtype, wrong: float | None, ranks: int
) -> None:
    """Whatever one rank sends, the others decide alike, and all parameters stay equal and
    finite.
    """
    zero, *others = world.run(small, dtype, wrong, ranks)[:ranks]
    assert zero["kinds"] == {dtype}
    assert not zero["unused"].any()
    assert zero["frozen"] is None
    assert torch.equal(zero["drawn"], zero["end"]["frozen.weight"])
    assert True in zero["verdicts"]
    for name, tensor in zero["end"].items():
        for other in others:
            assert torch.equal(other["start"][name], zero["start"][name])
            if "running" not in name:
                assert torch.equal(other["end"][name], tensor)
        assert tensor.isfinite().all()
    means = {tuple(each["end"]["norm.running_mean"].tolist()) for each in (zero, *others)}
    assert len(means) == ranks
    assert all(other["verdicts"] == zero["verdicts"] for other in others)
    if wrong is not None:
        assert max(zero["suspects"]) == zero["suspects"][-1]


MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(2, 1),
    "ddp": lambda: nn.parallel.DistributedDataParallel(nn.Linear(2, 1)),
    "ddp inside": lambda: nn.Sequential(nn.parallel.DistributedDataParallel(nn.Linear(2, 1))),
    "frozen": lambda: nn.Linear(2, 1).requires_grad_(False),
    "fsdp": lambda: FullyShardedDataParallel(nn.Linear(2, 1), device_id=torch.device("cpu")),
}


def refused(rule: str, model: str, parameters: dict[str, Any]) -> str:
    """The error."""
    made = MODELS[model]()
    with pytest.raises(SpecError) as error:
        DynaBRO(made, rule, **({"byzantine": 1, "budget": 10} | parameters))
    return str(error.value)


@each_row(
    "rule, model, parameters, words",
    [
        ("cwtm", "linear", {"filter": "option1"}, "noise_bound=auto: .* Try: noise_bound=V"),
        ("mfm", "linear", {"filter": "option2"}, "noise_bound=auto: .* Try: noise_bound=V"),
        ("mfm", "linear", {}, "needs threshold="),
        ("caf", "linear", {"filter": "option1", "noise_bound": 1.0}, "proved kappa"),
        ("cwtm", "linear", {"filter": "option3"}, "option3.* not legal"),
        ("cwtm", "linear", {"jmaxx": 3}, "jmaxx.*jmax"),
        ("cwtm", "linear", {"jmax": -1}, "jmax.*-1"),
        ("cwtm", "linear", {"byzantine": 2}, "byzantine=2: "),
        ("cwtn", "linear", {}, "unknown aggregator"),
        ("cwtm", "ddp", {}, "model=DistributedDataParallel: .* Try: the model inside"),
        ("cwtm", "ddp inside", {}, "model=Sequential: DistributedDataParallel combines"),
        ("cwtm", "fsdp", {}, "FullyShardedDataParallel combines"),
        ("cwtm", "frozen", {}, "no parameter requires a gradient"),
    ],
)
def test_errors(
    world: World, rule: str, model: str, parameters: dict[str, Any], words: str
) -> None:
    for error in world.run(refused, rule, model, parameters):
        assert re.search(words, error)


def test_without_a_process_group() -> None:
    with pytest.raises(SpecError, match=r"torch.distributed is not initialised. Try: "):
        DynaBRO(nn.Linear(2, 1), "cwtm", byzantine=0, budget=10)
