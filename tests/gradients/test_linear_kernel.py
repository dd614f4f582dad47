"""The compiled weight gradients of linear layers against double precision."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dynabro_cli.core.machine import native
from dynabro_cli.gradients import WorkerGradients
from dynabro_cli.gradients.kernels import linear

pytestmark = [
    pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler"),
    pytest.mark.usefixtures("same_threads_after"),
]


def kernel() -> linear.Products:
    found = linear.load()
    assert found is not None
    return found


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(1, 5),
    n=st.integers(1, 40),
    rows=st.integers(1, 140),
    columns=st.integers(1, 150),
    before=st.integers(0, 9),
    threads=st.integers(1, 3),
)
def test_shapes(m: int, n: int, rows: int, columns: int, before: int, threads: int) -> None:
    """Any number of rows and columns; nothing beside the layer's part of the matrix is written."""
    generator = torch.Generator().manual_seed(rows)
    gy, x = (
        torch.randn(m, n, rows, generator=generator),
        torch.randn(m, n, columns, generator=generator),
    )
    matrix = torch.full((m, before + rows * columns + 3), 7.0)
    out = matrix[:, before : before + rows * columns].view(m, rows, columns)
    torch.set_num_threads(threads)
    served = kernel()(gy, x, out)
    assert served or rows < 6 or columns < 32
    if served:
        exact = gy.double().mT @ x.double()
        bound = 1e-6 * (gy.double().abs().mT @ x.double().abs())
        assert bool(((out - exact).abs() <= bound).all())
        torch.set_num_threads(1)
        again = torch.empty(m, rows, columns)
        assert kernel()(gy, x, again)
        assert torch.equal(out, again)
    assert bool((matrix[:, :before] == 7).all())
    assert bool((matrix[:, before + rows * columns :] == 7).all())
    assert served or bool((matrix == 7).all())


def test_what_is_not_finite_comes_through() -> None:
    gy, x = torch.ones(1, 3, 8), torch.ones(1, 3, 64)
    gy[0, 1, 2], x[0, 2, 5] = torch.inf, torch.nan
    out = torch.empty(1, 8, 64)
    assert kernel()(gy, x, out)
    torch.testing.assert_close(out, gy.mT @ x, equal_nan=True)


def test_other_types_are_left_to_torch() -> None:
    gy, x = torch.ones(1, 3, 8, dtype=torch.float64), torch.ones(1, 3, 64, dtype=torch.float64)
    assert not kernel()(gy, x, torch.empty(1, 8, 64, dtype=torch.float64))


def gradients(
    compile_: str, monkeypatch: pytest.MonkeyPatch, samples: float = 1e9
) -> tuple[torch.Tensor, list[int]]:
    """All workers' gradients of a network of three linear layers, and a 1 for each layer that the
    kernel served.
    """
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 3), nn.ReLU(), nn.Linear(3, 10)
    )
    engine = WorkerGradients(model, 4, compile=compile_, samples=samples)
    calls: list[int] = []
    plain = linear.Products.__call__
    with monkeypatch.context() as patch:

        def watched(self: linear.Products, *tensors: torch.Tensor) -> bool:
            calls.append(plain(self, *tensors))
            return bool(calls[-1])

        patch.setattr(linear.Products, "__call__", watched)
        generator = torch.Generator().manual_seed(1)
        engine(torch.randn(4, 6, 1, 8, 8, generator=generator), torch.arange(6).expand(4, 6), 2, [])
    return engine.matrix, calls


def test_the_engine_uses_it_where_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, none = gradients("off", monkeypatch)
    assert none == []
    found, calls = gradients("auto", monkeypatch)
    assert sorted(calls) == [False, False, True]
    torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-7)
    assert gradients("auto", monkeypatch, samples=10)[1] == []
    assert len(gradients("on", monkeypatch, samples=10)[1]) == 3
