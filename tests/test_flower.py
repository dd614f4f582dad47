"""The strategy for Flower: rounds with record dictionaries, and a real simulation."""

from __future__ import annotations

import ast
import copy
import logging
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dynabro_cli import make_aggregator
from dynabro_cli.core.errors import SpecError
from dynabro_cli.plugins import aggregator

pytest.importorskip("flwr", reason="needs pip install 'dynabro[flower]'")

from flwr.app import (
    Array,
    ArrayRecord,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp.strategy import MultiKrum
from flwr.supercore.task_identity import TaskIdentity

from dynabro_cli.flower import RobustStrategy

# messages can be made only in a task
TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1

Client = Callable[[int, dict[str, np.ndarray]], "RecordDict | Error | None"]
"""Maps a node's number and the model to the node's reply; None if it does not answer."""
START = {
    "weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "bias": np.array(0.25),
    "half": np.ones(2, dtype=np.float16),
    "num_batches_tracked": np.array(7),
}
OFFSET = 10**18
"""Nodes of Flower have large numbers."""


def reply(arrays: dict[str, Any], **metrics: Any) -> RecordDict:
    """A reply with an ArrayRecord and a MetricRecord."""
    record = ArrayRecord({name: Array(np.asarray(part)) for name, part in arrays.items()})
    return RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": 1} | metrics)})


class Nodes:
    """A grid of nodes that answer at once."""

    def __init__(self, *clients: Client) -> None:
        self.clients = clients

    def get_node_ids(self) -> Iterable[int]:
        return [OFFSET + place for place in range(len(self.clients))]

    def send_and_receive(self, messages: Iterable[Message], timeout: float) -> list[Message]:
        answers = []
        for message in messages:
            place = message.metadata.dst_node_id - OFFSET
            model = {n: part.numpy() for n, part in message.content["arrays"].items()}
            answer = self.clients[place](place, model)
            if answer is not None:
                answers.append(Message(answer, reply_to=message))
        return answers[::-1]


def trained(
    strategy: RobustStrategy, *clients: Client, rounds: int = 1, start: dict[str, Any] = START
) -> tuple[dict[str, np.ndarray], Any]:
    """The model after training with clients, and Flower's result."""
    first = ArrayRecord({name: Array(part) for name, part in start.items()})
    result = strategy.start(Nodes(*clients), first, num_rounds=rounds)
    return {n: part.numpy() for n, part in (result.arrays or first).items()}, result


def moves(by: float, **metrics: Any) -> Client:
    """A client that adds a number to all arrays."""

    def client(_: int, model: dict[str, np.ndarray]) -> RecordDict:
        return reply({n: (part + by).astype(part.dtype) for n, part in model.items()}, **metrics)

    return client


def random_step(place: int, model: dict[str, np.ndarray]) -> RecordDict:
    """A client that moves in a random direction, its own."""
    draws = np.random.default_rng(place)
    return reply({n: (p + draws.normal(size=p.shape)).astype(p.dtype) for n, p in model.items()})


@pytest.mark.parametrize("rule", ["cwtm", "nnm+cwtm", "gm", "nnm+krum", "bucketing:s=1+cwmed"])
def test_the_model_moves_by_the_aggregate_of_differences(rule: str) -> None:
    strategy = RobustStrategy(rule, byzantine=1, min_train_nodes=5)
    model, _ = trained(strategy, *[random_step] * 5)
    floats = ("weight", "bias", "half")
    moved = [random_step(place, START)["arrays"] for place in range(5)]
    differences = [
        np.concatenate(
            [
                (m[n].numpy().astype(np.float64) - np.asarray(START[n], float)).ravel()
                for n in floats
            ]
        )
        for m in moved
    ]
    step = make_aggregator(rule, workers=5, byzantine=1)(np.stack(differences))
    expected = np.concatenate([np.asarray(START[n], np.float64).ravel() for n in floats]) + step
    got = np.concatenate([np.asarray(model[n], np.float64).ravel() for n in floats])
    np.testing.assert_allclose(got, expected, atol=1e-3)  # half precision
    np.testing.assert_allclose(got[:7], expected[:7], atol=1e-6)
    assert {n: (p.dtype, p.shape) for n, p in model.items()} == {
        n: (p.dtype, p.shape) for n, p in START.items()
    }
    counts = sorted(int(m["num_batches_tracked"].numpy()) for m in moved)
    assert model["num_batches_tracked"] == counts[2]


@pytest.mark.parametrize(
    ("type_", "expected"),
    [(np.float16, torch.float32), (np.float32, torch.float32), (np.float64, torch.float64)],
)
def test_differences_have_single_precision_or_double(type_: type, expected: torch.dtype) -> None:
    strategy = RobustStrategy("centered-clipping:tau=5", byzantine=1)
    model, _ = trained(strategy, *[moves(1)] * 3, start={"w": np.zeros(2, dtype=type_)})
    assert model["w"].dtype == type_
    assert strategy._state["v"].dtype == expected


def test_it_is_differences_that_are_aggregated_not_models() -> None:
    # clipping to radius 1 around the model, not around 0
    far = {"w": np.full(4, 1000, dtype=np.float32)}
    strategy = RobustStrategy("centered-clipping:tau=1", byzantine=1)
    model, _ = trained(strategy, *[moves(0.25)] * 3, start=far)
    np.testing.assert_allclose(model["w"], 1000.25)


def test_state_of_a_rule_stays_from_round_to_round() -> None:
    rule = make_aggregator("centered-clipping:tau=0.5", workers=3, byzantine=1)
    expected = np.zeros(1, dtype=np.float32)
    for _ in range(3):
        expected = expected + rule(np.full((3, 1), 2, dtype=np.float32))
    strategy = RobustStrategy("centered-clipping:tau=0.5", byzantine=1)
    model, _ = trained(
        strategy, *[moves(2)] * 3, rounds=3, start={"w": np.zeros(1, dtype=np.float32)}
    )
    np.testing.assert_allclose(model["w"], expected)
    np.testing.assert_allclose(model["w"], [3.0])  # 0.5 + 1 + 1.5


def honest_and_liars() -> tuple[list[np.ndarray], list[Client]]:
    """Eight honest steps, and clients that take them beside two that claim 10^9 examples."""
    honest = list(np.random.default_rng(0).normal(1, 0.5, (8, 1000)).astype(np.float32))
    attack = np.mean(honest, 0) - 0.3 * np.std(honest, 0)

    def client(step: np.ndarray, examples: int) -> Client:
        def answer(_: int, model: dict[str, np.ndarray]) -> RecordDict:
            moved = reply({"w": model["w"] + step})
            moved["metrics"]["num-examples"] = examples  # type: ignore[index]
            return moved

        return answer

    return [*honest, attack], [
        *[client(step, 100) for step in honest],
        *[client(attack, 10**9)] * 2,
    ]


def test_claims_about_the_number_of_examples_have_no_weight() -> None:
    (*honest, attack), clients = honest_and_liars()
    start = {"w": np.zeros(1000, dtype=np.float32)}
    model, _ = trained(RobustStrategy("nnm+cwtm", byzantine=2), *clients, start=start)
    humble = [
        lambda place, model, client=client: reply(
            {"w": client(place, model)["arrays"]["w"].numpy()}
        )
        for client in clients
    ]
    same, _ = trained(RobustStrategy("nnm+cwtm", byzantine=2), *humble, start=start)
    assert np.array_equal(model["w"], same["w"])
    assert np.linalg.norm(model["w"] - np.mean(honest, 0)) < 0.5 * np.linalg.norm(
        attack - np.mean(honest, 0)
    )
    # what docs/distributed.md says of Flower's own strategy
    flower = MultiKrum(num_malicious_nodes=2, num_nodes_to_select=6)
    moved, _ = trained(flower, *clients, start=start)
    np.testing.assert_allclose(moved["w"], attack, atol=1e-5)


def without(*names: str) -> Client:
    return lambda _, model: reply({n: p for n, p in model.items() if n not in names})


def changed(**arrays: Any) -> Client:
    return lambda _, model: reply(model | arrays)


def raw(data: bytes, dtype: str = "float32", stype: str = "numpy.ndarray") -> Client:
    """A client whose weights are these bytes, with a header that claims that all is well."""

    def client(_: int, model: dict[str, np.ndarray]) -> RecordDict:
        moved = reply(model)
        moved["arrays"]["weight"] = Array(dtype, (2, 3), stype, data)  # type: ignore[index]
        return moved

    return client


def twice(_: int, model: dict[str, np.ndarray]) -> RecordDict:
    moved = reply(model)
    moved["more"] = copy.deepcopy(moved["arrays"])
    return moved


INVALID: dict[str, Client] = {
    "no arrays": lambda _, __: RecordDict({"metrics": MetricRecord({"num-examples": 1})}),
    "nothing": lambda _, __: RecordDict(),
    "two records": twice,
    "a missing array": without("bias"),
    "another array": changed(more=np.zeros(2)),
    "another name": lambda _, model: reply({n.upper(): p for n, p in model.items()}),
    "another shape": changed(weight=np.zeros((3, 2), np.float32)),
    "a flat array": changed(weight=np.zeros(6, np.float32)),
    "one dimension more": changed(bias=np.zeros(1)),
    "another type": changed(weight=np.zeros((2, 3))),
    "integers": changed(weight=np.zeros((2, 3), np.int32)),
    "floats in place of a counter": changed(num_batches_tracked=np.zeros(())),
    "NaN": changed(weight=np.full((2, 3), np.nan, np.float32)),
    "Inf": changed(bias=np.full((), -np.inf)),
    "Inf in half precision": changed(half=np.array([1, np.inf], np.float16)),
    "a difference that overflows": changed(bias=np.full((), -1.7e308)),
    "no NumPy array": raw(b"\x80\x04K\x01."),
    "no bytes": raw(b""),
    "half an array": raw(b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, "),
    "another serialisation": raw(b"", stype="pickle"),
}


@pytest.mark.parametrize("kind", INVALID)
def test_an_invalid_reply_is_left_out(
    kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = START | {"bias": np.array(1.7e308)} if "overflow" in kind else START
    strategy = RobustStrategy("cwtm", byzantine=1)
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    with caplog.at_level(logging.WARNING, "flwr"):
        model, _ = trained(strategy, INVALID[kind], moves(0), moves(1), moves(2), start=start)
    np.testing.assert_allclose(model["weight"], START["weight"] + 1)
    assert model["num_batches_tracked"] == 8
    warnings = [entry.getMessage() for entry in caplog.records if entry.levelname == "WARNING"]
    assert len(warnings) == 1
    assert str(OFFSET) in warnings[0]
    assert strategy.suspects()[OFFSET] == 1


def test_failed_and_missing_replies_do_not_lower_f(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: Client = lambda _, __: Error(code=0, reason="out of memory")  # noqa: E731
    missing: Client = lambda _, __: None  # noqa: E731
    strategy = RobustStrategy("cwtm", byzantine=2)
    model, _ = trained(strategy, failed, missing, *[moves(by) for by in (0, 1, 1, 900, 900)])
    np.testing.assert_allclose(model["weight"], START["weight"] + 1)
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    with caplog.at_level(logging.WARNING, "flwr"):
        model, result = trained(strategy, failed, missing, *[moves(1)] * 4)
    assert not result.arrays
    assert not result.train_metrics_clientapp
    warnings = [entry.getMessage() for entry in caplog.records if entry.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "4 nodes" in warnings[0]


def test_a_round_without_answers_keeps_the_model() -> None:
    _, result = trained(RobustStrategy("cwtm", byzantine=1), *[lambda *_: None] * 3)
    assert not result.arrays


def test_the_model_survives_a_round_that_fails() -> None:
    calls = []

    def sometimes(place: int, model: dict[str, np.ndarray]) -> RecordDict | None:
        calls.append(place)
        return None if 3 < len(calls) <= 6 else moves(1)(place, model)

    model, _ = trained(
        RobustStrategy("cwtm", byzantine=1, fraction_evaluate=0.0), *[sometimes] * 3, rounds=3
    )
    np.testing.assert_allclose(model["weight"], START["weight"] + 2)


def test_a_result_that_is_not_finite_is_not_a_model() -> None:
    # 65504 is the largest number of half precision; the rule's memory moves on when nodes stop
    def stops(_: int, model: dict[str, np.ndarray]) -> RecordDict:
        return reply({"w": model["w"] + np.float16(20000 if model["w"] < 45000 else 0)})

    strategy = RobustStrategy("centered-clipping:tau=5000", byzantine=1)
    start = {"w": np.zeros(1, dtype=np.float16)}
    model, _ = trained(strategy, *[stops] * 3, start=start, rounds=6)
    assert model["w"] == pytest.approx(65000, rel=1e-3)


def test_metrics_are_medians() -> None:
    liars: list[Client] = [
        moves(0, loss=1e30, losses=[1e30, 1e30], secret=1.0),
        moves(0, loss=math.nan, losses=[1.0], secret=2.0),
    ]
    honest = [moves(0, loss=float(n), losses=[float(n), 2.0 * n]) for n in range(1, 7)]
    _, result = trained(RobustStrategy("cwtm", byzantine=2), *honest, *liars)
    for metrics in (result.train_metrics_clientapp[1], result.evaluate_metrics_clientapp[1]):
        assert dict(metrics) == {"loss": 4.0, "losses": [4.0, 8.0]}


def test_a_node_has_one_vote_about_a_metric() -> None:
    def stuffs(place: int, model: dict[str, np.ndarray]) -> RecordDict:
        moved = moves(0, loss=1e30)(place, model)
        for number in range(20):
            moved[f"ballot {number}"] = MetricRecord({"loss": 1e30})
        return moved

    _, result = trained(RobustStrategy("cwtm", byzantine=1), stuffs, *[moves(0, loss=1.0)] * 4)
    assert dict(result.train_metrics_clientapp[1]) == {"loss": 1.0}
    assert dict(result.evaluate_metrics_clientapp[1]) == {"loss": 1.0}


def test_suspects_of_a_rule_with_weights() -> None:
    strategy = RobustStrategy("krum", byzantine=1, min_train_nodes=5)
    steps = {0: 0.0, 1: 0.1, 2: 0.2, 3: 0.3, 4: 100.0}
    trained(strategy, *[moves(by) for by in steps.values()])
    shares = strategy.suspects()
    assert list(shares) == [OFFSET + place for place in steps]
    assert sorted(shares.values()) == [0, 1, 1, 1, 1]
    assert shares[OFFSET + 4] == 1


def test_suspects_of_a_rule_by_coordinate() -> None:
    strategy = RobustStrategy("cwtm", byzantine=1)
    start = {"w": np.zeros(4, dtype=np.float32)}
    rows = np.array([[-9, 9, -9, 9], [1, 2, 3, 4], [2, 1, 4, 3], [3, 4, 1, 5]], dtype=np.float32)
    trained(strategy, *[lambda place, _: reply({"w": rows[place]})] * 4, start=start)
    # smallest and largest of each column are cut off: rows 0,3 | 0,2 | 0,2 | 0,2
    expected = {OFFSET: 1.0, OFFSET + 1: 0.0, OFFSET + 2: 0.75, OFFSET + 3: 0.25}
    assert strategy.suspects() == expected
    assert strategy.suspects(reset=True) == expected
    assert strategy.suspects() == {}


@pytest.mark.parametrize(
    "rule", ["cwtm", "nnm+cwtm", "gm", "nnm+gm", "cwmed", "centered-clipping:tau=20"]
)
def test_suspects_are_those_that_lie(rule: str) -> None:
    def lies(place: int, model: dict[str, np.ndarray]) -> RecordDict:
        return reply({"w": model["w"] - 100})

    strategy = RobustStrategy(rule, byzantine=2)
    start = {"w": np.zeros(200, dtype=np.float32)}
    trained(strategy, *[random_step] * 6, lies, lies, rounds=2, start=start)
    shares = list(strategy.suspects().values())
    assert max(shares[:6]) < min(shares[6:])
    if rule != "cwmed":
        assert max(shares[:6]) < 0.5 < min(shares[6:])


@aggregator("of-numpy")
def of_numpy(messages: torch.Tensor) -> torch.Tensor:
    """A rule without a derivative."""
    return torch.from_numpy(messages.detach().numpy().mean(0))


@pytest.mark.parametrize("rule", ["sign-majority", "of-numpy"])
def test_nothing_is_known_of_a_rule_without_a_derivative(rule: str) -> None:
    strategy = RobustStrategy(rule, byzantine=1)
    model, _ = trained(strategy, *[moves(1)] * 3)
    np.testing.assert_allclose(model["weight"], START["weight"] + 1)
    assert all(math.isnan(share) for share in strategy.suspects().values())


def test_nobody_is_suspect_in_a_mean() -> None:
    strategy = RobustStrategy("mean", byzantine=0)
    trained(strategy, *[random_step] * 4)
    assert all(share == pytest.approx(0, abs=1e-6) for share in strategy.suspects().values())


def test_more_nodes_than_the_first_round_had() -> None:
    strategy = RobustStrategy("nnm+cwtm", byzantine=1)
    first, _ = trained(strategy, *[moves(1)] * 3)
    then, _ = trained(strategy, *[moves(1)] * 9, start=first)
    np.testing.assert_allclose(then["weight"], START["weight"] + 2)


def test_nodes_are_sampled_as_by_fedavg() -> None:
    asked = []

    def counts(place: int, model: dict[str, np.ndarray]) -> RecordDict:
        asked.append(place)
        return moves(1)(place, model)

    settings = {"fraction_train": 0.5, "fraction_evaluate": 0.0}
    trained(RobustStrategy("cwtm", byzantine=1, **settings), *[counts] * 10)
    assert len(asked) == len(set(asked)) == 5
    assert RobustStrategy("cwtm", byzantine=3).min_train_nodes == 7


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rule": "cwtn", "byzantine": 1}, "cwtm"),
        ({"rule": "cwtm:g=1", "byzantine": 1}, "g"),
        ({"rule": "cwtm", "byzantine": -1}, "byzantine=-1"),
        ({"rule": "cwtm", "byzantine": "2"}, "byzantine='2'"),
        ({"rule": "cwtm", "byzantine": 1.5}, "byzantine=1.5"),
        ({"rule": "cwtm", "byzantine": 2, "min_train_nodes": 4}, "min_train_nodes=5"),
        ({"rule": "mean", "byzantine": 2, "min_train_nodes": 4}, "min_train_nodes=5"),
        ({"rule": "bulyan", "byzantine": 2}, "bulyan"),
        ({"rule": "fltrust", "byzantine": 1}, "server"),
        ({"rule": "monna", "byzantine": 1}, "same nodes"),
    ],
)
def test_a_rule_that_does_not_fit_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as refused:
        RobustStrategy(**arguments)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_rule_must_be_defined_for_the_nodes_of_a_round() -> None:
    strategy = RobustStrategy("mda", byzantine=5)
    with pytest.raises(SpecError, match="mda"):
        trained(strategy, *[moves(1)] * 60)


@pytest.mark.parametrize(
    "part", [np.zeros(2, np.complex64), np.array(["a"]), np.array(7), np.zeros(2, bool)]
)
def test_a_model_without_floating_point_numbers_is_refused(part: np.ndarray) -> None:
    with pytest.raises(SpecError, match="floating-point"):
        trained(RobustStrategy("cwtm", byzantine=1), *[moves(1)] * 3, start={"w": part})


def test_bools_and_other_integers_are_medians() -> None:
    start = {
        "w": np.zeros(2, np.float32),
        "mask": np.array([True, False]),
        "big": np.array([2**62 + 1], np.int64),
        "u": np.zeros(1, np.uint8),
    }

    def answers(place: int, model: dict[str, np.ndarray]) -> RecordDict:
        return reply(
            model | {"mask": np.array([place > 0] * 2), "u": np.array([place], dtype=np.uint8)}
        )

    model, _ = trained(RobustStrategy("cwtm", byzantine=1), *[answers] * 4, start=start)
    assert model["mask"].tolist() == [True, True]
    assert model["big"].tolist() == [2**62 + 1]
    assert model["u"].tolist() == [1]


SIMULATION = """
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.simulation import run_simulation

client = ClientApp()


@client.train()
def train(message, context):
    part = int(context.node_config["partition-id"])
    model = torch.nn.Linear(3, 1)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    if part < 2:
        state = {name: torch.full_like(value, -1000) for name, value in model.state_dict().items()}
    else:
        inputs = torch.randn(64, 3, generator=torch.Generator().manual_seed(part))
        for _ in range(5):
            model.zero_grad()
            ((model(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
        state = model.state_dict()
    metrics = MetricRecord({"num-examples": 10**9 if part < 2 else 64, "part": part})
    return Message(
        RecordDict({"arrays": ArrayRecord(state), "metrics": metrics}), reply_to=message
    )


@client.evaluate()
def evaluate(message, context):
    return Message(RecordDict(), reply_to=message)


resources = {"num_cpus": 1, "num_gpus": 0.0}
start = {"num_cpus": 2, "include_dashboard": False}
run_simulation(
    app, client, 6, backend_config={"client_resources": resources, "init_args": start}
)
"""
"""Six clients that learn the sum of three inputs, two of them Byzantine."""


@pytest.mark.thorough
def test_a_simulation_learns_with_two_byzantine_clients_of_six(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="needs pip install 'flwr[simulation]'")
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    page = Path(__file__).parents[1] / "docs" / "distributed.md"
    server = re.search(r"```python\n(import torch\nfrom flwr.*?)```", page.read_text(), re.S)
    assert server
    (tmp_path / "app.py").write_text(server[1] + SIMULATION)
    answer = subprocess.run(
        [sys.executable, "app.py"], cwd=tmp_path, capture_output=True, text=True, timeout=250
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    model = torch.load(tmp_path / "model.pt")
    torch.testing.assert_close(model["weight"], torch.ones(1, 3), atol=0.01, rtol=0)
    torch.testing.assert_close(model["bias"], torch.zeros(1), atol=0.01, rtol=0)
    shares = ast.literal_eval(answer.stdout.strip().splitlines()[-1])
    assert sorted(shares.values()) == pytest.approx([0, 0, 0, 0, 1, 1], abs=0.3)
