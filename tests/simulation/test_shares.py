"""Training samples of each worker, held-out samples, and mini-batches that have only the worker's
own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dynabro_cli import RunSpec, simulate
from dynabro_cli.components.partitions._api import REGISTRY, PartitionSetting
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.components.tasks._api import Images, TaskSetting
from dynabro_cli.core import events
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.streams import Streams
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.simulation.problem.images import ImageProblem
from dynabro_cli.simulation.problem.shares import hold_out, share_out
from dynabro_cli.simulation.setup import simulate_run
from tests.simulation.test_problem import ALL, CPU, B, M, by_hand, network, normalised, pictures
from tests.tables import each_row

DIGITS: dict[str, Any] = {
    "task": "digits",
    "model": "logistic",
    "method": "sgd",
    "budget": 3,
    "eval_every": 1,
}
SHARED = [
    *(f"dirichlet:alpha=0.3,by={by}" for by in ("worker", "label")),
    "gamma:similarity=0.5",
    "sorted",
]


def digits() -> Images:
    images: Images = REGISTRIES["tasks"].parse("digits").build(TaskSetting("unused")).load()  # type: ignore[arg-type]
    return images


def began(**fields: Any) -> events.Started:
    started = next(simulate(RunSpec(**DIGITS | fields), device="cpu"))
    assert isinstance(started, events.Started)
    return started


# --- held out


def test_what_is_held_out_and_what_is_left_are_the_training_set() -> None:
    images = pictures(train=50)
    rest, taken = hold_out(images, 0.3)
    assert taken is not None
    assert (len(taken[1]), len(rest.train_labels)) == (15, 35)
    assert len(taken[0]) == 15
    together = (
        torch.cat([rest.train_images, taken[0]]).flatten(1),
        torch.cat([rest.train_labels, taken[1]]),
    )
    seen = sorted((pixels.tolist(), int(label)) for pixels, label in zip(*together, strict=True))
    whole = zip(images.train_images.flatten(1), images.train_labels, strict=True)
    assert seen == sorted((pixels.tolist(), int(label)) for pixels, label in whole)
    assert rest.test_images is images.test_images


def test_the_samples_held_out_are_those_that_were() -> None:
    """Draws from when this was written, not worked by hand. With other samples stored runs could
    not be compared.
    """
    images = pictures(train=20)
    taken = hold_out(images, 0.25)[1]
    assert taken is not None
    assert torch.equal(taken[0], images.train_images[[3, 5, 15, 17, 19]])
    assert torch.equal(taken[1], images.train_labels[[3, 5, 15, 17, 19]])


def test_a_smaller_share_is_a_part_of_a_larger_one() -> None:
    images = digits()
    small, large = (
        {bytes(pixels) for pixels in hold_out(images, share)[1][0].numpy()} for share in (0.1, 0.4)
    )  # type: ignore[index]
    assert small < large


def test_nothing_held_out_copies_nothing() -> None:
    images = digits()
    assert hold_out(images, 0.0) == (images, None)
    assert len(hold_out(images, 1e-9)[1][1]) == 1  # type: ignore[index]


def test_all_seeds_are_chosen_by_the_same_samples() -> None:
    """And by those alone: at a learning rate of nearly nothing the validation loss is the initial
    model's on them.
    """
    scores = []
    for seed in (0, 1):
        spec = RunSpec(**DIGITS | {"seed": seed, "validation": 0.25, "learning_rate": 1e-12})
        first = next(
            event for event in simulate(spec, device="cpu") if isinstance(event, events.Evaluated)
        )
        images, taken = hold_out(digits(), 0.25)
        assert taken is not None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(Streams(seed).integer("init", 0))
            model = REGISTRIES["models"].parse("logistic").build(images.shape)
        logits = model((taken[0].float() / 16 - 0.305) / 0.376)
        assert first.validation_loss == pytest.approx(
            F.cross_entropy(logits, taken[1]).item(), rel=1e-5
        )
        assert first.validation_accuracy == pytest.approx(
            float((logits.argmax(1) == taken[1]).double().mean())
        )
        scores.append(first.validation_loss)
    assert scores[0] != scores[1], "the models differ"


def test_test_numbers_are_there_as_well_and_none_of_validation_without_it() -> None:
    with_, without = (
        [
            event
            for event in simulate(RunSpec(**DIGITS | more), device="cpu")
            if isinstance(event, events.Evaluated)
        ]
        for more in ({"validation": 0.25}, {})
    )
    assert len(with_) == len(without) == 4
    assert with_[0].test_loss == without[0].test_loss
    assert all(score.validation_accuracy is not None for score in with_)
    assert all(
        (score.validation_accuracy, score.validation_loss) == (None, None) for score in without
    )


# --- shared out


@each_row("text", SHARED)
def test_mini_batches_are_of_ones_own_samples(text: str) -> None:
    """The gradients equal gradients of samples drawn again by the partition itself, worker after
    worker.
    """
    images, model = pictures(), network()
    parts = (
        REGISTRY.parse(text)
        .build(type("Setting", (), {"workers": M})())
        .split(images.train_labels.numpy(), Streams(0))
    )
    shares = share_out(REGISTRY.parse(text).build(PartitionSetting(M)), text, images, M, Streams(0))
    problem = ImageProblem(images, model, M, B, Streams(0), CPU, shares=shares)
    generator = Streams(0).generator("data", 5, 2)
    places = generator.integers(np.array([[len(part)] for part in parts]), size=(M, B))
    chosen = torch.from_numpy(
        np.stack([part[own] for part, own in zip(parts, places, strict=True)])
    )
    losses, expected = by_hand(
        model, normalised(images.train_images[chosen]), images.train_labels[chosen]
    )
    problem.sum_gradients(5, (2,), ALL, None)
    torch.testing.assert_close(problem._engine.matrix, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(problem.observed().losses, losses, rtol=1e-5, atol=1e-6)


def test_every_sample_of_ones_own_is_drawn_as_often() -> None:
    images = pictures(train=30)
    shares = share_out(
        REGISTRY.parse("dirichlet:alpha=1").build(PartitionSetting(3)),
        "dirichlet:alpha=1",
        images,
        3,
        Streams(0),
    )
    assert shares is not None
    drawn = np.concatenate(
        [shares.draw(Streams(0).generator("data", round_, 0), 500) for round_ in range(20)], axis=1
    )
    parts = np.split(shares.order, shares.starts[1:, 0])
    for own, part in zip(drawn, parts, strict=True):
        counts = np.bincount(own, minlength=30)
        assert set(np.flatnonzero(counts)) == set(part)
        expected = 10_000 / len(part)
        # chi square, 9 degrees: 33 at 1e-4
        assert float(((counts[part] - expected) ** 2 / expected).sum()) < 33


def test_some_of_the_workers_have_the_batches_that_they_have_among_all() -> None:
    images = pictures()
    shares = share_out(
        REGISTRY.parse("sorted").build(PartitionSetting(M)), "sorted", images, M, Streams(0)
    )
    problem = ImageProblem(images, network(), M, B, Streams(0), CPU, shares=shares)
    whole = problem.sum_gradients(1, (0,), ALL, None).clone()
    some = problem.sum_gradients(1, (0,), torch.tensor([0, 2]), None)[:2]
    torch.testing.assert_close(some, whole[[0, 2]])


@each_row("text", SHARED)
def test_what_is_told_of_labels_is_what_workers_have(text: str) -> None:
    started = began(data=text, validation=0.1)
    assert started.record["data"] == resolve(RunSpec(**DIGITS | {"data": text})).spec.data
    images, taken = hold_out(digits(), 0.1)
    assert taken is not None
    by_label = np.zeros(10, int)
    for worker, label, count in started.labels:
        assert 0 <= worker < 17
        assert count > 0
        by_label[label] += count
    assert {worker for worker, _, _ in started.labels} == set(range(17))
    assert by_label.tolist() == np.bincount(images.train_labels.numpy(), minlength=10).tolist()
    shares = share_out(
        REGISTRY.parse(text).build(PartitionSetting(17)), text, images, 17, Streams(0)
    )
    assert shares is not None
    own = np.split(shares.order, shares.starts[1:, 0])[3]
    counted = dict(
        zip(*np.unique(images.train_labels.numpy()[own], return_counts=True), strict=True)
    )
    assert {label: count for worker, label, count in started.labels if worker == 3} == counted
    assert len(counted) < 10 or text.startswith("gamma")


def test_methods_share_data_and_seeds_do_not() -> None:
    first = began(data="dirichlet:alpha=0.3")
    assert began(data="dirichlet:alpha=0.3", method="dynabro", batch_size=4).labels == first.labels
    assert began(data="dirichlet:alpha=0.3", seed=1).labels != first.labels
    assert began(data="iid").labels == ()


def test_sorted_data_cost_accuracy() -> None:
    """The purpose of partitions: without an attack, cwtm discards what only a few workers have."""
    common = DIGITS | {"attack": "none", "budget": 60, "eval_every": 60, "learning_rate": 0.1}
    ends = [
        list(simulate(RunSpec(**common | {"data": data}), device="cpu"))[-1]
        for data in ("iid", "sorted")
    ]
    iid, by_label = (end.accuracy for end in ends if isinstance(end, events.Finished))
    assert iid is not None
    assert by_label is not None
    assert iid > by_label + 0.05


def test_more_workers_than_samples_of_a_folder_of_images() -> None:
    """A task whose number of samples only the data show."""
    run = resolve(
        RunSpec(
            task="image-folder:name=x", model="logistic", data="sorted", workers=60, batch_size=4
        )
    )
    with pytest.raises(
        SpecError,
        match=r"data=sorted cannot share 50 training samples among workers=60. Try: fewer "
        r"--workers",
    ):
        next(simulate_run(run, device="cpu", load=lambda task, data_dir: pictures(train=50)))
