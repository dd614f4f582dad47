"""Numbers of the user's own at each evaluation, and data of their own from torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch

from dynabro_cli import RunSpec, simulate
from dynabro_cli.components.metrics.classes import classes
from dynabro_cli.core.errors import PluginError, SpecError
from dynabro_cli.core.events import Evaluated
from dynabro_cli.core.registration import METRICS
from dynabro_cli.plugins import LabelledInputs, make_task, metrics, task
from dynabro_cli.testing import check_task
from tests.cli.conftest import Dynabro
from tests.own import fresh
from tests.runs.store.made import change, read

METRICS.clear()  # the import registers the function, also for the other tests of this process

PLUGIN = """
import math
from dynabro_cli.plugins import metrics

@metrics
def by_class(model, data):
    right = model(data.inputs).argmax(1) == data.labels
    return {"worst class": min(float(right[data.labels == one].float().mean()) for one in range(10)), "nothing": math.nan}
"""  # noqa: E501
DIGITS = [
    "run",
    "--task=digits",
    "--model=logistic",
    "--budget=40",
    "--eval-every=20",
    "--plugin=own.py",
    "-q",
]


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    with fresh():
        yield


@pytest.mark.thorough
def test_numbers_of_a_plugin_are_stored_and_plotted_by_name(dynabro: Dynabro, folder: Path) -> None:
    (folder / "own.py").write_text(PLUGIN)
    for method in ("sgd", "dynabro"):
        assert dynabro(*DIGITS, f"--method={method}").code == 0
    stored = read(
        folder / "results.db",
        "SELECT round, name, value FROM metrics WHERE run_id = 1 ORDER BY round, name",
    )
    assert [row[:2] for row in stored] == [
        (place, name) for place in (0, 20, 40) for name in ("nothing", "worst class")
    ]
    assert all(value is None for _, name, value in stored if name == "nothing")
    last = stored[-1][2]
    assert 0 <= last <= 1
    assert dynabro("plot", "final", "--metric", "worst class").code == 0
    assert pd.read_csv("plots/final.csv")["mean"].round(6).iloc[0] == round(last, 6)
    assert dynabro("plot", "curves", "--metric", "worst class").code == 0
    assert dynabro("compare", "--all", "method", "--metric", "worst class", "--json").code == 0
    problem = dynabro("plot", "final", "--metric", "worst clas")
    assert problem.code == 2
    assert "did you mean 'worst class'?" in problem.problems[0]
    assert dynabro("db", "check").code == 0  # the digest of a run covers them
    change(folder / "results.db", "UPDATE metrics SET value = 0.5 WHERE run_id = 1")
    assert dynabro("db", "check").code == 65


def test_what_is_no_number_names_the_function() -> None:
    @metrics
    def mine(model: object, data: object) -> float:
        return 0.5

    with pytest.raises(
        PluginError, match=r"metrics 'mine' returned 0\.5\. Try: a dict of numbers by name"
    ):
        list(simulate(RunSpec(task="digits", model="logistic", budget=1)))


def test_accuracies_of_classes_and_workers() -> None:
    """Inputs are the logits. Class 0: 1 of 2 right, class 1: 3 of 3, class 2: 0 of 1. No test
    sample is of class 3.
    """
    labels = torch.tensor([0, 0, 1, 1, 1, 2])
    data = LabelledInputs(torch.eye(4)[[0, 1, 1, 1, 1, 0]], labels)
    counts = ((0, 0, 4), (1, 0, 1), (1, 1, 3), (1, 3, 9), (2, 2, 5), (2, 1, 15), (3, 3, 7))
    of_classes = {"class 0": 0.5, "class 1": 1.0, "class 2": 0.0, "worst class": 0.0}
    assert classes(torch.nn.Identity(), data, worker_labels=()) == of_classes
    of_workers = {
        "worker 0": 0.5,
        "worker 1": (0.5 + 3) / 4,
        "worker 2": 15 / 20,
        "worst worker": 0.5,
    }
    assert classes(torch.nn.Identity(), data, worker_labels=counts) == of_classes | of_workers
    many = classes(
        torch.nn.Identity(), data, worker_labels=tuple((worker, 1, 1) for worker in range(101))
    )
    assert many == of_classes | {"worst worker": 1.0}


def test_shipped_metrics_are_an_option(
    dynabro: Dynabro, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "dynabro_cli.components.metrics.classes", raising=False)
    words = [
        *DIGITS[:-2],
        "-q",
        "--data=dirichlet:alpha=0.3",
        "--workers=3",
        "--byzantine=1",
        "--method=sgd",
    ]
    assert (
        dynabro(*words, "--metrics", "clases")
        .problems[0]
        .startswith("metrics=clases: not a metric of dynabro (did you mean")
    )
    assert dynabro(*words, "--metrics", "classes").code == 0
    ((accuracy,),) = read(folder / "results.db", "SELECT final_accuracy FROM runs")
    last = dict(read(folder / "results.db", "SELECT name, value FROM metrics WHERE round = 40"))
    assert last.keys() == {
        *(f"class {label}" for label in range(10)),
        *(f"worker {w}" for w in range(3)),
        "worst class",
        "worst worker",
    }
    assert last["worst class"] == min(last[f"class {label}"] for label in range(10))
    counts = read(folder / "results.db", "SELECT worker, label, count FROM worker_labels")
    mine = {label: count for worker, label, count in counts if worker == 2}
    expected = sum(count * last[f"class {label}"] for label, count in mine.items()) / sum(
        mine.values()
    )
    assert last["worker 2"] == pytest.approx(expected)
    METRICS.clear()
    assert dynabro(*words).out.count("already in") == 1  # the key has no metrics
    assert 0 < accuracy < 1


def test_a_metric_changes_no_other_number() -> None:
    spec = RunSpec(task="digits", model="logistic", budget=20, eval_every=10)

    def scores() -> list[tuple[object, ...]]:
        found = [event for event in simulate(spec) if isinstance(event, Evaluated)]
        return [
            (event.round, event.test_accuracy, event.test_loss, event.train_loss) for event in found
        ]

    before, norms = scores(), list[float]()

    @metrics
    def spoil(model: torch.nn.Module, data: tuple[torch.Tensor, torch.Tensor]) -> dict[str, float]:
        mean = float(model(data[0]).detach().mean())
        for tensor in (*model.state_dict().values(), *data):
            tensor.zero_()
        model.train().requires_grad_(False)
        return {"mean": mean}

    @metrics
    def later(model: torch.nn.Module, data: tuple[torch.Tensor, torch.Tensor]) -> dict[str, float]:
        norms.append(min(float(tensor.float().norm()) for tensor in (*model.parameters(), *data)))
        return {}

    assert scores() == before
    assert min(norms) > 0


def test_a_torch_dataset_is_a_task() -> None:
    draws = torch.Generator().manual_seed(0)
    x, y = torch.randn(50, 3, generator=draws), torch.arange(50) % 2
    dataset = torch.utils.data.TensorDataset(x, y)

    @task("own-set")
    def own() -> object:
        """Two classes."""
        return dataset

    images = check_task("own-set")
    assert images.shape.classes == 2  # type: ignore[union-attr]
    both = make_task((dataset, torch.utils.data.TensorDataset(x[:7], y[:7]))).load()
    assert both.train_images.flatten(1).equal(x)  # type: ignore[union-attr]
    assert both.test_labels.tolist() == y[:7].tolist()  # type: ignore[union-attr]
    for wrong, problem in (
        (torch.utils.data.TensorDataset(x), "no pairs of a sample and a class"),
        ((x,), "1 arrays"),
    ):
        with pytest.raises(SpecError, match=problem):
            make_task(wrong).load()
