"""Pairwise distances: as the differences' own squares, however close the messages are."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dynabro_cli.aggregators import _distances
from dynabro_cli.aggregators._distances import squared_distances


def draw(m: int, d: int, spread: float, seed: int = 0) -> Tensor:
    """Messages around a common vector of length sqrt d, at distances of about ``spread`` times that."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(d, generator=generator) + spread * torch.randn(m, d, generator=generator)


def by_difference(messages: Tensor) -> Tensor:
    exact = messages.double()
    return (exact[:, None] - exact[None]).square().sum(2)


@pytest.fixture
def medians(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for every time that the median was needed."""
    seen: list[int] = []
    around = _distances.around_median
    monkeypatch.setattr(_distances, "around_median", lambda messages: seen.append(1) or around(messages))
    return seen


@pytest.mark.parametrize(("spread", "needed"), [(3.0, 0), (0.3, 0), (0.01, 1), (1e-4, 1)])
def test_close_messages_are_told_apart(spread: float, needed: int, medians: list[int]) -> None:
    messages = draw(9, 3000, spread)
    torch.testing.assert_close(squared_distances(messages), by_difference(messages), rtol=2e-4, atol=0)
    assert len(medians) == needed


def test_equal_messages_need_no_median(medians: list[int]) -> None:
    """As those of Byzantine workers who all send the same."""
    messages = draw(9, 3000, 0.5)
    messages[[2, 5, 8]] = messages[4].clone()
    distances = squared_distances(messages)
    assert not medians
    torch.testing.assert_close(distances, by_difference(messages), rtol=2e-4, atol=1e-2)  # of some 1500


def test_one_close_pair_is_enough(medians: list[int]) -> None:
    """Two that are nearly equal, among others that are far: what tells them apart must not be lost."""
    messages = draw(9, 3000, 1.0)
    messages[7] = messages[3] * (1 + 1e-2)
    messages[5] = messages[3]
    distances = squared_distances(messages)
    assert medians
    assert float(distances[3, 7]) == pytest.approx(float(by_difference(messages)[3, 7]), rel=0.05)


@pytest.mark.parametrize("value", [1e30, math.inf, math.nan])
def test_what_has_no_square_is_infinitely_far(value: float) -> None:
    messages = draw(5, 100, 1.0)
    messages[2] = value
    distances = squared_distances(messages)
    others = [0, 1, 3, 4]
    assert distances[2, others].tolist() == [math.inf] * 4
    assert distances.diagonal().tolist() == [0.0] * 5
    assert bool(distances[others][:, others].isfinite().all())
