"""Attacks on data: whose labels are wrong in which computation, and what becomes of the gradients
and the losses.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dynabro_cli import RunSpec, make_switching, simulate
from dynabro_cli.components.tasks._api import Images
from dynabro_cli.core import events
from dynabro_cli.core.streams import Streams
from dynabro_cli.experiment.data import read
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.simulation.problem.images import ImageProblem
from dynabro_cli.simulation.problem.interface import forget

M, B = 5, 4
COMMON: dict[str, Any] = {
    "task": "digits",
    "model": "mlp:hidden=8",
    "workers": M,
    "byzantine": 2,
    "batch_size": B,
}
CPU = torch.device("cpu")


def problem(*, flipped: bool = False) -> ImageProblem:
    """A problem on digits; ``flipped``, all of its data have the label 9 - y."""
    run = resolve(RunSpec(**COMMON))
    data = read(run.task, Path())
    assert isinstance(data, Images)
    if flipped:
        object.__setattr__(data, "train_labels", 9 - data.train_labels)
    torch.manual_seed(0)
    assert run.model is not None
    return ImageProblem(data, run.model.build(data.shape), M, B, Streams(0), CPU)


@pytest.mark.parametrize("computations", [(0,), (1, 2, 3)])
def test_gradients_are_those_of_the_changed_labels(computations: Sequence[int]) -> None:
    """The result equals training on data with wrong labels for the marked workers; in each
    computation for others.
    """

    def relabel(labels: Tensor, computation: int, classes: int) -> Tensor:
        assert (labels.shape, classes) == ((M, B), 10)
        return torch.where((torch.arange(M) == computation)[:, None], 9 - labels, labels)

    right, wrong, mixed = problem(), problem(flipped=True), problem()
    everyone, sums = torch.arange(M), torch.zeros(M, right.x.numel())
    total = mixed.sum_gradients(7, computations, everyone, sums, relabel)
    expected, losses = torch.zeros_like(total), torch.zeros(M)
    for computation in computations:
        for source in (right, wrong):
            forget(source)
            rows = source.sum_gradients(7, (computation,), everyone, None).clone()
            seen = source.observed()
            chosen = (everyone == computation) == (source is wrong)
            expected += torch.where(chosen[:, None], rows, 0)
            losses += torch.where(chosen, seen.losses, 0)
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(mixed.observed().losses, losses)


def watched(
    spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[events.Event], dict[int, list[Tensor]]]:
    """A run's events, and whose labels were changed in its computations: for each round a mask of
    every one.
    """
    seen: dict[int, list[Tensor]] = {}
    draw, compute, now = ImageProblem.draw, ImageProblem.gradients, [0]

    def noted(self: ImageProblem, round_: int, *rest: Any) -> Any:
        now[0] = round_
        return draw(self, round_, *rest)

    def spy(self: ImageProblem, draws: Any, total: Any, relabel: Any = None) -> Tensor:
        if relabel is not None:
            for computation in itertools.chain(*(drawn.computations for drawn in draws)):
                labels = torch.zeros(M, 1, dtype=torch.int64)
                seen.setdefault(now[0], []).append(relabel(labels, computation, 10)[:, 0] == 9)
        return compute(self, draws, total, relabel)

    monkeypatch.setattr(ImageProblem, "draw", noted)
    monkeypatch.setattr(ImageProblem, "gradients", spy)
    return list(simulate(spec)), seen


@pytest.mark.parametrize("attack", ["label-flip", "mixed:parts=label-flip/sf"])
@pytest.mark.parametrize("clock", ["round", "computation"])
def test_who_is_byzantine_at_the_computation(
    clock: str, attack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = RunSpec(
        **COMMON,
        method="dynabro:jmax=3",
        attack=attack,
        switching="periodic:K=3",
        clock=clock,
        budget=40,
    )
    happened, seen = watched(spec, monkeypatch)
    rounds = [
        row for event in happened if isinstance(event, events.RoundsDone) for row in event.rounds
    ]
    switching, spent = make_switching("periodic:K=3", workers=M, byzantine=2), 0
    flips = torch.arange(M) % 2 == 0 if "/" in attack else torch.ones(M, dtype=torch.bool)
    for row in rounds:
        ticks = [row.round if clock == "round" else spent + k for k in range(row.cost)]
        expected = [switching.mask(tick) & flips for tick in ticks]
        assert len(seen[row.round]) == row.cost
        assert all(torch.equal(*pair) for pair in zip(seen[row.round], expected, strict=True))
        spent += row.cost
    assert any(row.dynamic for row in rounds) == (clock == "computation")


def of(happened: list[events.Event], name: str) -> list[Any]:
    return [getattr(event, name) for event in happened if isinstance(event, events.Evaluated)]


def test_the_loss_is_that_of_honest_workers() -> None:
    """At a learning rate that moves nothing, the loss is the loss of the same run without
    attack.
    """
    fields = COMMON | {
        "method": "sgd",
        "aggregator": "mean",
        "learning_rate": 1e-30,
        "budget": 30,
        "eval_every": 10,
    }
    flipped, clean = (
        list(simulate(RunSpec(**fields, attack=attack))) for attack in ("label-flip", "none")
    )
    assert of(flipped, "train_loss") == of(clean, "train_loss")
    assert None not in of(flipped, "train_loss")[1:]


def test_where_no_worker_is_honest_there_is_no_loss() -> None:
    fields = COMMON | {"method": "sgd", "budget": 3, "switching": "bernoulli:p=1,D=1,delta_max=1"}
    flipped, negated = (
        list(simulate(RunSpec(**fields, attack=attack))) for attack in ("label-flip", "sf")
    )
    assert of(flipped, "train_loss")[1:] == [None]
    assert None not in of(negated, "train_loss")[1:]


@pytest.mark.thorough
def test_it_is_an_attack() -> None:
    """All workers on wrong labels learn them: accuracy falls under guessing, and under a run
    without attack.
    """
    fields = COMMON | {
        "method": "sgd",
        "budget": 150,
        "eval_every": 150,
        "learning_rate": 0.2,
        "aggregator": "mean",
    }
    everyone = fields | {"switching": "bernoulli:p=1,D=1,delta_max=1"}
    wrong, clean = (
        of(list(simulate(RunSpec(**everyone, attack=attack))), "test_accuracy")[-1]
        for attack in ("label-flip", "none")
    )
    assert wrong < 0.1
    assert clean > 0.4


def test_the_other_attacks_compute_with_the_labels_of_the_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, seen = watched(RunSpec(**COMMON, method="sgd", attack="sf", budget=5), monkeypatch)
    assert not seen
