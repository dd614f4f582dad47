"""The sorting networks equal a sort, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from dynabro_cli.components.aggregators import _order
from dynabro_cli.components.aggregators._order import COLUMNS, comparators, middle_mean
from dynabro_cli.core.machine import native
from tests.tables import each_row


@pytest.fixture(autouse=True)
def by_torch() -> Iterator[None]:
    """Disable the kernel, which has its own test."""
    native.set_first_use("leave")
    yield
    native.set_first_use("compile")


def network(messages: Tensor, first: int, stop: int) -> Tensor:
    """Outputs [first, stop) of the network on the rows of ``messages``."""
    rows = list(messages)
    for i, j in comparators(len(rows), first, stop):
        rows[i], rows[j] = torch.minimum(rows[i], rows[j]), torch.maximum(rows[i], rows[j])
    return torch.stack(rows[first:stop])


def trims(m: int) -> range:
    return range((m + 1) // 2)


@each_row("m", [14, 15, 16, 17, 25, 32, 40])  # smaller ones are proved below
def test_network_equals_sort_for_every_trim(m: int) -> None:
    generator = torch.Generator().manual_seed(m)
    distinct = torch.randn(m, 16, generator=generator)
    ties = torch.randint(-2, 3, (m, 16), generator=generator).float()
    messages = torch.cat([distinct, ties, distinct.double().sort(0).values.flip(0).float()], 1)
    expected = messages.sort(0).values
    for trim in trims(m):
        assert torch.equal(network(messages, trim, m - trim), expected[trim : m - trim])


@each_row("m", [*range(1, 10), 13])
def test_network_sorts_every_column_of_zeros_and_ones(m: int) -> None:
    # by the zero-one principle (Knuth, volume 3, 5.3.4) this proves the network for all inputs
    columns = torch.arange(2**m)
    messages = (columns[None, :] >> torch.arange(m)[:, None] & 1).to(torch.uint8)
    expected = messages.sort(0).values
    for trim in trims(m):
        assert torch.equal(network(messages, trim, m - trim), expected[trim : m - trim])


def test_unneeded_comparators_are_dropped() -> None:
    # Batcher's network for 4 has 5 comparators; the smallest of 4 needs 3
    assert len(comparators(4, 0, 4)) == 5
    assert comparators(4, 0, 1) == ((0, 1), (2, 3), (0, 2))
    assert comparators(1, 0, 1) == ()


def middle_mean_by_sort(messages: Tensor, trim: int) -> Tensor:
    return messages.sort(0).values[trim : len(messages) - trim].mean(0)


@pytest.mark.parametrize(("m", "columns"), [*((m, 7) for m in (1, 2, 5, 8, 17)), (5, 1)])
def test_middle_mean_over_several_blocks(
    m: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # whole numbers add up exactly in any order, so the means must agree to the last bit; they are
    # full of ties, too
    monkeypatch.setattr(_order, "COLUMNS", columns)
    messages = torch.randint(-9, 10, (m, 17), generator=torch.Generator().manual_seed(m)).float()
    for trim in trims(m):
        assert torch.equal(middle_mean(messages, trim), middle_mean_by_sort(messages, trim))


def test_middle_mean_of_more_columns_than_a_block() -> None:
    messages = torch.randint(
        -9, 10, (5, 2 * COLUMNS + 3), generator=torch.Generator().manual_seed(0)
    ).float()
    assert torch.equal(middle_mean(messages, 1), middle_mean_by_sort(messages, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_middle_mean_of_real_numbers(dtype: torch.dtype) -> None:
    messages = torch.randn(17, 100, generator=torch.Generator().manual_seed(0), dtype=dtype)
    for trim in trims(17):
        mean = middle_mean(messages, trim)
        assert mean.dtype == dtype
        torch.testing.assert_close(mean, middle_mean_by_sort(messages, trim))
    assert torch.equal(middle_mean(messages, 8), messages.median(0).values)


def test_middle_mean_of_a_strided_matrix() -> None:
    messages = torch.randint(-9, 10, (40, 9), generator=torch.Generator().manual_seed(0)).float().T
    assert torch.equal(middle_mean(messages, 2), middle_mean_by_sort(messages, 2))
