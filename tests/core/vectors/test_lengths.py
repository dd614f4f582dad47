"""Lengths of vectors whose squares are too large or too small."""

from __future__ import annotations

import pytest
import torch

from dynabro_cli.core.vectors import lengths as module
from dynabro_cli.core.vectors.lengths import clipped, length, lengths


@pytest.mark.parametrize("looks", [True, False])
@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [
        (torch.float32, [1e-38, 1e-30, 0.0, 1.0, 1e20, 3e37]),
        (torch.float64, [1e-200, 1.0, 1e200, 1e307]),
    ],
)
def test_any_size(
    dtype: torch.dtype, sizes: list[float], looks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "host_may_look", lambda _: looks)
    for size in sizes:
        vectors = size * torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=dtype)
        assert lengths(vectors).tolist() == pytest.approx([5 * size, 0], rel=1e-6, abs=0)
        assert length(vectors[0]).dtype == torch.float64


def test_a_small_vector_beside_others() -> None:
    vectors = torch.tensor([[3e-30, 4e-30], [1.0, 0.0]])
    assert lengths(vectors).tolist() == pytest.approx([5e-30, 1.0])


def test_clipped() -> None:
    vectors = torch.tensor([[3e20, 4e20], [0.3, 0.4]])
    torch.testing.assert_close(
        clipped(vectors, lengths(vectors), torch.tensor(1.0)),
        torch.tensor([[0.6, 0.8], [0.3, 0.4]]),
    )
