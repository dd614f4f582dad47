"""Per-worker gradients against the slow and obvious way: an ordinary backward pass for every
worker, in double precision.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from benchmarks.fake_gpu import one_gpu
from dynabro_cli.components.models._api import REGISTRY
from dynabro_cli.components.tasks._api import ImageShape
from dynabro_cli.gradients.engine import LOOP, MAPPED, SHARED, WorkerGradients, parts
from dynabro_cli.gradients.layers.twin import UnsupportedError
from tests.gradients.worker_by_worker import (
    CLASSES,
    FROM,
    batch_of,
    between,
    check,
    generator,
    one_by_one,
    registered,
    seeded,
)
from tests.tables import each_row

LONG = {"resnet18": pytest.mark.slow, "cnn-cifar": pytest.mark.thorough}
"""Networks that take long in double precision; ``components/models/test_resnet18.py`` has the
first, too.
"""
PICTURES = [
    pytest.param(name, marks=LONG.get(name, ())) for name in REGISTRY.entries() if name != "gpt"
]
"""Models of images; the model of characters has its own tests."""
table = settings(deadline=None, derandomize=True, max_examples=25)


@pytest.mark.parametrize(("first", "batches"), [(SHARED, 3), (LOOP, 1)])
@pytest.mark.parametrize(
    "name", [*PICTURES, "mlp:layers=3,hidden=7,dropout=0.3", "cnn-mnist:softmax=true"]
)
def test_every_registered_model(name: str, batches: int, first: str) -> None:
    inputs, labels = batch_of(3, 2 * batches, (3, 16, 16))
    check(registered(name), inputs, labels, batches, first, first=first)


@each_row(
    ("name", "batches"), [("cnn-mnist", 3), ("cnn-digits", 1), ("logistic", 3), ("mlp:layers=3", 3)]
)
def test_models_that_can_be_mapped(name: str, batches: int) -> None:
    inputs, labels = batch_of(3, 2 * batches, (3, 16, 16))
    check(registered(name), inputs, labels, batches, MAPPED, first=MAPPED)


@pytest.mark.parametrize(("workers", "batches"), [(1, 1), (1, 2), (7, 1)])
def test_worker_counts_and_single_samples(workers: int, batches: int) -> None:
    inputs, labels = batch_of(workers, batches, (1, 8, 8))
    check(registered("cnn-digits", ImageShape(1, 8, 8, CLASSES)), inputs, labels, batches, SHARED)


@pytest.mark.thorough
@pytest.mark.parametrize(("workers_at_once", "batches"), [(0, 1), (0, 2), (1, 1), (2, 2), (3, 2)])
def test_a_pass_over_some_of_the_workers_at_a_time(
    workers_at_once: int, batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large inputs are taken in several passes: five workers by one, two or three, and by one where
    one is too large.
    """
    inputs, labels = batch_of(5, 2 * batches, (3, 16, 16))
    sizes = []
    forward = nn.Sequential.forward
    monkeypatch.setattr(
        "dynabro_cli.gradients.engine.PASS_VALUES", workers_at_once * inputs[0].numel() + 5
    )
    monkeypatch.setattr(
        nn.Sequential, "forward", lambda self, x: sizes.append(len(x)) or forward(self, x)
    )
    check(registered("cnn-cifar"), inputs, labels, batches, SHARED)
    of_one = 2 * batches
    expected = {0: [1] * 5, 1: [1] * 5, 2: [2, 2, 1], 3: [3, 2]}[workers_at_once]
    assert sizes[-len(expected) :] == [workers * of_one for workers in expected]


def test_an_argument_of_version_1_is_still_accepted() -> None:
    assert WorkerGradients(nn.Linear(4, 2), 2, gpu_share=0.5).matrix.shape == (2, 10)


@each_row(
    ("device", "count", "most", "sizes"),
    [
        ("cpu", 9, 4, [4, 4, 1]),
        ("cuda", 9, 4, [3, 3, 3]),
        ("cuda", 9, 2, [1, 2, 2, 2, 2]),
        ("cuda", 3, 9, [3]),
        ("cuda", 0, 9, []),
    ],
)
def test_parts_of_a_gpu_have_the_same_size(
    device: str, count: int, most: int, sizes: list[int]
) -> None:
    found = [list(range(count))[part] for part in parts(count, most, torch.device(device))]
    assert [len(part) for part in found] == sizes
    assert list(itertools.chain(*found)) == list(range(count))


pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@pytest.mark.thorough
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
    """Two convolutions, so that the second has to pass a gradient back; the first has one input
    channel at times.
    """
    first, middle, last = (groups * count for count in channels)
    options = {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "bias": bias,
    }

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
    check(model, inputs, labels, batches, SHARED)


@pytest.mark.thorough
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
    workers: int,
    batch: int,
    batches: int,
    affine: bool,
    tracked: bool,
    momentum: float | None,
    seed: int,
) -> None:
    """Every mini-batch is normalised by itself, and its mean and unbiased variance are what is
    reported.
    """

    def build() -> nn.Module:
        return nn.Sequential(
            nn.BatchNorm2d(2),
            nn.Conv2d(2, 3, 2),
            nn.BatchNorm2d(
                3, affine=affine, track_running_stats=tracked, momentum=momentum, eps=1e-3
            ),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(12, CLASSES),
        )

    inputs, labels = batch_of(workers, batch * batches, (2, 3, 3), seed)
    for kind in (SHARED, LOOP):
        check(seeded(build, seed), 2 * inputs + 1, labels, batches, kind, first=kind)


@pytest.mark.thorough
def test_mini_batches_are_not_normalised_together() -> None:
    # the same six samples as one mini-batch or as three: batch norm must tell them apart, or the
    # cases above prove nothing
    model = registered("cnn-cifar").double()
    inputs, labels = batch_of(2, 6, (3, 16, 16))
    engine = WorkerGradients(model, 2)
    engine(inputs, labels, 1, [])
    together, statistics = engine.matrix.clone(), engine.statistics.clone()
    engine(inputs, labels, 3, [])
    # against a tolerance of 1e-9
    assert float((engine.matrix - together).norm() / together.norm()) > 1e-3
    assert float((engine.statistics - statistics).norm() / statistics.norm()) > 1e-3


@pytest.mark.thorough
def test_buffers_are_left_to_the_server() -> None:
    for kind in (SHARED, LOOP):
        model = registered("cnn-cifar").double()
        engine = WorkerGradients(model, 2, kinds=FROM[kind])
        before = engine.buffers.clone()
        engine(*batch_of(2, 4, (3, 16, 16)), 2, range(6))
        assert torch.equal(engine.buffers, before)
        assert [norm.momentum for norm in model.modules() if isinstance(norm, nn.BatchNorm2d)] == [
            0.1
        ] * 4


class Residual(nn.Module):
    """Sums, products and a reused activation around nested layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 3, 3, padding=1)
        self.block = nn.Sequential(
            nn.BatchNorm2d(3), nn.Tanh(), nn.Conv2d(3, 3, 3, padding=1, bias=False)
        )
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


class Branch(nn.Module):
    """A layer that treats a mini-batch in one of two ways, depending on its values."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x) if float(x.detach().sum()) > 0 else 2 * x


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
def test_own_modules(build: object, shape: tuple[int, ...]) -> None:
    inputs, labels = batch_of(3, 6, shape)
    check(seeded(build), inputs, labels, 3, SHARED)


UNSUPPORTED = {
    "root mean square norm": (lambda: between(nn.RMSNorm([4, 4, 4])), MAPPED),
    "prelu": (lambda: between(nn.PReLU(4)), MAPPED),
    "padding same": (lambda: between(nn.Conv2d(4, 4, 3, padding="same"), nn.Tanh()), MAPPED),
    "circular padding": (
        lambda: between(nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), nn.Tanh()),
        MAPPED,
    ),
    "batch norm after flatten": (
        lambda: between(nn.Flatten(), nn.BatchNorm1d(64), nn.Tanh()),
        LOOP,
    ),
    "branch on the data": (lambda: between(nn.PReLU(4), Branch()), LOOP),
}


@each_row("name", UNSUPPORTED)
def test_unsupported_layers_are_mapped_or_looped_over(name: str) -> None:
    inputs, labels = batch_of(3, 6, (2, 4, 4))
    build, kind = UNSUPPORTED[name]
    check(seeded(build), inputs, labels, 3, kind)


def test_mapping_some_of_the_workers_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, labels = batch_of(5, 4, (2, 4, 4))
    monkeypatch.setattr("dynabro_cli.gradients.engine.PASS_VALUES", 2 * inputs[0].numel())
    check(seeded(UNSUPPORTED["prelu"][0]), inputs, labels, 2, MAPPED)


@pytest.mark.parametrize("kind", [SHARED, MAPPED, LOOP])
def test_some_of_the_workers(kind: str) -> None:
    """Fewer workers than there are take the first rows, and are as they are among all."""
    model = registered("cnn-mnist").double()
    inputs, labels = batch_of(5, 2, (3, 16, 16))
    engine = WorkerGradients(model, 5, kinds=FROM[kind])
    losses = engine(inputs, labels, 1, [])
    matrix = engine.matrix.clone()
    chosen = torch.tensor([1, 4])
    torch.testing.assert_close(engine(inputs[chosen], labels[chosen], 1, []), losses[chosen])
    torch.testing.assert_close(engine.matrix[:2], matrix[chosen])


def test_an_error_of_the_model_is_the_users_to_see() -> None:
    engine = WorkerGradients(nn.Sequential(nn.Flatten(), nn.Linear(7, CLASSES)), 2)
    with pytest.raises(RuntimeError, match="shapes"):
        engine(
            *(
                part.float() if part.is_floating_point() else part
                for part in batch_of(2, 2, (1, 2, 2))
            ),
            1,
            [],
        )


@pytest.mark.thorough
@table
@given(
    workers=st.integers(1, 4),
    batch=st.integers(1, 3),
    batches=st.integers(1, 3),
    groups=st.integers(1, 3),
    width=st.integers(1, 2),
    affine=st.booleans(),
    seed=st.integers(0, 99),
)
def test_group_norm(
    workers: int, batch: int, batches: int, groups: int, width: int, affine: bool, seed: int
) -> None:
    """Behind a convolution, and on vectors; the first has nowhere to pass a gradient to."""
    channels = groups * width

    def build() -> nn.Module:
        return nn.Sequential(
            nn.GroupNorm(1, 2),
            nn.Conv2d(2, channels, 2),
            nn.GroupNorm(groups, channels, affine=affine, eps=1e-3),
            nn.Tanh(),
            nn.Flatten(),
            nn.GroupNorm(2, 4 * channels),
            nn.Linear(4 * channels, CLASSES),
        )

    model = seeded(build, seed)
    for module in model.modules():
        # its default of ones and zeros would hide mistakes
        if isinstance(module, nn.GroupNorm) and module.affine:
            module.weight.data = (
                torch.rand(module.num_channels, generator=generator(seed + 1)) + 0.5
            )
            module.bias.data = torch.randn(module.num_channels, generator=generator(seed + 2))
    inputs, labels = batch_of(workers, batch * batches, (2, 3, 3), seed)
    check(model, 2 * inputs + 1, labels, batches, SHARED)


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


@each_row("build", [Twice, Alias, Tied, Raw, unlearned_norm])
def test_what_the_shared_pass_cannot_keep_apart_is_still_right(build: object) -> None:
    """Whatever way is taken, gradients must be right: a model of the user's own must not be trained
    on wrong ones.
    """
    inputs, labels = batch_of(3, 6, (1, 2, 2))
    model = seeded(build).double()
    losses, matrix, _ = one_by_one(model, inputs, labels, 2)
    engine = WorkerGradients(model, 3)
    torch.testing.assert_close(engine(inputs, labels, 2, range(6)), losses, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(engine.matrix, matrix, rtol=1e-9, atol=1e-11)


def smooth(model: nn.Module) -> nn.Module:
    """Swap kinks for smooth layers: rounding may flip a ReLU or the winner of a max-pool, and then
    no bound holds.
    """
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.ReLU):
            model.set_submodule(name, nn.Tanh())
        elif isinstance(module, nn.MaxPool2d):
            model.set_submodule(name, nn.AvgPool2d(2))
    return model


@pytest.mark.parametrize("batches", [1, pytest.param(3, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", PICTURES)
def test_single_precision(name: str, batches: int) -> None:
    workers = 2 if name in LONG else 4
    inputs, labels = batch_of(workers, 4 * batches, (3, 16, 16))
    model = smooth(registered(name))
    shared, loop = (
        WorkerGradients(copy.deepcopy(model), workers),
        WorkerGradients(model, workers, kinds=(LOOP,)),
    )
    assert (shared.kind, loop.kind) == (SHARED, LOOP)
    ours, theirs = (
        engine(inputs.float(), labels, batches, range(workers * batches))
        for engine in (shared, loop)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    errors = (shared.matrix - loop.matrix).norm(dim=1) / loop.matrix.norm(dim=1)
    assert float(errors.max()) < 1e-5


@pytest.mark.parametrize("kind", [SHARED, LOOP])
def test_parameters_and_buffers_of_the_model_are_views(kind: str) -> None:
    model = registered("cnn-cifar")
    before = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    names = [name for name, _ in model.named_buffers() if "num_batches" not in name]
    engine = WorkerGradients(model, 2, kinds=FROM[kind])
    assert torch.equal(engine.parameters, before)
    assert len(engine.buffers) == 2 * (64 + 64 + 128 + 128)

    engine.parameters.copy_(torch.arange(len(before), dtype=torch.float32))
    assert torch.equal(
        torch.cat([parameter.detach().flatten() for parameter in model.parameters()]),
        engine.parameters,
    )
    engine.buffers.copy_(torch.arange(len(engine.buffers), dtype=torch.float32))
    buffers = dict(model.named_buffers())
    assert torch.equal(torch.cat([buffers[name] for name in names]), engine.buffers)


def test_gradients_follow_the_parameters_as_the_server_moves_them() -> None:
    model = registered("mlp").double()
    inputs, labels = batch_of(2, 3, (3, 16, 16))
    engine = WorkerGradients(model, 2)
    engine.parameters.mul_(0.5).add_(0.01)
    _, matrix, _ = one_by_one(model, inputs, labels, 1)
    engine(inputs, labels, 1, [])
    torch.testing.assert_close(engine.matrix, matrix, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("build", [*PICTURES, "untracked"])
def test_evaluation_is_that_of_the_model(build: str) -> None:
    """Between two steps of training, without dropout, and with the server's running statistics."""
    model = (
        between(nn.BatchNorm2d(4, track_running_stats=False), nn.Dropout(0.5))
        if build == "untracked"
        else registered(build)
    )
    inputs, labels = batch_of(2, 4, (2, 4, 4) if build == "untracked" else (3, 16, 16))
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
    engine = WorkerGradients(model.double(), 2)
    engine(inputs, labels, 2, range(4))
    engine.buffers.copy_(torch.rand(engine.buffers.shape, generator=generator(1)) + 0.5)
    with torch.no_grad():
        expected = copy.deepcopy(model).eval()(inputs[0])
        torch.testing.assert_close(engine.logits(inputs[0]), expected, rtol=1e-9, atol=1e-11)
        assert engine.kind == SHARED
    before = engine.matrix.clone()
    engine(inputs, labels, 2, range(4))
    torch.testing.assert_close(engine.matrix, before)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        pytest.param(name, first, marks=pytest.mark.slow if name in LONG else ())
        for name in [*(picture.values[0] for picture in PICTURES), "group norm"]
        for first in (SHARED, LOOP)
    ],
)
@pytest.mark.thorough
def test_half_precision(name: str, first: str) -> None:
    """bf16 has 8 bits of mantissa: gradients near those in single precision, and not equal to
    them.
    """

    def grouped() -> nn.Module:
        layers = (
            nn.Conv2d(3, 4, 3),
            nn.GroupNorm(2, 4),
            nn.Tanh(),
            nn.AvgPool2d(7),
            nn.Flatten(),
            nn.Linear(16, CLASSES),
        )
        return nn.Sequential(*layers)

    model = seeded(grouped) if name == "group norm" else smooth(registered(name))
    inputs, labels = batch_of(2, 16, (3, 16, 16))
    single = WorkerGradients(copy.deepcopy(model), 2, kinds=FROM[first])
    half = WorkerGradients(model, 2, kinds=FROM[first], dtype=torch.bfloat16)
    for engine in (single, half):
        losses = engine(inputs.float(), labels, 2, range(4))
        assert losses.dtype == engine.matrix.dtype == torch.float32
        assert engine.kind == first
    errors = (single.matrix - half.matrix).norm(dim=1) / single.matrix.norm(dim=1)
    assert 1e-4 < float(errors.max()) < 0.1
    torch.testing.assert_close(half.statistics, single.statistics, rtol=0.05, atol=0.02)


@each_row(
    ("error", "device", "goes_on"),
    [
        (UnsupportedError("a parameter is used outside its layer"), "cuda", True),
        (NotImplementedError("not implemented for 'BFloat16'"), "cuda", True),
        (RuntimeError("vmap: It looks like you're calling .item() on a Tensor"), "cuda", True),
        (
            RuntimeError("FIND was unable to find an engine to execute this computation"),
            "cuda",
            False,
        ),
        (RuntimeError("an error that does not name the GPU"), "cuda", False),
        (RuntimeError("an error that does not name the GPU"), "cpu", True),
        (ValueError("the model's own"), "cpu", False),
    ],
)
def test_on_a_gpu_only_what_is_not_supported_is_computed_in_another_way(
    error: Exception, device: str, goes_on: bool
) -> None:
    def fails(*_: object) -> torch.Tensor:
        raise error

    with one_gpu() as gpu, gpu.allowed():
        engine = WorkerGradients(
            registered("mlp").to(device), 2, kinds=(SHARED, MAPPED), compare=False
        )
        engine._shared_passes, engine._mapped = fails, lambda *_: torch.ones(2)  # type: ignore[method-assign]
        inputs, labels = (part.to(device) for part in batch_of(2, 2, (3, 16, 16)))
        with contextlib.nullcontext() if goes_on else pytest.raises(type(error), match=str(error)):
            engine(inputs.float(), labels, 1, ())
    assert engine.kind == (MAPPED if goes_on else SHARED)


def nodes_of_autograd() -> list[Tensor]:
    return [
        thing
        for thing in gc.get_objects()
        if issubclass(type(thing), Tensor) and thing.grad_fn is not None
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mlp", "cnn-cifar"])
def test_a_pass_leaves_no_node_of_autograd_behind(name: str) -> None:
    """A node that waits for garbage collection keeps its stream, and then no other stream can be
    captured as a CUDA graph.
    """
    engine = WorkerGradients(registered(name), 3)
    inputs, labels = batch_of(3, 2, (3, 16, 16))
    gc.collect()
    gc.disable()
    try:
        before = nodes_of_autograd()
        engine(inputs.float(), labels, 1, range(3) if engine.random else ())
        left = nodes_of_autograd()
    finally:
        gc.enable()
    assert engine.kept > 0
    # Other tests may have left nodes as well; those were there before.
    assert [thing for thing in left if not any(thing is other for other in before)] == []
