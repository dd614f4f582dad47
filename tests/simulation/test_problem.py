"""The problems that a simulation trains: batches, normalisation, flips, observations, and
evaluation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dynabro_cli import RunSpec
from dynabro_cli.components.attacks._api import AttackSetting
from dynabro_cli.components.methods._api import Plan
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.components.switching._api import SwitchingSetting
from dynabro_cli.components.tasks._api import Images, ImageShape, TaskSetting
from dynabro_cli.core.events import Evaluated
from dynabro_cli.core.streams import Streams
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.gradients.engine import WorkerGradients
from dynabro_cli.simulation import setup
from dynabro_cli.simulation.loop import Parts, Simulation, State
from dynabro_cli.simulation.problem import images as image_problem
from dynabro_cli.simulation.problem.images import ImageProblem
from dynabro_cli.simulation.problem.interface import forget
from dynabro_cli.simulation.problem.objective import ObjectiveProblem
from dynabro_cli.simulation.problem.shares import Shares
from dynabro_cli.simulation.round.gathering import RoundGradients
from dynabro_cli.simulation.round.identities import identify
from dynabro_cli.simulation.round.inputs import Inputs
from tests.simulation.reference import masks, run

M, B = 3, 4
CPU = torch.device("cpu")
ALL = torch.arange(M)
MEAN, STD = (0.2, 0.5), (0.3, 0.7)


def pictures(*, flip: bool = False, train: int = 50, test: int = 7) -> Images:
    """Random images of two channels in three classes."""
    source = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (train + test, 2, 4, 5), generator=source, dtype=torch.uint8)
    labels = torch.randint(3, (train + test,), generator=source)
    shape = ImageShape(2, 4, 5, 3)
    return Images(
        pixels[:train], labels[:train], pixels[train:], labels[train:], MEAN, STD, shape, flip=flip
    )


def network(*, norm: bool = False) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        middle = (nn.BatchNorm2d(2),) if norm else ()
        return nn.Sequential(
            *middle, nn.Flatten(), nn.Linear(40, 3), nn.Dropout(0.5 if norm else 0.0)
        )


def normalised(pixels: Tensor) -> Tensor:
    mean, std = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in (MEAN, STD))
    return ((pixels.double() / 255 - mean) / std).float()


def drawn(images: Images, round_: int, computation: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The mini-batches that every worker should draw, before flips: pixels [m, B, c, h, w] and
    labels [m, B].
    """
    generator = Streams(seed).generator("data", round_, computation)
    indices = torch.from_numpy(generator.integers(len(images.train_labels), size=(M, B)))
    return images.train_images[indices], images.train_labels[indices]


def by_hand(model: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Losses [m] and gradients [m, d] of the workers' mini-batches."""
    losses = [
        F.cross_entropy(model(own), classes) for own, classes in zip(inputs, labels, strict=True)
    ]
    gradients = [torch.autograd.grad(loss, list(model.parameters())) for loss in losses]
    return torch.stack(losses).detach(), torch.stack(
        [torch.cat([part.flatten() for part in one]) for one in gradients]
    )


@pytest.mark.parametrize("flip", [False, True])
def test_batches_are_drawn_by_round_and_computation(flip: bool) -> None:
    images, model = pictures(flip=flip), network()
    problem = ImageProblem(images, model, M, B, Streams(0), CPU)
    expected, losses, flips = torch.zeros(M, problem.x.numel()), torch.zeros(M), 0
    for computation in (2, 3):
        pixels, labels = drawn(images, 5, computation)
        if flip:
            coins = torch.from_numpy(
                Streams(0).generator("augment", 5, computation).random(M * B) < 0.5
            ).view(M, B)
            pixels = torch.where(coins[:, :, None, None, None], pixels.flip(-1), pixels)
            flips += int(coins.sum())
        of_workers, gradients = by_hand(model, normalised(pixels), labels)
        expected += gradients
        losses += of_workers
    total = torch.zeros_like(expected)
    assert problem.sum_gradients(5, (2, 3), ALL, total) is total
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-6)
    observed = problem.observed()
    torch.testing.assert_close(observed.losses, losses, rtol=1e-5, atol=1e-6)
    assert observed.statistics.shape == (M, 0)
    assert observed.counts.tolist() == [2.0] * M
    forget(problem)
    assert [part.sum() for part in problem.observed()] == [0, 0, 0]
    assert 0 < flips < 2 * M * B or not flip


def test_one_computation_without_a_total() -> None:
    images, model = pictures(), network()
    problem = ImageProblem(images, model, M, B, Streams(3), CPU)
    pixels, labels = drawn(images, 1, 0, seed=3)
    expected = by_hand(model, normalised(pixels), labels)[1]
    torch.testing.assert_close(
        problem.sum_gradients(1, (0,), ALL, None), expected, rtol=1e-4, atol=1e-6
    )


def test_dropout_is_drawn_by_round_and_computation() -> None:
    """Every mini-batch is the same with one training image, so only the masks can make gradients
    differ.
    """
    images = pictures(train=1)
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(40, 3))
    problem = ImageProblem(images, model, M, B, Streams(0), CPU)
    counters = ((0, 0), (0, 1), (1, 0), (1, 1))
    seen = [
        problem.sum_gradients(round_, (computation,), ALL, None).clone()
        for round_, computation in counters
    ]
    assert len(torch.unique(torch.stack(seen).flatten(1), dim=0)) == 4
    assert torch.equal(problem.sum_gradients(0, (1,), ALL, None), seen[1])


@pytest.mark.parametrize("together", [1, 2, 5])
def test_computations_that_share_a_pass_are_those_of_passes_of_their_own(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five computations at a point, one at a time and several at a time: batches, flips, labels,
    masks, statistics.
    """

    def results(at_a_time: int) -> list[Tensor]:
        problem = ImageProblem(pictures(flip=True), network(norm=True), M, B, Streams(0), CPU)
        monkeypatch.setattr(image_problem, "TOGETHER", at_a_time * M * B * problem._engine.kept)
        passes.clear()
        total = problem.sum_gradients(4, range(5), ALL, torch.zeros(M, problem.x.numel()), wrong)
        return [total, *problem.observed()]

    def wrong(labels: Tensor, computation: int, classes: int) -> Tensor:
        return (labels + computation) % classes

    passes: list[int] = []
    call = WorkerGradients.__call__

    def counted(
        engine: WorkerGradients, inputs: Tensor, labels: Tensor, batches: int, seeds: Sequence[int]
    ) -> Tensor:
        passes.append(batches)
        return call(engine, inputs, labels, batches, seeds)

    monkeypatch.setattr(WorkerGradients, "__call__", counted)
    alone = results(1)
    assert passes == [1] * 5
    for one, other in zip(alone, results(together), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)
    assert passes == {1: [1] * 5, 2: [2, 2, 1], 5: [5]}[together]


def test_evaluation_is_over_the_test_set_without_dropout_and_with_the_servers_statistics() -> None:
    images, model = pictures(test=23), network(norm=True)
    problem = ImageProblem(images, model, M, B, Streams(0), CPU)
    problem.sum_gradients(0, (0,), ALL, None)  # leaves the stand-ins in training mode
    problem.buffers.copy_(torch.tensor([0.3, -0.2, 1.7, 0.4]))
    x = (
        normalised(images.test_images).double() - torch.tensor([0.3, -0.2])[:, None, None]
    ) / torch.tensor([1.7, 0.4]).add(1e-5).sqrt()[:, None, None]
    logits = x.flatten(1) @ model[2].weight.double().T + model[2].bias.double()
    score = problem.evaluate()
    assert score.accuracy == pytest.approx(
        float((logits.argmax(1) == images.test_labels).double().mean())
    )
    assert score.loss == pytest.approx(F.cross_entropy(logits, images.test_labels).item(), rel=1e-5)
    assert score.gap is None


def test_evaluation_in_parts() -> None:
    images = pictures(test=2345)
    problem = ImageProblem(images, network(), M, B, Streams(0), CPU)
    logits = network()(normalised(images.test_images)).double()
    score = problem.evaluate()
    assert score.accuracy == pytest.approx(
        float((logits.argmax(1) == images.test_labels).double().mean())
    )
    assert score.loss == pytest.approx(F.cross_entropy(logits, images.test_labels).item(), rel=1e-5)


@pytest.mark.parametrize("method", ["sgd", "dynabro:jmax=3"])
def test_the_server_keeps_the_honest_workers_statistics(method: str) -> None:
    """Running statistics move by 0.1 towards the honest workers' mean, taken over the round's
    mini-batches.
    """
    spec = resolve(
        RunSpec(
            task="digits",
            method=method,
            workers=M,
            byzantine=1,
            batch_size=B,
            budget=12,
            eval_every=1,
            switching="periodic:K=1",
        )
    ).spec
    images, streams = pictures(), Streams(0)
    model = network(norm=True)
    problem = ImageProblem(images, model, M, B, streams, CPU)
    resolved = resolve(spec)
    parts = Parts(
        spec,
        problem,
        *resolved.assemble(),
        REGISTRIES["attacks"].parse("sf").build(AttackSetting(M)),
        REGISTRIES["switching"].parse("periodic:K=1").build(SwitchingSetting(M, 1, 0)),
        streams,
    )
    identities = masks("periodic:K=1", M, 1, 12)
    buffers = torch.tensor([0.0, 0.0, 1.0, 1.0])
    with torch.no_grad():
        scores = [
            event for event in Simulation(parts, State()).events() if isinstance(event, Evaluated)
        ]
    spent = 0
    for round_, score in enumerate(scores[1:]):
        count = score.budget - spent
        # [n, m, B, c, h, w]
        inputs = torch.stack([normalised(drawn(images, round_, k)[0]) for k in range(count)])
        inputs = inputs[:, torch.from_numpy(~identities[round_])]
        mean = inputs.mean((2, 4, 5)).mean((0, 1))
        variance = inputs.var((2, 4, 5), correction=1).mean((0, 1))
        buffers = 0.9 * buffers + 0.1 * torch.cat([mean, variance])
        spent = score.budget
    torch.testing.assert_close(problem.buffers, buffers, rtol=1e-5, atol=1e-6)
    assert spent >= 12


def test_the_first_rounds_of_two_methods_recomputed_on_digits() -> None:
    """Both methods see the same first mini-batch; the training loss is the honest workers'."""
    common = {
        "task": "digits",
        "model": "logistic",
        "attack": "none",
        "aggregator": "mean",
        "workers": 5,
        "byzantine": 2,
    }
    common |= {
        "learning_rate": 0.1,
        "weight_decay": 0.0,
        "switching": "static",
        "seed": 2,
        "eval_every": 1,
    }
    sgd = run(method="sgd", budget=1, **common)
    dynabro = run(method="dynabro:jmax=0", budget=1, **common)
    assert sgd.rounds[0].gradient_norm == dynabro.rounds[0].gradient_norm
    assert sgd.last == dynabro.last

    data = REGISTRIES["tasks"].parse("digits").build(TaskSetting("unused")).load()  # type: ignore[arg-type]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Streams(2).integer("init", 0))
        model = REGISTRIES["models"].parse("logistic").build(data.shape)
    indices = Streams(2).generator("data", 0, 0).integers(1437, size=(5, 16))
    inputs = (data.train_images[indices].float() / 16 - 0.305) / 0.376
    losses, gradients = by_hand(model, inputs, data.train_labels[indices])
    honest = torch.from_numpy(~masks("static", 5, 2, 1, seed=2)[0])
    assert sgd.evaluations[1].train_loss == pytest.approx(float(losses[honest].mean()), rel=1e-5)
    assert sgd.rounds[0].gradient_norm == pytest.approx(float(gradients.mean(0).norm()), rel=1e-4)
    at_start = F.cross_entropy(
        model((data.test_images.float() / 16 - 0.305) / 0.376), data.test_labels
    )
    assert sgd.evaluations[0].test_loss == pytest.approx(at_start.item(), rel=1e-5)


def test_training_loss_is_per_computation() -> None:
    """A round at level J counts 2^J times: at a learning rate near 0 the loss is the loss at the
    start, about log 10.
    """
    outcome = run(
        task="digits",
        model="logistic",
        method="dynabro:jmax=3",
        learning_rate=1e-9,
        budget=60,
        eval_every=20,
    )
    start = outcome.evaluations[0].test_loss
    assert start is not None
    for item in outcome.evaluations[1:]:
        # 9 honest workers x 16 x 20 samples: the mean is far closer to the start's than a count
        # that is off would be
        assert item.train_loss == pytest.approx(start, rel=0.1)


def test_objective_gradients_are_summed_over_computations() -> None:
    objective = REGISTRIES["tasks"].parse("quadratic").build(TaskSetting("unused")).load()  # type: ignore[arg-type]
    problem = ObjectiveProblem(objective, M, B, Streams(0))
    singles = [problem.sum_gradients(4, (k,), ALL, None).clone() for k in range(3)]
    total = torch.ones(M, 2, dtype=torch.float64)
    assert problem.sum_gradients(4, range(1, 3), ALL, total) is total
    torch.testing.assert_close(total, 1 + singles[1] + singles[2])
    assert problem.evaluate() == (None, None, pytest.approx(9.0))
    assert problem.x.dtype == torch.float64
    problem.x.zero_()
    assert objective.start.tolist() == [3.0, -3.0], "the run moves a copy"
    # E|noise|^2 of a mini-batch of 4 is 0.5/4 = 1/8 by worker, and workers differ
    assert not torch.equal(singles[0][0], singles[0][1])


# --- the gradients of methods that gather them themselves


def whole(images: Images, model: nn.Module) -> Tensor:
    """The gradient of the mean loss over all training samples, [d]."""
    (losses, gradients) = by_hand(
        model, normalised(images.train_images)[None], images.train_labels[None]
    )
    assert len(losses) == 1
    return gradients[0]


def test_all_samples_make_the_full_gradient() -> None:
    """50 samples are 12 mini-batches of 4 and one of 2."""
    images, model = pictures(flip=True), network()
    problem = ImageProblem(images, model, M, B, Streams(0), CPU)
    found = problem.large_gradients(3, 13)
    torch.testing.assert_close(found, whole(images, model).expand(M, -1))
    seen = problem.observed()
    assert seen.counts.tolist() == [13] * M
    assert seen.losses.std() == 0 < seen.losses[0]


def test_full_gradients_with_wrong_labels_are_those_of_who_has_them() -> None:
    """Worker 1 has every label one higher: its full gradient is the gradient of such a data set, in
    the same mini-batches.
    """
    images, model = pictures(), network()
    problem = ImageProblem(images, model, M, B, Streams(0), CPU)

    def relabel(labels: Tensor, _: int, classes: int) -> Tensor:
        return torch.where(torch.arange(len(labels))[:, None] == 1, (labels + 1) % classes, labels)

    found = problem.large_gradients(3, 13, relabel)
    wrong = dataclasses.replace(
        images, train_labels=(images.train_labels + 1) % images.shape.classes
    )
    torch.testing.assert_close(found[0], whole(images, model))
    torch.testing.assert_close(found[2], whole(images, model))
    torch.testing.assert_close(found[1], whole(wrong, model))
    assert problem.observed().counts.tolist() == [13] * M


def test_full_gradients_of_workers_with_samples_of_their_own() -> None:
    """50 samples of three workers are 17 on average, five mini-batches of 4; each takes what it
    has, be it more or less.
    """
    images, model = pictures(), network()
    sizes = np.array([[10], [15], [25]])
    shares = Shares(np.arange(50)[::-1].copy(), np.array([[0], [10], [25]]), sizes, ())
    problem = ImageProblem(images, model, M, B, Streams(0), CPU, shares=shares)
    found = problem.large_gradients(3, 5)
    for worker, part in enumerate((slice(40, 50), slice(25, 40), slice(0, 25))):
        own = dataclasses.replace(
            images, train_images=images.train_images[part], train_labels=images.train_labels[part]
        )
        torch.testing.assert_close(found[worker], whole(own, model))
    assert problem.observed().counts.tolist() == [3, 4, 7]


def test_fewer_than_all_are_fresh_mini_batches() -> None:
    images, model = pictures(), network()
    problem = ImageProblem(images, model, M, B, Streams(0), CPU)
    expected = sum(
        by_hand(model, normalised(pixels), labels)[1]
        for pixels, labels in (drawn(images, 3, k) for k in range(5))
    )
    torch.testing.assert_close(problem.large_gradients(3, 5), expected / 5)
    assert problem.observed().counts.tolist() == [5] * M


def test_full_gradients_of_a_network_with_noise_and_statistics() -> None:
    """Dropout depends on the seed, batch normalisation on each mini-batch; every worker has the
    same.
    """
    images = pictures()
    problem = ImageProblem(images, network(norm=True), M, B, Streams(0), CPU)
    first, second, other = (problem.large_gradients(round_, 13) for round_ in (1, 1, 2))
    assert torch.equal(first, second)
    assert torch.equal(first[0], first[2])
    assert not torch.equal(first, other)
    assert problem.observed().statistics.std(0).max() == 0


def test_large_gradients_of_an_objective_are_means_of_fresh_ones() -> None:
    objective = REGISTRIES["tasks"].parse("quadratic").build(TaskSetting(None)).load()  # type: ignore[arg-type]
    problem = ObjectiveProblem(objective, M, B, Streams(0))
    expected = sum(problem.sum_gradients(4, (k,), ALL, None) for k in range(6)) / 6
    torch.testing.assert_close(problem.large_gradients(4, 6), expected)


def inputs_of(parts: Parts, state: State, plan: Plan) -> Inputs:
    """Return the inputs of a round that is neither judged, probed nor attacked by computation."""
    who, _ = identify(parts, state, 1)
    return Inputs(plan, who, torch.tensor(0.1), False, False, False, (), (), ())


def test_gradients_at_other_points() -> None:
    """The gradient of worker i at its point is the gradient of a network at this point; the model
    is unchanged.
    """
    made = setup._prepare(
        resolve(
            RunSpec(method="local-steps", model="logistic", workers=M, byzantine=1, batch_size=B)
        ),
        CPU,
        "off",
    )[0]
    parts, state = made._parts, made._state
    inputs = inputs_of(parts, state, Plan(None, (3,)))
    round_ = RoundGradients(parts, state, inputs, made._update._server.attacker)
    here = parts.problem.x.clone()
    points = here + 0.1 * torch.randn(M, here.numel(), generator=torch.Generator().manual_seed(0))
    found, at_one = round_.gradients(2, points), round_.gradients(2, points[1])
    assert torch.equal(parts.problem.x, here)
    for worker in range(M):
        parts.problem.x.copy_(points[worker])
        expected = parts.problem.sum_gradients(0, (2,), ALL, None).clone()
        torch.testing.assert_close(found[worker], expected[worker])
        if worker == 1:
            torch.testing.assert_close(at_one, expected)
    assert not torch.allclose(found[0], found[1])


def test_losses_at_another_point_are_not_counted() -> None:
    made = setup._prepare(
        resolve(
            RunSpec(method="marina-pp", model="logistic", workers=M, byzantine=1, batch_size=B)
        ),
        CPU,
        "off",
    )[0]
    parts, state = made._parts, made._state
    inputs = inputs_of(parts, state, Plan(None, (2,)))
    round_ = RoundGradients(parts, state, inputs, made._update._server.attacker)
    round_.gradients(0, parts.problem.x + 1)
    round_.gradients(0)
    seen = parts.problem.observed()
    assert seen is not None
    assert seen.counts.tolist() == [1] * M
