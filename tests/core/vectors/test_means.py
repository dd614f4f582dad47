"""Means: exact if they are numbers, finite if the messages are."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dynabro_cli.core.vectors.means import (
    UNROLLED,
    mean_of,
    mean_of_rows,
    means_of_groups,
    mixed,
    weighted,
)
from tests.tables import each_row

dtypes = each_row("dtype", [torch.float32, torch.float64])


def draw(m: int, d: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(m, d, generator=torch.Generator().manual_seed(m), dtype=torch.float64).to(
        dtype
    )


def means(messages: Tensor) -> list[Tensor]:
    """The mean of all messages, in every way there is."""
    ones = messages.new_ones(len(messages))
    rows = mixed(messages, ones.expand(2, len(messages)), torch.tensor([0]))
    return [
        weighted(messages, ones / 2),
        mean_of(messages, ones > 0),
        mean_of_rows(list(messages)),
        rows[0],
        rows[1],
    ]


@dtypes
@each_row("m", [1, 3, 7, 49])
def test_of_equal_messages_is_the_message(m: int, dtype: torch.dtype) -> None:
    message = draw(1, 500, dtype)[0]
    for mean in means(message.repeat(m, 1)):
        assert torch.equal(mean, message)


@dtypes
@each_row("m", [1, 3, 7, 49])
def test_that_is_a_number_is_exact(m: int, dtype: torch.dtype) -> None:
    messages = torch.randint(-99, 100, (m, 500), generator=torch.Generator().manual_seed(m)).to(
        dtype
    )
    messages[-1] -= messages.sum(0) % m  # whole means
    for mean in means(messages):
        assert torch.equal(mean, messages.sum(0) / m)


def test_that_is_a_number_is_exact_though_the_difference_is_none() -> None:
    row = torch.tensor([-1.0, 1 + 2**-23])[:, None]
    assert weighted(row, torch.ones(2)).item() == 2**-24


@each_row("s", [1, 2, 3, 9, 20])
def test_of_groups_is_the_mean_of_their_rows_also_in_the_sign_of_zeros(s: int) -> None:
    messages = draw(19, 2100) * 10.0 ** torch.arange(-9, 10)[:, None]
    messages[:, ::3] = torch.tensor([-0.0] * 17 + [0.0, -0.0])[:, None]
    for rows in (messages, messages[:, :1000], messages[::2], messages.mT[:19], messages.double()):
        expected = torch.stack([mean_of_rows(list(part)) for part in rows.split(s)])
        means = means_of_groups(rows, s)
        assert torch.equal(means, expected)
        assert torch.equal(means.signbit(), expected.signbit())


@dtypes
def test_of_the_largest_numbers_is_finite(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    for signs in ([1, 1, 1], [-1, 1, 1], [1, -1, -1], [1, -1, 1, 1, 1, 1, 1, 1]):
        messages = largest * torch.tensor(signs, dtype=dtype)[:, None]
        for mean in means(messages):
            assert mean.item() == pytest.approx(largest * (sum(signs) / len(signs)), rel=1e-6)


@dtypes
def test_weights(dtype: torch.dtype) -> None:
    messages, weights = (
        draw(9, 3000, dtype),
        torch.rand(9, generator=torch.Generator().manual_seed(1)).double(),
    )
    expected = weights @ messages.double() / weights.sum()
    torch.testing.assert_close(weighted(messages, weights), expected.to(dtype))
    torch.testing.assert_close(
        weighted(messages, weights, 20), (expected * weights.sum() / 20).to(dtype)
    )
    table = torch.stack([weights, 1 - weights])
    both = table @ messages.double() / table.sum(1, keepdim=True)
    torch.testing.assert_close(mixed(messages, table, torch.tensor([3])), both.to(dtype))


def test_one_message_of_small_weight_takes_no_digits_from_the_others() -> None:
    messages = torch.tensor([[1e20], [1.0], [2.0]])
    assert weighted(
        messages, torch.tensor([1e-30, 1, 1], dtype=torch.float64)
    ).item() == pytest.approx(1.5)
    weights = torch.tensor([[0.0, 1, 1], [1, 1, 0]])
    assert mixed(messages, weights, torch.tensor([2]))[:, 0].tolist() == pytest.approx([1.5, 5e19])


def test_over_several_blocks_of_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    messages, weights = draw(5, 100), torch.rand(5)
    expected = weighted(messages, weights), mixed(messages, weights[None], torch.tensor([0]))
    monkeypatch.setattr("dynabro_cli.core.vectors.means.ENTRIES", 35)
    assert torch.equal(weighted(messages, weights), expected[0])
    torch.testing.assert_close(mixed(messages, weights[None], torch.tensor([0])), expected[1])


@dtypes
def test_of_nobody_is_0_and_of_no_number_none(dtype: torch.dtype) -> None:
    assert mean_of(draw(3, 2, dtype), torch.zeros(3, dtype=torch.bool)).tolist() == [0.0, 0.0]
    spoiled = torch.full((3, 2), math.nan, dtype=dtype)
    for chosen in (torch.zeros(3, dtype=torch.bool), torch.ones(3, dtype=torch.bool)):
        assert bool(mean_of(spoiled, chosen).isnan().all())


def test_it_is_no_view_of_a_message() -> None:
    messages = draw(1, 4)
    weighted(messages, torch.ones(1)).fill_(7)
    mixed(messages, torch.ones(1, 1), torch.tensor([0])).fill_(7)
    assert torch.equal(messages, draw(1, 4))


@pytest.mark.thorough
@dtypes
@pytest.mark.parametrize("m", [1, 3, UNROLLED, UNROLLED + 1])
def test_traced_for_compiling_it_is_the_same_mean(m: int, dtype: torch.dtype) -> None:
    """Compiled code adds a few rows by name; here it is only traced, because code generators
    differ.
    """
    messages, weights = draw(m, 7, dtype), torch.linspace(1, 0.25, m, dtype=dtype)
    messages[:, 0] = torch.finfo(dtype).max / 2
    traced = torch.compile(weighted, backend="eager", fullgraph=True, dynamic=False)
    torch.testing.assert_close(traced(messages, weights), weighted(messages, weights))
