"""Per-worker gradients against the slow and obvious way: an ordinary backward pass for every worker, in double precision."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dynabro_cli.models._api import REGISTRY
from dynabro_cli.simulation import gradients
from dynabro_cli.simulation.gradients import WorkerGradients
from dynabro_cli.tasks._api import ImageShape
from tests.simulation.worker_by_worker import CLASSES, batch_of, between, check, generator, one_by_one, registered, seeded

table = settings(deadline=None, derandomize=True, max_examples=25)


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("force_loop", [False, True])
@pytest.mark.parametrize("name", [*REGISTRY.entries(), "mlp:layers=3,hidden=7,dropout=0.3"])
def test_every_registered_model(name: str, batches: int, force_loop: bool) -> None:
    inputs, labels = batch_of(3, 2 * batches, (3, 16, 16))
    kind = "loop over workers" if force_loop else "shared pass"
    check(registered(name), inputs, labels, batches, kind, force_loop=force_loop)


@pytest.mark.parametrize("workers", [1, 2, 7])
@pytest.mark.parametrize("batches", [1, 2])
def test_worker_counts_and_single_samples(workers: int, batches: int) -> None:
    inputs, labels = batch_of(workers, batches, (1, 8, 8))
    check(registered("cnn-digits", ImageShape(1, 8, 8, CLASSES)), inputs, labels, batches, "shared pass")


@pytest.mark.parametrize("workers_at_once", [0, 1, 2, 3])
@pytest.mark.parametrize("batches", [1, 2])
def test_a_pass_over_some_of_the_workers_at_a_time(workers_at_once: int, batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large inputs are taken in several passes: five workers by one, two or three, and by one where one is too large."""
    inputs, labels = batch_of(5, 2 * batches, (3, 16, 16))
    sizes = []
    forward = nn.Sequential.forward
    monkeypatch.setattr(gradients, "PASS_VALUES", workers_at_once * inputs[0].numel() + 5)
    monkeypatch.setattr(nn.Sequential, "forward", lambda self, x: sizes.append(len(x)) or forward(self, x))
    check(registered("cnn-cifar"), inputs, labels, batches, "shared pass")
    of_one = 2 * batches
    expected = {0: [1] * 5, 1: [1] * 5, 2: [2, 2, 1], 3: [3, 2]}[workers_at_once]
    assert sizes[-len(expected) :] == [workers * of_one for workers in expected]


pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@table
@given(
    workers=st.integers(1, 4),
    batch=st.integers(1, 3),
    batches=st.sampled_from([1, 3]),
    groups=st.integers(1, 2),
    channels=st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 2)),
    kernels=st.tuples(pairs, pairs),
    stride=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_convolutions(
    workers: int,
    batch: int,
    batches: int,
    groups: int,
    channels: tuple[int, int, int],
    kernels: tuple[tuple[int, int], tuple[int, int]],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    bias: bool,
    seed: int,
) -> None:
    """Two convolutions, so that the second has to pass a gradient back; the first has one input channel at times."""
    first, middle, last = (groups * count for count in channels)
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "bias": bias}

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(first, middle, kernels[0], padding=2, groups=groups),
            nn.Tanh(),
            nn.Conv2d(middle, last, kernels[1], **options),
            nn.Tanh(),
            nn.Flatten(),
            nn.LazyLinear(CLASSES),
        )

    inputs, labels = batch_of(workers, batch * batches, (first, 7, 6), seed)
    model = seeded(build, seed)
    with torch.no_grad():
        model(inputs[0].float())  # gives the lazy layer its width
    check(model, inputs, labels, batches, "shared pass")


@table
@given(
    workers=st.integers(1, 4),
    batch=st.integers(2, 4),
    batches=st.integers(1, 3),
    affine=st.booleans(),
    tracked=st.booleans(),
    momentum=st.sampled_from([0.1, 0.7, None]),
    seed=st.integers(0, 99),
)
def test_batch_norm(
    workers: int, batch: int, batches: int, affine: bool, tracked: bool, momentum: float | None, seed: int
) -> None:
    """Every mini-batch is normalised by itself, and its mean and unbiased variance are what is reported."""

    def build() -> nn.Module:
        return nn.Sequential(
            nn.BatchNorm2d(2),
            nn.Conv2d(2, 3, 2),
            nn.BatchNorm2d(3, affine=affine, track_running_stats=tracked, momentum=momentum, eps=1e-3),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(12, CLASSES),
        )

    inputs, labels = batch_of(workers, batch * batches, (2, 3, 3), seed)
    for force_loop, kind in ((False, "shared pass"), (True, "loop over workers")):
        check(seeded(build, seed), 2 * inputs + 1, labels, batches, kind, force_loop=force_loop)


def test_mini_batches_are_not_normalised_together() -> None:
    # the same six samples as one mini-batch or as three: batch norm must tell them apart, or the cases above prove nothing
    model = registered("cnn-cifar").double()
    inputs, labels = batch_of(2, 6, (3, 16, 16))
    engine = WorkerGradients(model, 2)
    engine(inputs, labels, 1, generator())
    together, statistics = engine.matrix.clone(), engine.statistics.clone()
    engine(inputs, labels, 3, generator())
    assert float((engine.matrix - together).norm() / together.norm()) > 1e-3  # against a tolerance of 1e-9
    assert float((engine.statistics - statistics).norm() / statistics.norm()) > 1e-3


def test_buffers_are_left_to_the_server() -> None:
    for force_loop in (False, True):
        model = registered("cnn-cifar").double()
        engine = WorkerGradients(model, 2, force_loop=force_loop)
        before = engine.buffers.clone()
        engine(*batch_of(2, 4, (3, 16, 16)), 2, generator())
        assert torch.equal(engine.buffers, before)
        assert [norm.momentum for norm in model.modules() if isinstance(norm, nn.BatchNorm2d)] == [0.1] * 4


class Residual(nn.Module):
    """Sums, products and a reused activation around nested layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 3, 3, padding=1)
        self.block = nn.Sequential(nn.BatchNorm2d(3), nn.Tanh(), nn.Conv2d(3, 3, 3, padding=1, bias=False))
        self.squash = nn.Tanh()
        self.gate = nn.Linear(3, 3, bias=False)
        self.head = nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.squash(self.first(x))
        x = x + self.block(x)
        pooled = x.mean((2, 3))
        return self.head(self.squash(self.gate(pooled)) * pooled + pooled)


class OverPositions(nn.Module):
    """A linear layer over the last of three dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 6)
        self.head = nn.Linear(18, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(x.flatten(2))).flatten(1))


class Frame(nn.Module):
    """One layer between others' functions, so that it is the root's only child."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1))


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (Residual, (2, 4, 5)),
        (OverPositions, (3, 2, 2)),
        (lambda: Frame(nn.Linear(4, CLASSES)), (1, 2, 2)),
    ],
    ids=["residual", "linear over positions", "one child"],
)
@pytest.mark.parametrize("batches", [1, 3])
def test_own_modules(build: object, shape: tuple[int, ...], batches: int) -> None:
    inputs, labels = batch_of(3, 2 * batches, shape)
    check(seeded(build), inputs, labels, batches, "shared pass")


UNSUPPORTED = {
    "layer norm": lambda: between(nn.LayerNorm([4, 4, 4])),
    "group norm": lambda: between(nn.GroupNorm(2, 4), nn.Tanh()),
    "prelu": lambda: between(nn.PReLU(4)),
    "padding same": lambda: between(nn.Conv2d(4, 4, 3, padding="same"), nn.Tanh()),
    "circular padding": lambda: between(nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), nn.Tanh()),
    "batch norm after flatten": lambda: between(nn.Flatten(), nn.BatchNorm1d(64), nn.Tanh()),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
@pytest.mark.parametrize("batches", [1, 3])
def test_unsupported_layers_fall_back_to_the_loop(name: str, batches: int) -> None:
    inputs, labels = batch_of(3, 2 * batches, (2, 4, 4))
    check(seeded(UNSUPPORTED[name]), inputs, labels, batches, "loop over workers")


class Twice(nn.Module):
    """One layer called twice in a pass."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(torch.tanh(self.mix(x.flatten(1))))))


class Alias(Twice):
    """One layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.again = self.mix

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.again(torch.tanh(self.mix(x.flatten(1))))))


class Tied(Alias):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Linear(4, 4)
        self.again.weight = self.mix.weight


class Raw(Twice):
    """A layer's weight used without calling the layer."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(F.linear(x.flatten(1), self.mix.weight, self.mix.bias)))


def unlearned_norm() -> nn.Module:
    """A batch norm without parameters and buffers, which mixes samples all the same."""
    norm = nn.BatchNorm1d(4, affine=False, track_running_stats=False)
    return nn.Sequential(nn.Flatten(), norm, nn.Linear(4, CLASSES))


@pytest.mark.parametrize("build", [Twice, Alias, Tied, Raw, unlearned_norm])
def test_what_the_shared_pass_cannot_keep_apart_is_still_right(build: object) -> None:
    """Whatever way is taken, gradients must be right: a model of the user's own must not be trained on wrong ones."""
    inputs, labels = batch_of(3, 6, (1, 2, 2))
    model = seeded(build).double()
    losses, matrix, _ = one_by_one(model, inputs, labels, 2)
    engine = WorkerGradients(model, 3)
    torch.testing.assert_close(engine(inputs, labels, 2, generator()), losses, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(engine.matrix, matrix, rtol=1e-9, atol=1e-11)


def smooth(model: nn.Module) -> nn.Module:
    """Swap kinks for smooth layers: rounding may flip a ReLU or the winner of a max-pool, and then no bound holds."""
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.ReLU):
            model.set_submodule(name, nn.Tanh())
        elif isinstance(module, nn.MaxPool2d):
            model.set_submodule(name, nn.AvgPool2d(2))
    return model


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("name", REGISTRY.entries())
def test_single_precision(name: str, batches: int) -> None:
    inputs, labels = batch_of(4, 4 * batches, (3, 16, 16))
    model = smooth(registered(name))
    shared, loop = WorkerGradients(copy.deepcopy(model), 4), WorkerGradients(model, 4, force_loop=True)
    assert (shared.kind, loop.kind) == ("shared pass", "loop over workers")
    ours, theirs = (engine(inputs.float(), labels, batches, generator()) for engine in (shared, loop))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    errors = (shared.matrix - loop.matrix).norm(dim=1) / loop.matrix.norm(dim=1)
    assert float(errors.max()) < 1e-5


@pytest.mark.parametrize("force_loop", [False, True])
def test_parameters_and_buffers_of_the_model_are_views(force_loop: bool) -> None:
    model = registered("cnn-cifar")
    before = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    names = [name for name, _ in model.named_buffers() if "num_batches" not in name]
    engine = WorkerGradients(model, 2, force_loop=force_loop)
    assert torch.equal(engine.parameters, before)
    assert len(engine.buffers) == 2 * (64 + 64 + 128 + 128)

    engine.parameters.copy_(torch.arange(len(before), dtype=torch.float32))
    assert torch.equal(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]), engine.parameters)
    engine.buffers.copy_(torch.arange(len(engine.buffers), dtype=torch.float32))
    buffers = dict(model.named_buffers())
    assert torch.equal(torch.cat([buffers[name] for name in names]), engine.buffers)


def test_gradients_follow_the_parameters_as_the_server_moves_them() -> None:
    model = registered("mlp").double()
    inputs, labels = batch_of(2, 3, (3, 16, 16))
    engine = WorkerGradients(model, 2)
    engine.parameters.mul_(0.5).add_(0.01)
    _, matrix, _ = one_by_one(model, inputs, labels, 1)
    engine(inputs, labels, 1, generator())
    torch.testing.assert_close(engine.matrix, matrix, rtol=1e-9, atol=1e-11)
