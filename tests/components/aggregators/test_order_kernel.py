"""The kernel of order statistics equals torch's operations, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dynabro_cli.components.aggregators import _order
from dynabro_cli.components.aggregators._order import middle_mean, nearest_mean
from dynabro_cli.core.machine import native

pytestmark = [
    pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler"),
    pytest.mark.usefixtures("same_threads_after", "compiled_again_after"),
]


@pytest.fixture
def compiled_again_after() -> Iterator[None]:
    yield
    native.set_first_use("compile")


def both(rule: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """Return the results of the kernel and of torch."""
    found = []
    for choice in ("compile", "leave"):
        native.set_first_use(choice)  # type: ignore[arg-type]
        assert (_order.KERNEL.at_hand() is None) == (choice == "leave")
        found.append(rule())
    return found[0], found[1]


def messages_of(m: int, d: int, dtype: torch.dtype, kind: str) -> Tensor:
    """Real numbers; whole ones, with ties; with NaN and Inf; or a matrix whose columns are
    contiguous.
    """
    messages = torch.randn(m, d, generator=torch.Generator().manual_seed(m * d), dtype=dtype) * 3
    if kind == "ties":
        messages = messages.round()
    if kind == "not finite":
        messages[m // 2, d // 2], messages[-1, 0], messages[0, d // 3] = (
            torch.nan,
            torch.inf,
            -torch.inf,
        )
    return messages.T.contiguous().T if kind == "strided" else messages


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(
    m=st.integers(1, 40),
    d=st.one_of(st.integers(1, 200), st.sampled_from([4095, 4096, 4097, 9000])),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    kind=st.sampled_from(["real", "ties", "not finite", "strided"]),
    shares=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    threads=st.integers(1, 3),
)
def test_equals_torch(
    m: int, d: int, dtype: torch.dtype, kind: str, shares: tuple[float, float], threads: int
) -> None:
    torch.set_num_threads(threads)
    trim, left_out = int(shares[0] * ((m - 1) // 2)), int(shares[1] * (m - 1))
    messages = messages_of(m, d, dtype, kind)
    before = messages.clone()
    for found, expected in (
        both(lambda: middle_mean(messages, trim)),
        both(lambda: nearest_mean(messages, trim, left_out)),
    ):
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(messages, before, rtol=0, atol=0, equal_nan=True)


def test_other_messages_are_left_to_torch() -> None:
    assert middle_mean(torch.ones(3, 2, dtype=torch.float16), 1).dtype == torch.float16


def test_autograd_reaches_the_messages() -> None:
    messages = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    middle_mean(messages, 2).sum().backward()
    assert messages.grad is not None
    assert messages.grad.sum() == 4
