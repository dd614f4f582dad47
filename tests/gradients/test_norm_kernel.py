"""The compiled batch norm against the one of ``fusible`` in double precision."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dynabro_cli.core.machine import native
from dynabro_cli.gradients import WorkerGradients
from dynabro_cli.gradients.kernels import fusible
from dynabro_cli.gradients.layers import norm
from tests.gradients.norm_results import EPS, limits, results

pytestmark = [
    pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler"),
    pytest.mark.usefixtures("same_threads_after"),
]


def kernel() -> norm.BatchNorm:
    found = norm.load()
    assert found is not None
    return found


@pytest.mark.thorough
@settings(max_examples=80, deadline=None)
@given(
    workers=st.integers(1, 3),
    batches=st.integers(1, 4),
    places=st.one_of(st.integers(1, 40), st.integers(500, 3000)),
    channels=st.sampled_from([1, 3, 4, 7, 8, 16, 20, 33, 64, 100]),
    affine=st.booleans(),
    relu=st.booleans(),
    offset=st.sampled_from([0.0, 3.0, -1000.0]),
    threads=st.integers(1, 3),
)
def test_shapes(
    workers: int,
    batches: int,
    places: int,
    channels: int,
    affine: bool,
    relu: bool,
    offset: float,
    threads: int,
) -> None:
    """Any number of mini-batches, places and channels; as exact as single precision is, and the
    same for all threads.
    """
    generator = torch.Generator().manual_seed(places)
    shape = workers * batches, places, channels
    x, gy = (
        torch.randn(shape, generator=generator) + offset,
        torch.randn(shape, generator=generator),
    )
    vectors = (
        (torch.randn(channels, generator=generator), torch.randn(channels, generator=generator))
        if affine
        else None
    )
    torch.set_num_threads(threads)
    found = results(kernel(), x, gy, vectors, relu, workers)
    doubles = None if vectors is None else (vectors[0].double(), vectors[1].double())
    exact = results(fusible, x.double(), gy.double(), doubles, relu, workers)
    for ours, theirs, limit in zip(found, exact, limits(x, gy, vectors, relu, exact), strict=True):
        assert float((ours - theirs).abs().max()) <= 4e-6 * limit
    torch.set_num_threads(1)
    for ours, again in zip(found, results(kernel(), x, gy, vectors, relu, workers), strict=True):
        assert torch.equal(ours, again)


@pytest.mark.parametrize(
    ("value", "relu"), [(torch.nan, False), (torch.nan, True), (-torch.inf, True)]
)
def test_what_is_not_finite_comes_through(value: float, relu: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, gy = torch.randn(2, 30, 5, generator=generator), torch.randn(2, 30, 5, generator=generator)
    x[0, 3, 1], gy[1, 2, 2] = value, value
    found, expected = (
        results(functions, x, gy, None, relu, 2) for functions in (kernel(), fusible)
    )
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours.isfinite(), theirs.isfinite())


def test_the_input_of_a_network_needs_no_gradient() -> None:
    x = torch.randn(2, 30, 16)
    _, _, _, kept = kernel().normalise(x, None, None, EPS, True)
    assert kernel().normalise_backward(x, kept, None, True, 2, False)[0] is None


def gradients(
    compile_: str, samples: float = 1e9, dtype: torch.dtype | None = None
) -> tuple[WorkerGradients, list[Tensor]]:
    """All workers' losses, gradients and statistics, and logits, with two batch norms, one of them
    after a ReLU.
    """
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(1, 20, 3),
        nn.ReLU(),
        nn.BatchNorm2d(20),
        nn.Conv2d(20, 8, 3),
        nn.BatchNorm2d(8, affine=False),
    )
    model = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(128, 10))
    engine = WorkerGradients(model, 4, compile=compile_, samples=samples, dtype=dtype)
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(4, 6, 1, 8, 8, generator=generator)
    losses = engine(images, torch.arange(6).expand(4, 6), 2, [])
    return engine, [
        losses,
        engine.matrix.clone(),
        engine.statistics.clone(),
        engine.logits(images[0]),
    ]


def test_the_engine_uses_it_where_it_may() -> None:
    def used(engine: WorkerGradients) -> bool:
        return engine._shared.functions.normalise is not fusible.normalise

    engine, plain = gradients("off")
    assert not used(engine)
    engine, found = gradients("auto")
    assert used(engine)
    assert sum(type(layer) is nn.ReLU for layer in engine._twin.modules()) == 1  # type: ignore[union-attr]
    for ours, theirs in zip(found, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert not used(gradients("auto", samples=10)[0])
    assert used(gradients("on", samples=10)[0])
    assert not used(gradients("on", dtype=torch.bfloat16)[0])
