"""The compiled products of all pairs, against double precision and against torch's own way."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dynabro_cli.core.machine import native
from dynabro_cli.core.vectors import gram as module
from dynabro_cli.core.vectors.gram import KERNEL, SMALL, squared_distances

pytestmark = [
    pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler"),
    pytest.mark.usefixtures("same_threads_after"),
]


def kernel() -> Callable[[Tensor], tuple[Tensor, list[int]]]:
    found = native.library_of(KERNEL)
    assert found is not None
    return functools.partial(module.products_by, found)


def draw(m: int, d: int, seed: int, copies: list[tuple[int, int]] = []) -> Tensor:  # noqa: B006
    """Vectors with a common part; of each pair of ``copies`` the second is the first."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(d, generator=generator) + torch.randn(m, d, generator=generator)
    for from_, to in copies:
        vectors[to % m] = vectors[from_ % m]
    return vectors


def first_equal(vectors: Tensor) -> list[int]:
    return [
        next((i for i in range(j) if torch.equal(vectors[i], vectors[j])), j)
        for j in range(len(vectors))
    ]


pairs = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6)


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(1, 21),
    d=st.integers(1, 3000),
    seed=st.integers(0, 99),
    copies=pairs,
    threads=st.integers(1, 3),
)
def test_products_and_equal_vectors(
    m: int, d: int, seed: int, copies: list[tuple[int, int]], threads: int
) -> None:
    vectors = draw(m, d, seed, copies)
    torch.set_num_threads(threads)
    found, first = kernel()(vectors)
    exact = vectors.double() @ vectors.double().T
    lengths = exact.diagonal().sqrt()
    assert bool(((found - exact).abs() <= 1e-6 * lengths[:, None] * lengths).all())
    assert torch.equal(found, found.T)
    assert first == first_equal(vectors)
    torch.set_num_threads(1)
    assert torch.equal(kernel()(vectors)[0], found)


def test_many_columns_and_any_number_of_threads() -> None:
    """Enough columns for several blocks in every chunk; the last block is not full."""
    vectors = draw(5, 64 * 1024 + 3, 0, [(1, 3)])
    seen = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        seen.append(kernel()(vectors))
    assert all(torch.equal(seen[0][0], other) and first == [0, 1, 2, 1, 4] for other, first in seen)


def test_vectors_that_part_late_are_told_apart() -> None:
    """In the last number; where two are equal to a third in one chunk, and to each other in all;
    and rows of a wider matrix.
    """
    wide = torch.zeros(6, 70_000)
    vectors = wide[:, 5:-7]
    vectors[1, -1] = 1
    vectors[2, 0] = vectors[3, 0] = 1
    vectors[4, 40_000] = 1
    vectors[5, 0], vectors[5, -1] = -0.0, -0.0  # equal to 0
    assert kernel()(vectors)[1] == [0, 1, 2, 2, 4, 0]


def test_vectors_that_are_equal_in_parts_are_not_equal() -> None:
    """The last equals the first up to a column, and the second from there on: two blocks of the
    same chunk.
    """
    vectors = torch.zeros(3, 64 * 1024)
    vectors[1, 0] = 1
    vectors[1:, 600] = 2
    assert kernel()(vectors)[1] == [0, 1, 2]


def test_a_nan_equals_nothing() -> None:
    vectors = torch.ones(3, 700)
    vectors[:2, 650] = math.nan
    found, first = kernel()(vectors)
    assert first == [0, 1, 2]
    assert found.isnan().tolist() == [[True, True, True], [True, True, True], [True, True, False]]


@pytest.mark.parametrize(
    ("exponent", "spread"), [(-60, 1.0), (0, 1.0), (60, 1.0), (-60, 1e-3), (60, 1e-3)]
)
def test_in_a_compiled_function_it_is_the_same_matrix(exponent: int, spread: float) -> None:
    """However close, large or small the messages are, and with equal ones among them."""
    generator = torch.Generator().manual_seed(1)
    d = SMALL // 5
    messages = (
        torch.randn(d, generator=generator) + spread * torch.randn(9, d, generator=generator)
    ) * 2.0**exponent
    messages[[2, 5, 8]] = messages[4].clone()
    found = module._by_kernel(messages)
    assert found is not None
    apart = squared_distances(found)
    assert apart[2, [4, 5, 8]].tolist() == [0.0] * 3
    assert torch.equal(apart[2], apart[8])
    torch.testing.assert_close(apart, squared_distances(module.gram(messages)), rtol=2e-5, atol=0)


@pytest.mark.thorough
def test_the_kernel_serves_compiled_functions_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without compiling keeps its numbers bit for bit."""
    asked: list[int] = []
    monkeypatch.setattr(native, "library_of", lambda _: asked.append(1))
    messages = torch.randn(9, SMALL // 5)
    plain = module.gram(messages)
    assert not asked
    compiled = torch.compile(lambda x: module.gram(x) + 0, fullgraph=True, backend="eager")
    assert torch.equal(compiled(messages), plain)  # as there is no kernel
    assert asked


def test_messages_that_are_no_numbers_have_products_of_0() -> None:
    found = module._by_kernel(torch.full((9, SMALL // 5), math.nan))
    assert found is not None
    assert not bool(found.any())
