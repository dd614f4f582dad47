"""Replacement of messages that are not finite."""

from __future__ import annotations

import math

import pytest
import torch

from dynabro_cli.core.vectors.finite import finite_rows, sound


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_finite_rows(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    rows = [
        [0.0, 1.0],
        [math.nan, 1.0],
        [1.0, math.inf],
        [-math.inf, math.inf],
        [largest, -largest],
        [0.0, -math.nan],
    ]
    assert finite_rows(torch.tensor(rows, dtype=dtype)).tolist() == [
        True,
        False,
        False,
        False,
        True,
        False,
    ]


def test_finite_messages_are_returned_themselves() -> None:
    messages = torch.randn(3, 4)
    clean, finite = sound(messages)
    assert clean is messages
    assert finite is None


def test_finite_messages_whose_sum_is_none_stay_as_they_are() -> None:
    messages = torch.full((3, 4), 3e38)
    clean, _ = sound(messages)
    assert torch.equal(clean, messages)


def test_zeros_stand_for_rows_that_are_not_finite() -> None:
    messages = torch.tensor([[1.0, 2.0], [math.nan, 5.0], [math.inf, -math.inf]])
    clean, finite = sound(messages)
    assert clean.tolist() == [[1.0, 2.0], [0.0, 0.0], [0.0, 0.0]]
    assert finite is not None
    assert finite.tolist() == [True, False, False]


def test_nothing_but_nan_where_no_row_is_finite() -> None:
    clean, finite = sound(torch.tensor([[1.0, math.inf], [math.nan, 5.0]]))
    assert bool(clean.isnan().all())
    assert finite is not None
    assert finite.tolist() == [False, False]
