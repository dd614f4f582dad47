"""Rounds by graph are the eager rounds bit for bit, whatever changes between two replays."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from dynabro_cli import RunSpec
from dynabro_cli.answers.analysis.pairs import FOLLOWING
from dynabro_cli.components.methods._api import GatheringMethod
from dynabro_cli.core.errors import DoubtfulRunError
from dynabro_cli.core.vectors import finite
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.gradients import graphs
from dynabro_cli.gradients.graphs import Capture, Graphed
from dynabro_cli.gradients.layers.chain import Chain
from dynabro_cli.simulation import loop, setup
from dynabro_cli.simulation.checkpoint import Checkpoint
from dynabro_cli.simulation.loop import FLUSH_ROUNDS, Simulation
from dynabro_cli.simulation.problem.images import ImageProblem
from dynabro_cli.simulation.problem.mini_batches import BatchSource
from dynabro_cli.simulation.round.inputs import Inputs
from dynabro_cli.simulation.round.update import Step
from tests.contract.test_attacks import TEXTS as ATTACKS
from tests.contract.test_methods import METHODS, build
from tests.contract.test_switching import NAMES, NEEDED
from tests.simulation.recorder import recorded, repeated

CPU = torch.device("cpu")
STRATEGIES = [NEEDED.get(name, name) for name in NAMES]


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute as on a GPU, whose values the host may not look at; capture early."""
    looks = finite.host_may_look
    monkeypatch.setattr(looks, "__code__", (lambda tensor: False).__code__)
    monkeypatch.setattr(BatchSource, "_given", lambda _, seeds: seeds)
    monkeypatch.setattr(Chain, "serves", lambda *_: False)
    monkeypatch.setattr(graphs, "EAGER", 1)
    monkeypatch.setattr(graphs, "free_memory", lambda _: 1 << 40)


def simulation(capture: Capture | None, **fields: Any) -> Simulation:
    """A simulation whose rounds are captured; eager without a capture."""
    given = {"task": "digits", "model": "logistic", "workers": 9, "byzantine": 3, "batch_size": 2}
    given |= {"budget": 1000, "method": "momentum:beta=0.9", "aggregator": "cwtm", "attack": "sf"}
    spec = RunSpec(**(given | fields))  # type: ignore[arg-type]
    with torch.no_grad():
        made = setup._prepare(resolve(spec), CPU, "off")[0]
    if capture is not None:
        made._graphed = made._update.by_graphs(capture)
    return made


def after(made: Simulation, rounds: int) -> tuple[list[Tensor], list[object]]:
    """The model after each of some rounds, and the rounds' records."""
    models, records = [], list[object]()
    with torch.no_grad():
        for _ in range(rounds):
            made._records.append(made._round())
            models.append(made._parts.problem.x.clone())
            if made._state.round % FLUSH_ROUNDS == 0:
                records += map(repr, made._flush().rounds)
        records += map(repr, made._flush().rounds)
    return models, records


def same(capture: Capture, rounds: int, **fields: Any) -> Graphed:
    """Compare a run by graphs with an eager run."""
    made, other = simulation(capture, **fields), simulation(None, **fields)
    (models, records), (others, other_records) = (after(one, rounds) for one in (made, other))
    assert all(
        torch.equal(graphs._bits(one), graphs._bits(two))
        for one, two in zip(models, others, strict=True)
    )
    assert records == other_records
    assert torch.equal(made._update.loss, other._update.loss)
    assert made._graphed is not None
    return made._graphed


OWN: dict[str, dict[str, Any]] = {
    "byzantine-sgd": {"aggregator": None},
    "safeguard": {"aggregator": None},
    "marina-pp": {"method": "marina-pp:batches=2"},
    "dynabro:filter=option2,noise_bound=1e9": {"aggregator": "mfm"},
    **{name: {"method": "sgd", "clock": "round"} for name in FOLLOWING},
    "on-level:level=2,K=3": {"method": "dynabro:jmax=2"},
}
FEW = {
    *("sgd", "momentum", "dynabro:filter=option2,noise_bound=1e9", "safeguard:noise_bound=1"),
    *("alie", "mimic:target=learned,warmup=1", "poisonedfl:window=1", "label-flip"),
    *("adaptive", "mid-round:K=3"),
}


def each(texts: list[str]) -> Any:
    """One cell for each text; most of them only if asked for."""
    return [pytest.param(text, marks=[] if text in FEW else pytest.mark.thorough) for text in texts]


@pytest.mark.parametrize("method", each(METHODS))
def test_methods(method: str) -> None:
    name = method.partition(":")[0]
    fields = {"method": method} | OWN.get(name, {}) | OWN.get(method, {})
    graphed = same(recorded, 14, attack="ipm", switching="periodic:K=5", **fields)
    gathers = isinstance(build(method), GatheringMethod)
    assert graphed.state.startswith("off: the method gathers" if gathers else "on")


@pytest.mark.parametrize("attack", each(ATTACKS))
def test_attacks(attack: str) -> None:
    assert same(recorded, 8, attack=attack, switching="periodic:K=3").state.startswith("on")


@pytest.mark.parametrize("strategy", each(STRATEGIES))
def test_strategies(strategy: str) -> None:
    fields = {"method": "dynabro:jmax=1", "clock": "computation", "attack": "ipm"}
    graphed = same(recorded, 30, switching=strategy, **(fields | OWN.get(strategy, {})))
    assert graphed.state.startswith("on")


SEEING = {
    "method": "dynabro:jmax=1",
    "clock": "computation",
    "switching": "periodic:K=2",
    "attack": "optimal-ipm",
    "aggregator": "fltrust",
    "data": "iid:server=20",
}
CELLS: list[Any] = [
    pytest.param({"model": "cnn-cifar", "attack": "none"}, marks=pytest.mark.thorough),
    pytest.param(SEEING, marks=pytest.mark.thorough),
    {"method": "dynabro:jmax=2", "aggregator": "fltrust", "data": "iid:server=20"},
    {"participation": 0.6, "method": "demoa", "attack": "sf"},
    {"lr_rule": "adagrad-norm", "weight_decay": 0.01, "attack_entry": "message", "attack": "alie"},
    {"aggregator": "mda", "lr_drop": "0.004:0.5,0.008:0.5", "method": "sgd"},
]


@pytest.mark.parametrize("cell", CELLS)
def test_cells(cell: dict[str, Any]) -> None:
    assert same(recorded, 10, **cell).state.startswith("on")


@pytest.mark.thorough
def test_a_rule_that_waits_for_its_numbers_is_eager() -> None:
    """Without Triton's kernels, or with more workers than they serve."""
    assert same(recorded, 8, aggregator="signguard").state.startswith("off: RuntimeError")


class Watched(Graphed):
    """Keeps each graph with the inputs of its first replay, and what it then starts from."""

    last: Any
    first: list[tuple[graphs.Graph, Any, list[Tensor]]]

    def __call__(self, inputs: Any, state: Any) -> Any:
        self.last = inputs
        return super().__call__(inputs, state)

    def _agrees(self, graph: graphs.Graph, state: Any) -> bool:
        before = [tensor.clone() for tensor in graph.changed]
        self.first = [*getattr(self, "first", []), (graph, self.last, before)]
        return super()._agrees(graph, state)


def outcome(graph: graphs.Graph, before: list[Tensor], row: Tensor) -> list[Tensor]:
    """Everything that a replay changes."""
    graphs._copy(before, graph.changed)
    graph.row.copy_(row)
    graph.start()
    return [graphs._bits(tensor.clone()) for tensor in (*graph.changed, graph.numbers)]


def tensors_of(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of nested tuples, by name."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, tuple):
        names = getattr(value, "_fields", range(len(value)))
        for part, inner in zip(names, value, strict=True):
            yield from tensors_of(inner, f"{name}.{part}")


def changed(tensor: Tensor, name: str) -> Tensor:
    """Another legal value of an input."""
    if tensor.dtype == torch.bool:
        return ~tensor
    if tensor.dtype.is_floating_point:
        return tensor / 2
    if name.endswith("answering"):  # other workers, in ascending order
        return torch.arange(9)[-len(tensor) :] if tensor[0] == 0 else torch.arange(len(tensor))
    if name.endswith("places"):
        return tensor.flip(0)
    return (tensor + 1) % (9 if name.endswith(".rows") else 20)


def unread(inputs: Inputs) -> set[str]:
    """The inputs that a round does not need: what ``everyone`` replaces, and the ticks before the
    last one of a static round.
    """
    who = inputs.who
    earlier = range(0 if inputs.attacked else len(who.ticks) - 1)
    found = {f".who.ticks.{tick}.{part}" for tick in earlier for part in ("byzantine", "places")}
    return found | (set() if who.everyone is None else {".who.ever"})


@pytest.mark.parametrize(
    ("cell", "inputs"),
    [
        pytest.param(
            {"model": "cnn-cifar", "attack": "ipm"},
            {"byzantine", "places", "ever", "unseen", "samples", "flips", "seeds", "rows"},
            marks=pytest.mark.thorough,
        ),
        ({"participation": 0.6, "method": "demoa", "attack": "ipm"}, {"everyone", "answering"}),
        pytest.param(SEEING, {"samples"}, marks=pytest.mark.thorough),
    ],
)
def test_every_input_of_the_row_reaches_a_replay(
    cell: dict[str, Any], inputs: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dynabro_cli.simulation.round.update.Graphed", Watched)
    made = simulation(recorded, **cell)
    problem = made._parts.problem
    assert isinstance(problem, ImageProblem)
    monkeypatch.setattr(problem._source, "_flip", True)
    graphed = made._graphed
    assert isinstance(graphed, Watched)
    after(made, 8)
    found = set()
    with torch.no_grad():
        for graph, given, before in graphed.first:
            named = sorted(tensors_of(given), key=lambda item: "rate" not in item[0])
            places = [name for name, _ in tensors_of(given)]
            values = [tensor for _, tensor in tensors_of(given)]
            expected = outcome(graph, before, graphs.packed(values))
            for name, tensor in named:
                others = list(values)
                others[places.index(name)] = changed(tensor, name)
                reached = outcome(graph, before, graphs.packed(others))
                same_ones = all(map(torch.equal, reached, expected))
                # the attack may choose as before among its strengths
                assert not same_ones or name in unread(given) or name.startswith(".seen"), name
                found.add(name.rpartition(".")[2])
    assert found >= inputs | {"rate"}


def evict() -> None:
    """Empty all caches that may drop a tensor, and overwrite what they had, as a GPU would."""
    modules = [module for name, module in sys.modules.items() if name.startswith("dynabro_cli")]
    for cache in {value for module in modules for value in vars(module).values() if _drops(value)}:
        held: list[Any] = [cache]
        for _ in range(3):  # the dictionary, its links, and what they keep
            held = gc.get_referents(*held)
            for tensor in held:
                if type(tensor) is Tensor:
                    tensor.fill_(1)
        cache.cache_clear()


def _drops(value: object) -> bool:
    return isinstance(value, functools._lru_cache_wrapper) and bool(
        value.cache_parameters()["maxsize"]
    )


@pytest.mark.parametrize("aggregator", ["mda", "smea", "cwtm"])
def test_a_replay_reads_nothing_that_a_cache_may_drop(
    aggregator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"method": "dynabro:jmax=1", "attack": "alie", "aggregator": aggregator}
    expected = after(simulation(None, **fields), 12)
    made, one = simulation(recorded, **fields), Simulation._round
    monkeypatch.setattr(Simulation, "_round", lambda self: (evict(), one(self))[1])
    models, records = after(made, 12)
    assert all(map(torch.equal, models, expected[0]))
    assert records == expected[1]
    assert made._graphed is not None
    assert made._graphed.state.startswith("on")


@pytest.mark.parametrize("kind", ["number", "tensor"])
def test_a_stale_input_is_found(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rate that comes from elsewhere than the row."""
    update = Step.update

    def rate(self: Step, spent: int) -> Tensor:
        self.number = 0.1 / (1 + spent)  # type: ignore[attr-defined]
        return torch.tensor(self.number, dtype=torch.float64)

    def planted(self: Step, x: Tensor, direction: Tensor, _: Tensor) -> Tensor:
        number = self.number  # type: ignore[attr-defined]
        if kind == "tensor":
            return update(self, x, direction, torch.tensor(number, dtype=torch.float64))
        x.sub_(number * direction)
        return torch.full_like(self.squares, number)

    monkeypatch.setattr(Step, "rate", rate)
    monkeypatch.setattr(Step, "update", planted)
    with pytest.raises(DoubtfulRunError, match="replay 2 of a CUDA graph differs"):
        same(recorded, 6)


@pytest.mark.parametrize("first", [1, 2, 3, 7, 100])
def test_a_graph_that_goes_wrong_later_ends_the_run(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the next check, which is never later than after twice as many replays."""
    replays = list[int]()

    def wrong(run: Callable[[], Any]) -> Any:
        start, (numbers, measured) = recorded(run)

        def replay() -> None:
            start()
            replays.append(1)
            if len(replays) >= first:
                numbers[0] *= 1 + 2.0**-50

        return replay, (numbers, measured)

    made = simulation(wrong, attack="none", budget=10_000)
    if first == 1:
        with pytest.warns(UserWarning, match="a CUDA graph differs from its round: it is not used"):
            after(made, 20)
        assert made._graphed is not None
        assert made._graphed.state == "off: the replay differs (1)"
        return
    with pytest.raises(DoubtfulRunError, match="may be wrong"):
        after(made, 2 * first + 20)
    assert first <= len(replays) < 2 * first


def test_the_first_round_with_memory_has_another_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "EAGER", 0)
    why = "eager: RuntimeError: the round changes the names or shapes of states (1)"
    assert same(recorded, 6, attack="none", byzantine=0).state == f"on: 1 forms, 5 replays; {why}"


def test_checks_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[int] = []
    check = Graphed._agrees
    monkeypatch.setattr(graphs, "CHECK", 4)
    monkeypatch.setattr(
        Graphed,
        "_agrees",
        lambda self, graph, state: checked.append(self._replays) or check(self, graph, state),
    )
    assert same(recorded, 14, attack="none")._replays == 12
    assert checked == [1, 2, 4, 8, 12]


@pytest.mark.parametrize(
    ("most", "expected"), [(100, {10, 20, 30, 40}), (20, {10, 20}), (0, set())]
)
def test_the_first_replay_after_an_evaluation_is_checked(
    most: int, expected: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation uses memory of the GPU, which a graph with a tensor that was freed reads."""
    checked = set[int]()
    check = Graphed._agrees

    def watch(self: Graphed, graph: Any, state: Any) -> bool:
        checked.add(state.round)
        return check(self, graph, state)

    monkeypatch.setattr(graphs, "DISTURBED", most)
    monkeypatch.setattr(Graphed, "_agrees", watch)
    made = simulation(recorded, attack="none", budget=45, eval_every=10)
    with torch.no_grad():
        list(made.events())
    # the replays 1, 2, 4, 8 and 16 are in the rounds 2, 3, 5, 9 and 17
    assert {2, 3, 5, 9, 17} <= checked
    assert checked & {10, 20, 30, 40} == expected


def test_a_graph_that_an_evaluation_spoils_ends_the_run() -> None:
    made = simulation(recorded, attack="none", budget=100, eval_every=11)
    evaluate, spoilt = made._parts.problem.evaluate, list[int]()

    def spoil() -> Any:
        score = evaluate()
        if made._state.round == 22:  # replays 16 and 32 are checked anyway, and 21 comes next
            spoilt.append(1)
        return score

    def capture(run: Callable[[], Any]) -> Any:
        start, (numbers, measured) = recorded(run)

        def replay() -> None:
            start()
            if spoilt:
                numbers[0] *= 1 + 2.0**-50

        return replay, (numbers, measured)

    made._parts.problem.evaluate = spoil  # type: ignore[method-assign]
    made._graphed = made._update.by_graphs(capture)
    with (
        pytest.raises(DoubtfulRunError, match="replay 21 of a CUDA graph differs"),
        torch.no_grad(),
    ):
        list(made.events())


@pytest.mark.parametrize("error", ["CUDA error", "", "memory"])
def test_what_cannot_be_captured_is_eager(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def capture(run: Callable[[], Any]) -> Any:
        run()
        if error:
            raise RuntimeError(error)
        return (lambda: None), run()

    if error == "memory":
        monkeypatch.setattr(graphs, "free_memory", lambda _: 0)
    reasons = {"": "the replay differs", "memory": "memory"}
    reason = reasons.get(error, f"RuntimeError: {error}")
    assert same(capture, 6).state == f"off: {reason} (1)"


@pytest.mark.parametrize(
    ("module", "constant", "state"),
    [
        (graphs, "GRAPH_VALUES", "off: large passes"),
        (loop, "MOST_COMPUTATIONS", "no form has come 2 times"),
    ],
)
def test_large_rounds_are_eager(
    module: Any, constant: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, constant, 0)
    assert same(repeated, 4).state == state


def test_a_checkpoint_between_replays() -> None:
    """A restored state is in other tensors than the graphs'."""
    made, other = simulation(recorded), simulation(recorded)
    after(made, 6)
    kept = made._checkpoint().encode(made._parts.spec, None)
    models, _ = after(made, 6)
    after(other, 9)
    other.restore(Checkpoint.decode(kept, other._parts.spec, None))
    assert all(map(torch.equal, models, after(other, 6)[0]))
