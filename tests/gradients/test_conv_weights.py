"""The compiled weight gradients of convolutions against double precision."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dynabro_cli.core.machine import native
from dynabro_cli.gradients import WorkerGradients
from dynabro_cli.gradients.kernels import conv_weights

pytestmark = [
    pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler"),
    pytest.mark.usefixtures("same_threads_after"),
]


def kernel() -> conv_weights.Gradients:
    found = conv_weights.load()
    assert found is not None
    return found


def exact(gy: Tensor, x: Tensor, size: Sequence[int], padding: tuple[int, int]) -> Tensor:
    """Every worker's weight gradient in double precision, by autograd: gy [m, n, O, H', W'] and x
    [m, n, C, H, W].
    """
    weight = torch.zeros(*size, dtype=torch.float64, requires_grad=True)
    found = [
        torch.autograd.grad(torch.conv2d(inputs, weight, None, 1, padding), weight, outputs)[0]
        for outputs, inputs in zip(gy.double(), x.double(), strict=True)
    ]
    return torch.stack(found)


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(1, 4),
    n=st.integers(1, 20),
    channels=st.sampled_from([1, 13, 16, 30, 32, 40, 48]),
    kernels=st.integers(1, 14),
    size=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    image=st.tuples(st.integers(4, 9), st.one_of(st.integers(4, 9), st.just(70))),
    before=st.integers(0, 9),
    threads=st.integers(1, 3),
)
def test_shapes(
    m: int,
    n: int,
    channels: int,
    kernels: int,
    size: tuple[int, int],
    padding: tuple[int, int],
    image: tuple[int, int],
    before: int,
    threads: int,
) -> None:
    """Any size of image, kernel and padding; nothing beside the layer's part of the matrix is
    written.
    """
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(m, n, channels, *image, generator=generator)
    inner = [
        side + 2 * more - less + 1 for side, more, less in zip(image, padding, size, strict=True)
    ]
    gy = torch.randn(m, n, kernels, *inner, generator=generator)
    count = kernels * channels * size[0] * size[1]
    matrix = torch.full((m, before + count + 3), 7.0)
    out = matrix[:, before : before + count].view(m, kernels, channels, *size)
    torch.set_num_threads(threads)
    served = kernel()(gy.flatten(0, 1), x.flatten(0, 1), padding, out)
    assert served or channels != 32
    if served:
        bound = 1e-6 * exact(gy.abs(), x.abs(), out.shape[1:], padding)
        assert bool(((out - exact(gy, x, out.shape[1:], padding)).abs() <= bound).all())
        torch.set_num_threads(1)
        again = torch.empty_like(out)
        assert kernel()(gy.flatten(0, 1), x.flatten(0, 1), padding, again)
        assert torch.equal(out, again)
    assert bool((matrix[:, :before] == 7).all())
    assert bool((matrix[:, before + count :] == 7).all())
    assert served or bool((matrix == 7).all())


def test_what_is_not_finite_comes_through() -> None:
    gy, x = torch.ones(2, 6, 4, 4), torch.ones(2, 32, 4, 4)
    gy[0, 2, 1, 1], x[1, 5, 2, 2] = torch.inf, torch.nan
    out = torch.empty(2, 6, 32, 1, 1)
    assert kernel()(gy, x, (0, 0), out)
    torch.testing.assert_close(
        out.double(), exact(gy[:, None], x[:, None], out.shape[1:], (0, 0)), equal_nan=True
    )


def test_other_types_and_few_channels_are_left_to_torch() -> None:
    gy, x, out = torch.ones(2, 6, 4, 4), torch.ones(2, 32, 4, 4), torch.empty(2, 6, 32, 1, 1)
    assert not kernel()(gy.double(), x.double(), (0, 0), out.double())
    assert not kernel()(gy, x[:, :1], (0, 0), out[:, :, :1])


def gradients(compile_: str, samples: float = 1e9) -> tuple[WorkerGradients, Tensor]:
    """All workers' gradients of a network whose second convolution has no pooling behind it, and
    whose third has a stride.
    """
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 4, 3, 2),
    )
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 10))
    engine = WorkerGradients(model, 4, compile=compile_, samples=samples)
    generator = torch.Generator().manual_seed(1)
    engine(torch.randn(4, 6, 1, 8, 8, generator=generator), torch.arange(6).expand(4, 6), 2, [])
    return engine, engine.matrix.clone()


def test_the_engine_uses_it_where_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    own = conv_weights.Gradients.__call__

    def watched(self: conv_weights.Gradients, *arguments: Tensor) -> bool:
        calls.append(own(self, *arguments))
        return calls[-1]

    monkeypatch.setattr(conv_weights.Gradients, "__call__", watched)
    _, plain = gradients("off")
    assert calls == []
    _, found = gradients("auto")
    assert sorted(calls) == [False, True]
    torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-6)
    calls.clear()
    gradients("auto", samples=10)
    assert calls == []
