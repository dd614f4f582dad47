"""Weight gradients of all workers at once, against one convolution after another, in double
precision.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dynabro_cli.gradients.layers import at_once
from dynabro_cli.gradients.layers.at_once import Geometry, looped, unfolded, weight_gradients

pairs = st.tuples(st.integers(1, 2), st.integers(1, 2))
exact = {"rtol": 1e-12, "atol": 1e-12}


def one_by_one(gy: Tensor, x: Tensor, like: tuple[int, ...], m: int, how: Geometry) -> Tensor:
    weight, sizes = x.new_empty(like), (list(how.stride), list(how.padding), list(how.dilation))
    wanted = [False, True, False]
    backward = torch.ops.aten.convolution_backward
    parts = zip(gy.chunk(m), x.chunk(m), strict=True)
    return torch.stack(
        [
            backward(g, p, weight, None, *sizes, False, [0, 0], how.groups, wanted)[1]
            for g, p in parts
        ]
    )


@settings(deadline=None, derandomize=True, max_examples=15)
@given(
    m=st.integers(1, 4),
    n=st.integers(1, 3),
    groups=st.integers(1, 2),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=pairs,
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=pairs,
    last=st.booleans(),
    seed=st.integers(0, 99),
)
def test_all_ways_are_one_convolution_after_another(
    m: int,
    n: int,
    groups: int,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    last: bool,
    seed: int,
) -> None:
    source = torch.Generator().manual_seed(seed)
    how, like = Geometry(stride, padding, dilation, groups), (3 * groups, 2, *kernel)
    x = torch.randn(m * n, 2 * groups, 7, 6, generator=source, dtype=torch.float64)
    x = x.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    y = torch.nn.functional.conv2d(x, x.new_zeros(like), None, stride, padding, dilation, groups)
    gy = torch.randn(y.shape, generator=source, dtype=torch.float64)
    expected = one_by_one(gy, x, like, m, how)
    torch.testing.assert_close(looped(gy, x, like, m, how), expected, **exact)
    if groups == 1 and dilation == (1, 1):
        torch.testing.assert_close(unfolded(gy, x, like, m, how), expected, **exact)
    torch.testing.assert_close(weight_gradients(gy, x, like, m, how), expected, **exact)


@pytest.mark.parametrize("chunk", [1, 4 * 3 * 3 * 5 * 5 * 8, 9 * 3 * 3 * 5 * 5 * 8])
def test_patches_are_written_out_for_some_workers_at_a_time(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    m, n, like, how = 5, 2, (3, 2, 3, 3), Geometry([1, 1], [1, 1], [1, 1], 1)
    x, gy = (
        torch.randn(m * n, c, 5, 5, generator=torch.Generator().manual_seed(c), dtype=torch.float64)
        for c in (2, 3)
    )
    sizes: list[int] = []
    bmm = torch.bmm
    monkeypatch.setattr(
        torch, "bmm", lambda left, right: sizes.append(len(left)) or bmm(left, right)
    )
    monkeypatch.setattr(at_once, "CHUNK_BYTES", chunk)
    torch.testing.assert_close(
        unfolded(gy, x, like, m, how), one_by_one(gy, x, like, m, how), **exact
    )
    assert sizes == {1: [1] * 5, 7200: [1] * 5, 16200: [2, 2, 1]}[chunk]


@pytest.mark.parametrize(
    ("channels", "groups", "dilation", "dtype", "way"),
    [
        (32, 1, 1, torch.float32, "unfolded"),  # patches of 14 MB a worker
        (64, 1, 1, torch.float32, "looped"),
        (32, 2, 1, torch.float32, "looped"),
        (32, 1, 2, torch.float32, "looped"),
        (3, 1, 1, torch.bfloat16, "unfolded"),
        (12, 1, 1, torch.bfloat16, "looped"),  # 2.6 MB
    ],
)
def test_the_way_is_chosen_by_shape_and_precision(
    channels: int,
    groups: int,
    dilation: int,
    dtype: torch.dtype,
    way: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def noted(name: str, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *arguments: asked.append(name) or arguments[0]

    for name, function in (("unfolded", at_once.unfolded), ("looped", at_once.looped)):
        monkeypatch.setattr(at_once, name, noted(name, function))
    how = Geometry([1, 1], [0, 0], [dilation, dilation], groups)
    gy, x = (
        torch.empty(2 * 12, size, 32, 32, dtype=dtype, device="meta") for size in (2, channels)
    )
    weight_gradients(gy, x, (2, channels // groups, 3, 3), 2, how)
    assert asked == [way]
