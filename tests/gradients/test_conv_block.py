"""The compiled convolution block against torch's own layers."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dynabro_cli.core.errors import RunError
from dynabro_cli.core.machine import native
from dynabro_cli.gradients import WorkerGradients
from dynabro_cli.gradients.layers import conv_block
from dynabro_cli.gradients.layers.conv_block import Compiled, ConvBlock, Shape, blocks_of
from dynabro_cli.gradients.layers.twin import twin
from dynabro_cli.gradients.layers.worker_layers import Shared
from tests.gradients.worker_by_worker import CLASSES, generator, registered, seeded
from tests.tables import each_row

needs_compiler = pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler")
MARGIN = 1e-4

SHAPES = {
    "a first layer": Shape(1, 8, 8, 5, (3, 3), (1, 1), False),
    "three channels, odd sizes": Shape(3, 9, 7, 4, (5, 5), (2, 2), False),
    "inner": Shape(6, 6, 8, 11, (3, 3), (1, 1), True),
    "as of MNIST": Shape(20, 12, 12, 20, (5, 5), (0, 0), True),
    "whole vectors": Shape(16, 4, 4, 32, (3, 3), (1, 1), True),
    "many channels": Shape(72, 4, 5, 3, (3, 3), (1, 1), True),
    "oblong": Shape(2, 5, 9, 1, (1, 7), (0, 3), True),
    "one window": Shape(3, 2, 3, 7, (1, 1), (0, 0), True),
}


class Result(NamedTuple):
    y: Tensor
    dw: Tensor
    db: Tensor
    gx: Tensor | None


class Case(NamedTuple):
    """Images x, weights, bias, and the gradient by the output, of m workers."""

    x: Tensor
    weight: Tensor
    bias: Tensor
    gy: Tensor
    workers: int


def case(shape: Shape, workers: int, batch: int, seed: int = 0) -> Case:
    """Normal images and weights; no gradient comes to windows that are decided by less than
    ``MARGIN``.
    """
    source, n = generator(seed), workers * batch
    rows, columns = (size // 2 for size in shape.output)
    x = torch.randn(n, shape.channels, shape.height, shape.width, generator=source)
    weight = torch.randn(
        shape.kernels, shape.channels, *shape.kernel, generator=source
    ) / weight_scale(shape)
    bias = torch.randn(shape.kernels, generator=source) / 4
    gy = torch.randn(n, shape.kernels, rows, columns, generator=source)
    values = F.conv2d(x.double(), weight.double(), bias.double(), padding=shape.padding)[
        :, :, : 2 * rows, : 2 * columns
    ]
    windows = values.unflatten(3, (columns, 2)).unflatten(2, (rows, 2)).transpose(3, 4).flatten(4)
    first, second = windows.topk(2).values.unbind(-1)
    gy[((first - second) < MARGIN) | (first.abs() < MARGIN)] = 0
    return Case(x, weight, bias, gy, workers)


def weight_scale(shape: Shape) -> float:
    return float(shape.channels * shape.kernel[0] * shape.kernel[1]) ** 0.5


def compiled(shape: Shape, given: Case) -> Result:
    kernel = Compiled(shape, shape.compiled().load())
    x = given.x.contiguous(memory_format=torch.channels_last)
    y, at = kernel.forward(x, given.weight, given.bias, places=True)
    assert at is not None
    # of a matrix with more in it
    rows = torch.full((given.workers, given.weight.numel() + 3 + len(given.bias)), torch.nan)
    dw, db = (
        rows[:, : given.weight.numel()].unflatten(1, given.weight.shape),
        rows[:, -len(given.bias) :],
    )
    gx = kernel.backward(
        x, given.weight, at, given.gy.contiguous(memory_format=torch.channels_last), dw, db
    )
    assert rows[:, given.weight.numel() :][:, :3].isnan().all(), (
        "what is between the two was written, too"
    )
    assert torch.equal(
        kernel.forward(x, given.weight, given.bias, places=False)[0].nan_to_num(7), y.nan_to_num(7)
    )
    return Result(y, dw, db, gx)


def layers(shape: Shape, given: Case, dtype: torch.dtype) -> Result:
    """The same by torch's convolution, ReLU and max-pooling, worker by worker."""
    x = given.x.to(dtype).requires_grad_()
    ys, gradients = [], []
    for images, gy in zip(
        x.chunk(given.workers), given.gy.to(dtype).chunk(given.workers), strict=True
    ):
        weight, bias = (
            tensor.to(dtype).clone().requires_grad_() for tensor in (given.weight, given.bias)
        )
        ys.append(F.max_pool2d(F.relu(F.conv2d(images, weight, bias, padding=shape.padding)), 2))
        gradients.append(torch.autograd.grad(ys[-1], (weight, bias, x), gy))
    dw, db, gx = zip(*gradients, strict=True)
    return Result(
        torch.cat(ys).detach(),
        torch.stack(dw),
        torch.stack(db),
        torch.stack(gx).sum(0) if shape.input else None,
    )


def agree(found: Result, exact: Result, tolerance: float = 1e-5) -> None:
    for name, one, other in zip(Result._fields, found, exact, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one.shape == other.shape
            assert float((one - other).norm()) <= tolerance * float(other.norm()), name


@pytest.mark.thorough
@needs_compiler
@pytest.mark.parametrize("name", SHAPES)
@settings(deadline=None, derandomize=True, max_examples=12)
@given(workers=st.integers(1, 4), batch=st.integers(1, 40), seed=st.integers(0, 99))
def test_any_number_of_images(name: str, workers: int, batch: int, seed: int) -> None:
    given_ = case(SHAPES[name], workers, batch, seed)
    agree(compiled(SHAPES[name], given_), layers(SHAPES[name], given_, torch.float64))


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    kernel = draw(st.sampled_from([1, 3, 5, 7])), draw(st.sampled_from([1, 3, 5, 7]))
    padding = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    height, width = (
        draw(st.integers(max(1, size + 1 - 2 * pad), size + 9))
        for size, pad in zip(kernel, padding, strict=True)
    )
    return Shape(
        draw(st.integers(1, 40)),
        height,
        width,
        draw(st.integers(1, 40)),
        kernel,
        padding,
        draw(st.booleans()),
    )


@needs_compiler
@settings(deadline=None, derandomize=True, max_examples=10)
@given(shape=shapes(), workers=st.integers(1, 3), batch=st.integers(1, 5))
def test_any_shape(shape: Shape, workers: int, batch: int) -> None:
    given_ = case(shape, workers, batch)
    agree(compiled(shape, given_), layers(shape, given_, torch.float64))


@needs_compiler
@pytest.mark.parametrize("name", SHAPES)
def test_ties_and_zeros_are_those_of_torch(name: str) -> None:
    """Small whole numbers, whose sums have no rounding: many windows are undecided, and many of the
    largest are 0.
    """
    shape, source = SHAPES[name], generator(3)
    given_ = case(shape, 3, 6)
    x, weight, bias, gy = (
        torch.randint(-1, 2, t.shape, generator=source).float() for t in given_[:4]
    )
    given_ = Case(x, weight, bias, gy, 3)
    values = F.conv2d(x, weight, bias, padding=shape.padding)
    assert float((F.max_pool2d(values, 2) == 0).float().mean()) > 0.01
    agree(compiled(shape, given_), layers(shape, given_, torch.float32), 0)


@needs_compiler
@pytest.mark.parametrize(
    ("name", "value"), [*((name, torch.nan) for name in SHAPES), ("inner", -torch.inf)]
)
def test_what_is_not_finite_passes_through(name: str, value: float) -> None:
    """In single precision torch leaves the padding out, in double it does not: 0 times Inf is NaN,
    as it is here.

    Backwards a place that won no window is left out here: its pixel is not multiplied by 0.
    """
    shape = SHAPES[name]
    given_ = case(shape, 4, 3)
    given_.x[4, 0, 0, 0] = given_.x[7, -1, 0, 1] = value
    for _ in ("images", "images and a weight"):
        found, exact = compiled(shape, given_), layers(shape, given_, torch.float64)
        torch.testing.assert_close(found.y, exact.y.float(), equal_nan=True)
        torch.testing.assert_close(found.db, exact.db.float(), equal_nan=True)
        assert not (~found.dw.isfinite() & exact.dw.isfinite()).any()
        given_.weight[0, 0, 0, 0] = value


@needs_compiler
@pytest.mark.parametrize("name", ["a first layer", "inner"])
def test_numbers_that_overflow(name: str) -> None:
    given_ = case(SHAPES[name], 4, 3)
    given_.weight.abs_().mul_(10)
    given_.x[3:6].abs_().mul_(1e38)
    found, exact = compiled(SHAPES[name], given_), layers(SHAPES[name], given_, torch.float32)
    assert exact.y.isinf().any()
    # ten times the weights, ten times the rounding
    torch.testing.assert_close(found.y, exact.y, rtol=1e-5, atol=1e-4)


@needs_compiler
@pytest.mark.parametrize("name", ["a first layer", "inner"])
def test_a_gradient_that_is_not_finite_is_passed_on(name: str) -> None:
    given_ = case(SHAPES[name], 4, 3)
    given_.gy[3:6] = torch.nan
    found, exact = compiled(SHAPES[name], given_), layers(SHAPES[name], given_, torch.float64)
    for one, other in zip(found.dw.flatten(1), exact.dw.flatten(1), strict=True):
        assert bool(one.isfinite().all()) == bool(other.isfinite().all())
    assert found.db.isfinite().tolist() == exact.db.isfinite().tolist()


@needs_compiler
def test_of_several_nans_in_a_window_it_is_torchs_that_gets_the_gradient() -> None:
    shape = Shape(1, 2, 2, 1, (1, 1), (0, 0), True)
    for nans in ([0, 1], [1, 2], [0, 3], [0, 1, 2, 3]):
        x = torch.arange(1.0, 5.0).view(1, 1, 2, 2)
        x.view(-1)[nans] = torch.nan
        given_ = Case(x, torch.ones(1, 1, 1, 1), torch.zeros(1), torch.ones(1, 1, 1, 1), 1)
        found, exact = compiled(shape, given_), layers(shape, given_, torch.float32)
        assert found.gx is not None
        assert exact.gx is not None
        assert found.gx.tolist() == exact.gx.tolist()


@needs_compiler
@pytest.mark.parametrize("name", ["a first layer", "inner"])
def test_numbers_do_not_depend_on_threads_nor_on_who_shares_a_pass(name: str) -> None:
    given_ = case(SHAPES[name], 5, 33)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = compiled(SHAPES[name], given_)
        torch.set_num_threads(3)
        for one, other in zip(alone, compiled(SHAPES[name], given_), strict=True):
            assert (one is None and other is None) or torch.equal(one, other)
    finally:
        torch.set_num_threads(before)
    last = Case(given_.x[-33:], given_.weight, given_.bias, given_.gy[-33:], 1)
    assert torch.equal(compiled(SHAPES[name], last).dw[0], alone.dw[-1])


def network() -> nn.Module:
    """Two blocks, with all that may be around them."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.BatchNorm2d(6),
        nn.Dropout(0.25),
        nn.Conv2d(6, 8, 3, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(72, CLASSES),
    )


@pytest.mark.thorough
@needs_compiler
@pytest.mark.parametrize(
    ("build", "batches"),
    [
        (network, 1),
        (network, 3),
        (lambda: registered("cnn-mnist"), 3),
        (lambda: registered("cnn-digits"), 3),
    ],
)
def test_an_engine_computes_the_same_with_compiled_blocks(build: object, batches: int) -> None:
    engines = []
    inputs = torch.randn(4, 6, 3, 16, 16, generator=generator(1))
    labels = torch.randint(CLASSES, (4, 6), generator=generator(2))
    for choice in ("off", "on"):
        model = seeded(build)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.25
        engines.append(WorkerGradients(model, 4, compile=choice))
    plain, fast = engines
    seeds = range(4 * batches) if plain.random else ()
    for _ in range(2):
        torch.testing.assert_close(
            fast(inputs, labels, batches, seeds), plain(inputs, labels, batches, seeds)
        )
        assert float((fast.matrix - plain.matrix).norm()) <= 1e-4 * float(plain.matrix.norm())
        torch.testing.assert_close(fast.statistics, plain.statistics)
    assert (plain.blocks, fast.blocks) == ("off", "2 of 2 compiled")
    torch.testing.assert_close(fast.logits(inputs[0]), plain.logits(inputs[0]))
    part = fast(inputs[1:3], labels[1:3], batches, list(seeds)[batches : 3 * batches])
    torch.testing.assert_close(
        part, plain(inputs[1:3], labels[1:3], batches, list(seeds)[batches : 3 * batches])
    )


@needs_compiler
def test_images_of_another_size_or_type_are_computed_as_ever() -> None:
    model = seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
    )
    engine = WorkerGradients(model, 2, compile="on")
    labels = torch.tensor([[0, 1], [1, 0]])
    engine(torch.randn(2, 2, 1, 8, 8), labels, 1, ())
    assert engine.blocks == "1 of 1 compiled"
    images = torch.randn(2, 2, 1, 10, 6)
    other = WorkerGradients(seeded(lambda: model), 2)
    torch.testing.assert_close(engine(images, labels, 1, ()), other(images, labels, 1, ()))


@each_row(
    ("layers", "served"),
    [
        ([nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2)], 1),
        ([nn.Conv2d(2, 3, 4, padding=1), nn.ReLU(), nn.MaxPool2d((2, 2), stride=(2, 2))], 1),
        ([nn.Conv2d(2, 3, 3, stride=2), nn.ReLU(), nn.MaxPool2d(2)], 0),
        ([nn.Conv2d(2, 4, 3, groups=2), nn.ReLU(), nn.MaxPool2d(2)], 0),
        ([nn.Conv2d(2, 3, 3, dilation=2), nn.ReLU(), nn.MaxPool2d(2)], 0),
        ([nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(3)], 0),
        ([nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2, stride=1)], 0),
        ([nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)], 0),
        ([nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2, padding=1)], 0),
        ([nn.Conv2d(2, 3, 3), nn.LeakyReLU(), nn.MaxPool2d(2)], 0),
    ],
)
def test_which_layers_are_a_block(layers: list[nn.Module], served: int) -> None:
    assert len(blocks_of(twin(nn.Sequential(*layers), Shared(2)))) == served


def call(model: nn.Module, side: int = 8, **options: object) -> WorkerGradients:
    engine = WorkerGradients(model, 2, **options)  # type: ignore[arg-type]
    engine(torch.randn(2, 2, 1, side, side), torch.zeros(2, 2, dtype=torch.int64), 1, ())
    return engine


def small() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 2)
    )


def test_what_is_not_compiled_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(small()).blocks == "off"
    assert call(nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), compile="on").blocks == "none"
    assert call(small(), compile="auto", samples=1000).blocks == "off: too little work"
    assert call(small(), compile="on", dtype=torch.bfloat16).blocks == "off: not for these images"
    monkeypatch.setattr(conv_block, "SCRATCH", 64 * 72)
    assert call(small(), compile="on").blocks == "off: not for these images"
    monkeypatch.setattr(conv_block, "SCRATCH", 1 << 20)
    monkeypatch.setenv("CXX", "no-such-compiler")
    native._load.cache_clear()
    why = "CXX=no-such-compiler: there is no such compiler"
    assert call(small(), compile="auto").blocks == f"off: {why}"
    with pytest.raises(RunError, match=rf"compiling failed \({why}\). Try: --compile off"):
        call(small(), compile="on")
    monkeypatch.setattr(native, "team", lambda: None)
    if torch.get_num_threads() > 1:
        assert call(small(), compile="auto").blocks == "off: torch has other threads than OpenMP's"


def test_the_work_of_a_run_decides() -> None:
    values = Shape(1, 8, 8, 2, (3, 3), (0, 0), False).values
    assert values == 2 * 6 * 6
    assert (
        call(small(), compile="auto", samples=conv_block.COMPILE_VALUES / values - 1).blocks
        == "off: too little work"
    )
    if native.compiler() is not None:
        assert (
            call(small(), compile="auto", samples=conv_block.COMPILE_VALUES / values).blocks
            == "1 of 1 compiled"
        )


def test_a_block_without_a_kernel_runs_its_layers() -> None:
    engine = call(small())
    (block,) = blocks_of(engine._twin)  # type: ignore[arg-type]
    assert isinstance(block, ConvBlock)
    assert block.compiled is None
