"""Models whose ``forward`` does more than its layers: every worker's gradient is its own, whatever
the way of computing.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dynabro_cli.gradients.engine import LOOP, MAPPED, SHARED, WorkerGradients
from tests.gradients.worker_by_worker import CLASSES, batch_of, one_by_one

pytestmark = pytest.mark.filterwarnings("ignore:gradients by:RuntimeWarning")


class Body(nn.Module):
    """Two linear layers with a function between them."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.between = nn.Linear(64, 12), nn.Linear(12, CLASSES), between

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.first(x.flatten(1))))


def body(between: Callable[[Tensor], Tensor] = torch.tanh) -> Body:
    torch.manual_seed(0)
    return Body(between)


def compare(
    model: nn.Module, kind: str, reason: str, *, workers: int = 3, batches: int = 1
) -> WorkerGradients:
    """Compare gradients and losses of ``model`` with one worker after another; return the
    engine.
    """
    inputs, labels = batch_of(workers, 4 * batches, (1, 8, 8))
    model = model.double()
    losses, matrix, _ = one_by_one(model, inputs, labels, batches)
    engine = WorkerGradients(model, workers)
    torch.testing.assert_close(engine(inputs, labels, batches, ()), losses)
    torch.testing.assert_close(engine.matrix, matrix)
    assert engine.kind == kind
    assert reason in engine.reason
    return engine


MIXING: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda h: (h - h.mean(0)) / (h.std(0) + 1e-5),
    "softmax": lambda h: h * torch.softmax(h, 0),
    "size": lambda h: h * (3 / h.shape[0]),
    "largest": lambda h: h / h.detach().abs().max(),
    "sort": lambda h: h + h.sort(0).values,
    "neighbour": lambda h: h + h.roll(1, 0),
    "a little": lambda h: h + 0.001 * h.mean(0),
    "functional batch norm": lambda h: F.batch_norm(h, None, None, training=True),
}


@pytest.mark.parametrize(
    ("name", "workers", "batches"),
    [*((name, 3, 1) for name in MIXING), ("mean", 1, 2)],
)
def test_forward_that_mixes_samples_is_mapped(name: str, workers: int, batches: int) -> None:
    compare(
        body(MIXING[name]),
        MAPPED,
        "the shared pass gives other gradients",
        workers=workers,
        batches=batches,
    )


def test_zeros_at_the_start_hide_nothing() -> None:
    """A gain that starts from 0 hides that what it multiplies is mixed; so do equal samples at the
    first call.
    """

    class Gated(Body):
        def __init__(self) -> None:
            super().__init__(self.mixed)
            self.gain = nn.Linear(12, 12, bias=False)
            nn.init.zeros_(self.gain.weight)

        def mixed(self, h: Tensor) -> Tensor:
            return h + self.gain(h - h.mean(0))

    engine = WorkerGradients(Gated(), 3)
    engine(torch.zeros(3, 4, 1, 8, 8), torch.zeros(3, 4, dtype=torch.int64), 1, ())
    assert engine.kind == MAPPED


def test_plain_functions_stay_in_the_shared_pass() -> None:
    assert compare(body(), SHARED, "").reason == ""
    assert compare(body(lambda h: torch.tanh(h.float()).to(h.dtype)), SHARED, "").reason == ""


def test_hooks_are_called() -> None:
    def doubled(_layer: nn.Module, _inputs: object, output: Tensor) -> Tensor:
        return 2 * output

    def shifted(_layer: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
        return inputs[0] + 1

    after, ahead, masked = body(), body(), body()
    after.first.register_forward_hook(doubled)
    ahead.first.register_forward_pre_hook(shifted)
    for model in (after, ahead):
        compare(model, MAPPED, "first (Linear) has a hook")
    masked.first.weight.register_hook(lambda gradient: 0 * gradient)
    inputs, labels = batch_of(3, 4, (1, 8, 8))
    engine = WorkerGradients(masked.double(), 3)
    engine(inputs, labels, 1, ())
    assert (engine.kind, engine.reason) == (LOOP, "a parameter has a hook")
    assert not engine.matrix[:, : 12 * 64].any()
    assert engine.matrix[:, 12 * 64 :].all()


def test_a_model_that_mixes_samples_in_evaluation_says_so() -> None:
    class OnlyInTraining(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            return h - h.mean(0) if self.training else h

    assert "test accuracy depends" in compare(body(lambda h: h - h.mean(0)), MAPPED, "").reason
    assert "test accuracy" not in compare(body(OnlyInTraining()), MAPPED, "").reason


DRAWING: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda h: F.dropout(h, 0.5),
    "noise": lambda h: h + torch.randn_like(h),
    "numpy": lambda h: h * (1 + np.random.rand()),
    "python": lambda h: h * (1 + random.random()),
}


@pytest.mark.parametrize("name", DRAWING)
def test_random_numbers_in_forward_come_from_the_seeds(name: str) -> None:
    inputs, labels = batch_of(3, 4, (1, 8, 8))
    engine = WorkerGradients(body(DRAWING[name]).double(), 3)
    results = []
    for seeds in ([1, 2, 3], [1, 2, 3], [4, 2, 3]):
        before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
        engine(inputs, labels, 1, seeds)
        assert torch.equal(torch.get_rng_state(), before[0])
        assert (np.random.get_state()[1].tolist(), random.getstate()) == before[1:]
        results.append(engine.matrix.clone())
        random.random()
        torch.rand(())
        np.random.rand()
    assert (engine.kind, engine.random) == (LOOP, True)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0][1:], results[2][1:])
    assert not torch.equal(results[0][0], results[2][0])
    with pytest.raises(ValueError, match="seeds is empty"):
        engine(inputs, labels, 1, ())


class Frozen(nn.Module):
    """A frozen backbone with batch norm, whose statistics are fixed if ``fixed``, and a trained
    head.
    """

    def __init__(self, *, fixed: bool, head: type[nn.Module] = nn.Linear) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        )
        self.middle, self.head, self.fixed = nn.Linear(36, 8), head(8, CLASSES), fixed
        self.body.requires_grad_(False)

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        if self.fixed:
            self.body.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.middle(self.body(x))))


class Untyped(nn.Linear):
    """A linear layer that the shared pass does not know."""


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize(("head", "first"), [(nn.Linear, SHARED), (Untyped, MAPPED)])
def test_frozen_layers_are_no_part_of_the_model_that_is_trained(
    fixed: bool, head: type[nn.Module], first: str
) -> None:
    torch.manual_seed(0)
    model = Frozen(fixed=fixed, head=head)
    model.body[1].running_mean += 0.3
    model = model.double()
    frozen = {
        name: value.clone() for name, value in model.state_dict().items() if name.startswith("body")
    }
    inputs, labels = batch_of(3, 4, (1, 8, 8))
    expected = []
    for own, classes in zip(inputs, labels, strict=True):
        loss = F.cross_entropy(model.train()(own), classes)
        gradient = torch.autograd.grad(loss, [*model.middle.parameters(), *model.head.parameters()])
        expected.append(torch.cat([part.flatten() for part in gradient]))
    model.load_state_dict(frozen, strict=False)
    engine = WorkerGradients(model, 3)
    engine(inputs, labels, 1, ())
    # batch norm changes its buffers, so it cannot be mapped
    mapped_or_loop = first if fixed or first == SHARED else LOOP
    assert engine.kind == mapped_or_loop
    torch.testing.assert_close(engine.matrix, torch.stack(expected))
    if fixed:
        assert torch.equal(engine.statistics, engine.buffers.expand(3, -1))
    engine.parameters -= 1
    assert all(
        torch.equal(model.state_dict()[name], value)
        for name, value in frozen.items()
        if "num_batches" not in name
    )


def test_a_layer_that_is_frozen_in_part() -> None:
    model = body().double()
    model.first.weight.requires_grad_(False)
    inputs, labels = batch_of(3, 4, (1, 8, 8))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    losses = [
        F.cross_entropy(model(own), classes) for own, classes in zip(inputs, labels, strict=True)
    ]
    expected = [
        torch.cat([part.flatten() for part in torch.autograd.grad(loss, trained)])
        for loss in losses
    ]
    engine = WorkerGradients(model, 3)
    engine(inputs, labels, 1, ())
    assert (engine.kind, engine.reason) == (MAPPED, "first (Linear) is frozen in part")
    torch.testing.assert_close(engine.matrix, torch.stack(expected))


def test_a_model_without_trained_parameters() -> None:
    with pytest.raises(ValueError, match="no parameter to train"):
        WorkerGradients(body().requires_grad_(False), 3)


def test_buffers_that_forward_does_not_change_stay() -> None:
    """The server averages the workers' buffers after each round; a table of constants must come out
    unchanged.
    """

    class Shifted(Body):
        def __init__(self) -> None:
            super().__init__(torch.tanh)
            self.register_buffer("shift", torch.linspace(1, 2, 64))

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.flatten(1) + self.shift)

    engine = WorkerGradients(Shifted(), 3)
    engine(torch.rand(3, 4, 1, 8, 8), torch.zeros(3, 4, dtype=torch.int64), 1, ())
    assert engine.kind == MAPPED
    assert torch.equal(engine.statistics, torch.linspace(1, 2, 64).expand(3, -1))


def smoothed(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs, labels, label_smoothing=0.3, reduction="none")


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square()  # [n, classes]: a sample's loss is the mean


def of_all_samples(outputs: Tensor, targets: Tensor) -> Tensor:
    return squares(outputs, targets).mean(1) * outputs.detach().abs().mean()


@pytest.mark.parametrize(
    ("loss", "between", "kind"),
    [
        (smoothed, torch.tanh, SHARED),
        (squares, torch.tanh, SHARED),
        (squares, MIXING["mean"], MAPPED),
        (squares, lambda h: h + h.mean(0) * (2 - float(h.detach()[0, 0] > 9)), LOOP),
        (of_all_samples, torch.tanh, MAPPED),
    ],
)
def test_any_loss_per_sample(
    loss: Callable[[Tensor, Tensor], Tensor], between: Callable[[Tensor], Tensor], kind: str
) -> None:
    model, (inputs, labels) = body(between).double(), batch_of(3, 4, (1, 8, 8))
    targets = labels if loss is smoothed else torch.randn(3, 4, CLASSES, dtype=torch.float64)
    expected = []
    for samples, of_worker in zip(inputs, targets, strict=True):
        model.zero_grad()
        means = [
            loss(model(x), y).mean()
            for x, y in zip(samples.chunk(2), of_worker.chunk(2), strict=True)
        ]
        (sum(means) / 2).backward()  # type: ignore[union-attr]
        gradient = torch.cat(
            [
                parameter.grad.flatten()
                for parameter in model.parameters()
                if parameter.grad is not None
            ]
        )
        expected.append((float(sum(means) / 2), gradient))
    model.zero_grad()
    engine = WorkerGradients(model, np.int64(3), loss=loss)  # type: ignore[arg-type]
    for _ in range(2):  # after the first call, a chain may compute cross-entropy
        torch.testing.assert_close(
            engine(inputs, targets, 2, ()).tolist(), [mean for mean, _ in expected]
        )
        torch.testing.assert_close(
            engine.matrix, torch.stack([gradient for _, gradient in expected])
        )
    assert engine.kind == kind


def test_a_chain_computes_only_the_cross_entropy() -> None:
    linear = nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES))
    inputs, labels = batch_of(3, 4, (1, 8, 8))
    engine = WorkerGradients(linear, 3, loss=smoothed)
    first = engine(inputs.float(), labels, 1, ())
    torch.testing.assert_close(engine(inputs.float(), labels, 1, ()), first)


@pytest.mark.parametrize("loss", [F.mse_loss, lambda outputs, _: outputs.flatten()])
def test_a_loss_that_is_not_per_sample_is_refused(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    inputs, _ = batch_of(3, 4, (1, 8, 8))
    with pytest.raises(
        ValueError,
        match=r"loss returned the shape \[\d*\] for 4 samples; expected a loss per sample",
    ):
        WorkerGradients(body(), 3, loss=loss)(inputs.float(), torch.randn(3, 4, CLASSES), 1, ())
