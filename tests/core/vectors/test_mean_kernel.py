"""The kernel of ``weighted``: equal bit for bit to BLAS in double precision, which it replaces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from dynabro_cli.core.vectors import means

ROWS = (2, 7, 8, 9, 17, 25, 100, 257, 500)
COLUMNS = (1, 3, 16, 33, 525, 1023, 1025, 2049)


@pytest.fixture(params=[1, 2], autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    library = means.KERNEL.at_hand()
    if library is None or not means._adds_as_blas(library):
        pytest.skip("no C++ compiler, or a BLAS that rounds differently")
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def cancelling(m: int, d: int) -> Tensor:
    """Return messages whose columns have two numbers near 1e15 that cancel: what remains are
    roundings in double precision, so that every other order of additions shows.
    """
    messages = torch.randn(m, d)
    places = torch.rand(m, d).argsort(0)[:2]
    large = 1e15 * torch.rand(1, d)
    return messages.scatter(0, places, torch.cat([large, -large]))


def special(m: int, d: int) -> Tensor:
    """Return messages with NaN, Inf, the largest and the smallest numbers, and both zeros."""
    values = torch.tensor([torch.nan, torch.inf, -torch.inf, 3.4e38, -3.4e38, 1e-45, -0.0, 0.0])
    return values[torch.randint(8, (m, d))].where(torch.rand(m, d) < 0.1, torch.randn(m, d))


CASES = {
    "cancelling": cancelling,
    "special": special,
    "huge": lambda m, d: torch.full((m, d), 3.4e38),
    "negative zeros": lambda m, d: torch.full((m, d), -0.0),
    "view": lambda m, d: cancelling(m, 2 * d + 1)[:, 1 : 1 + d],
}


def equal_bits(a: Tensor, b: Tensor) -> bool:
    """Return True if both have NaN in the same places, and equal bits in all others."""
    return torch.equal(*(x.where(~x.isnan(), torch.nan).view(torch.int32) for x in (a, b)))


@pytest.mark.parametrize("case", CASES)
def test_equal_to_blas_bit_for_bit(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    kernel = means._by_kernel
    for m in ROWS:
        for d in COLUMNS:
            messages = CASES[case](m, d)
            weighings: tuple[tuple[Tensor, int | None], ...] = (
                (torch.ones(m), None),
                (torch.zeros(m), None),
                (torch.full((m,), 0.7, dtype=torch.float64), m),  # products are rounded, too
                (torch.rand(m, dtype=torch.float64), m),
            )
            with monkeypatch.context() as patch:
                patch.setattr(means, "_by_kernel", lambda *_: None)
                by_blas = means.weighted(messages, torch.ones(m))
            assert equal_bits(means.unweighted(messages), by_blas), (m, d)
            for weights, total in weighings:
                over = weights.double().sum() if total is None else torch.tensor(float(total))
                by_kernel = kernel(messages, weights.double(), over)
                assert by_kernel is not None
                with monkeypatch.context() as patch:
                    patch.setattr(means, "_by_kernel", lambda *_: None)
                    expected = means.weighted(messages, weights, total)
                assert equal_bits(by_kernel, expected), (m, d)


def test_a_transposed_matrix_is_left_to_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    """BLAS adds up its columns in another order."""
    messages = cancelling(17, 33).t().contiguous().t()
    result = means.weighted(messages, torch.ones(17))
    monkeypatch.setattr(means, "_by_kernel", lambda *_: None)
    assert torch.equal(result, means.weighted(messages, torch.ones(17)))


def test_gradients_are_torchs() -> None:
    """A mean that somebody differentiates does not use the kernel."""
    messages = torch.randn(3, 5, requires_grad=True)
    means.weighted(messages, torch.ones(3)).sum().backward()  # type: ignore[no-untyped-call]
    assert messages.grad is not None
    assert torch.allclose(messages.grad, torch.full((3, 5), 1 / 3))
