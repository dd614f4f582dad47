"""Gram matrices and distances: as the differences' own products, however close, large or small the
messages are.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dynabro_cli.core.vectors import gram as module
from dynabro_cli.core.vectors.gram import (
    COLUMNS,
    around,
    central,
    distances,
    gram,
    squared_distances,
    unit,
)
from tests.tables import each_row


def draw(m: int, d: int, spread: float, seed: int = 0) -> Tensor:
    """Messages around a common vector of length sqrt d, at distances of about ``spread`` times
    that.
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(d, generator=generator) + spread * torch.randn(m, d, generator=generator)


def by_difference(messages: Tensor) -> Tensor:
    exact = messages.double()
    return (exact[:, None] - exact[None]).square().sum(2)


@pytest.fixture
def centres(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for every time that a centre was needed."""
    seen: list[int] = []
    plain = module.central
    monkeypatch.setattr(module, "central", lambda products: seen.append(1) or plain(products))
    return seen


LARGE = 2 * COLUMNS + 5
"""Columns of which nine rows are too many to be multiplied in double precision."""


@pytest.mark.parametrize(
    ("spread", "needed", "d"),
    [(0.3, 0, 3000), (0.01, 1, 3000), (3.0, 0, LARGE), (0.3, 0, LARGE), (1e-4, 1, LARGE)],
)
def test_close_messages_are_told_apart(
    spread: float, needed: int, d: int, centres: list[int]
) -> None:
    messages = draw(9, d, spread)
    torch.testing.assert_close(
        squared_distances(gram(messages)), by_difference(messages), rtol=2e-5, atol=0
    )
    assert len(centres) == needed


@each_row("exponent", [-40, 0, 60])
@each_row("d", [5, LARGE])
def test_no_square_overflows_or_underflows(exponent: int, d: int) -> None:
    """2^-60 and 2^60 are the squares, in single precision at the end of its range; beyond that,
    they are of no number.
    """
    messages = draw(9, d, 0.5) * 2.0**exponent
    scaled = squared_distances(gram(messages)) / 4.0**exponent
    torch.testing.assert_close(scaled, by_difference(messages / 2.0**exponent), rtol=2e-5, atol=0)


def test_one_large_message_takes_no_digits_from_the_others() -> None:
    messages = draw(9, LARGE, 0.5)
    messages[4] = 1e25
    others = [0, 1, 2, 3, 5, 6, 7, 8]
    found = squared_distances(gram(messages))[others][:, others]
    torch.testing.assert_close(found, by_difference(messages[others]), rtol=2e-5, atol=0)


@pytest.mark.parametrize("d", [30, LARGE])
def test_without_a_decision_on_the_host_it_is_the_same(
    d: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host decides nothing, as with a GPU."""
    for spread, factor in ((3.0, 1.0), (1e-3, 1.0), (0.5, 1e30), (0.5, 1e-30)):
        messages = draw(9, d, spread) * factor
        with monkeypatch.context() as patch:
            patch.setattr(module, "host_may_look", lambda _: False)
            found = squared_distances(gram(messages))
        torch.testing.assert_close(found, by_difference(messages.double()), rtol=1e-4, atol=0)


@pytest.mark.parametrize("looks", [True, False])
def test_differences_that_are_too_large_for_a_number(
    looks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "host_may_look", lambda _: looks)
    messages = torch.tensor([[3e38], [-3e38], [3e38], [2.9e38]])
    torch.testing.assert_close(
        squared_distances(gram(messages)), by_difference(messages), rtol=1e-5, atol=0
    )


@pytest.mark.parametrize("d", [30, LARGE])
def test_equal_messages_tie_exactly(d: int, centres: list[int]) -> None:
    """Equal messages, like those that Byzantine workers send."""
    messages = draw(9, d, 0.5)
    messages[[2, 5, 8]] = messages[4].clone()
    products = gram(messages)
    assert not centres
    apart = squared_distances(products)
    assert apart[2, [4, 5, 8]].tolist() == [0.0] * 3
    assert torch.equal(apart[2], apart[8])
    torch.testing.assert_close(apart, by_difference(messages), rtol=2e-5, atol=0)


def test_one_close_pair_is_enough(centres: list[int]) -> None:
    """Two that are nearly equal, among others that are far: what tells them apart must not be
    lost.
    """
    messages = draw(9, LARGE, 1.0)
    messages[7] = messages[3] * (1 + 1e-2)
    messages[5] = messages[3]
    found = squared_distances(gram(messages))
    assert centres
    assert float(found[3, 7]) == pytest.approx(float(by_difference(messages)[3, 7]), rel=0.05)


def test_messages_that_are_no_numbers_have_products_of_0() -> None:
    assert not bool(gram(torch.full((3, 4), math.nan)).any())


def test_the_central_message_is_one_of_the_majority() -> None:
    # balls around 0, 1, 2, 50, 90 that hold three of the five: radii 2, 1, 2, 49, 89
    messages = torch.tensor([[0.0], [50.0], [2.0], [1.0], [90.0]])
    assert central(gram(messages)).tolist() == [3]


def test_around_a_weighted_mean() -> None:
    # around (0 + 2)/2 = 1: -1, 2, 1
    products = around(
        gram(torch.tensor([[0.0], [3.0], [2.0]])), torch.tensor([0.5, 0.0, 0.5]).double()
    )
    assert products.tolist() == [[1.0, -2.0, -1.0], [-2.0, 4.0, 2.0], [-1.0, 2.0, 1.0]]


@pytest.mark.parametrize("exponent", [-1000, 0, 1000])
def test_distances_of_double_precision_numbers_of_any_size(exponent: int) -> None:
    messages = draw(5, 4, 0.5).double()
    found = distances(messages * 2.0**exponent)
    torch.testing.assert_close(
        found / 2.0**exponent, by_difference(messages).sqrt(), rtol=1e-10, atol=0
    )
    assert float(unit(messages)) == 1
