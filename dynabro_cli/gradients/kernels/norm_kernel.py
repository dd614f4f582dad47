# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Batch norm on a GPU with what comes before it, the bias of a convolution and a ReLU, by two
kernels forward and two backward.

Each kernel reads the activations once, in their own precision, and computes in single precision. A
mini-batch is cut into at most ``MOST`` parts of rows. The parts' moments are merged by Chan, Golub
& LeVeque's formula (1979). Sums are added up in a fixed order, which depends neither on the GPU nor
on the number of mini-batches.
"""

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from dynabro_cli.core.lazy import torch
from dynabro_cli.core.machine import gpu_kernels

if TYPE_CHECKING:
    from torch import Tensor

CHANNELS = 64
"""Most channels of a program, which reads tiles of ``ROWS`` rows."""
ROWS, MOST = tl.constexpr(64), tl.constexpr(32)


@triton.jit
def part(P, C, BLOCK: tl.constexpr):
    """Return a program's mini-batch, its channels, which of them exist, its first row, and the row
    after its last.
    """
    c = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    count = ROWS * tl.cdiv(P, ROWS * MOST)
    first = tl.program_id(1) * count
    return tl.program_id(0), c, c < C, first, tl.minimum(first + count, P)


@triton.jit
def tile(x, before, first, stop, P, C, c, RELU: tl.constexpr):
    """Return the values of some rows after bias and ReLU in single precision, their places in
    memory, and which exist.
    """
    p = first + tl.arange(0, ROWS)
    inside = (p < stop)[:, None] & (c < C)[None, :]
    places = (tl.program_id(0).to(tl.int64) * P + p)[:, None] * C + c[None, :]
    values = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
    if before is not None:
        values += tl.load(before + c, mask=c < C, other=0.0)[None, :]
    if RELU:
        values = tl.maximum(values, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return values, places, inside


@triton.jit
def store_pair(parts, first, second, C, c):
    """Write a part's two results of each channel."""
    place = parts + (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) * 2 * C + c
    tl.store(place, first, mask=c < C)
    tl.store(place + C, second, mask=c < C)


@triton.jit
def load_pairs(parts, P, C, c):
    """Return the two results of all parts, [MOST, BLOCK], and the numbers of their rows, [MOST,
    1].
    """
    i = tl.arange(0, MOST)
    count = ROWS * tl.cdiv(P, ROWS * MOST)
    counts = tl.maximum(tl.minimum(P - i * count, count), 0)[:, None]
    place = parts + (tl.program_id(0) * tl.num_programs(1) + i)[:, None] * 2 * C + c[None, :]
    there = (counts > 0) & (c < C)[None, :]
    return (
        tl.load(place, mask=there, other=0.0),
        tl.load(place + C, mask=there, other=0.0),
        counts.to(tl.float32),
    )


@triton.jit
def moments(x, before, parts, P, C, RELU: tl.constexpr, BLOCK: tl.constexpr):
    """Write the mean and the sum of squared deviations of each part, [G, parts, 2, C]."""
    _group, c, _there, start, stop = part(P, C, BLOCK)
    mean = tl.zeros([BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    count = 0.0
    for first in range(start, stop, ROWS):
        values, _places, inside = tile(x, before, first, stop, P, C, c, RELU)
        more = tl.minimum(stop - first, ROWS).to(tl.float32)
        centre = tl.sum(tl.where(inside, values, 0.0), 0) / more
        apart = tl.where(inside, values - centre[None, :], 0.0)
        step = centre - mean
        share = more / (count + more)
        squares += tl.sum(apart * apart, 0) + step * step * count * share
        mean += step * share
        count += more
    store_pair(parts, mean, squares, C, c)


@triton.jit
def normal(
    x,
    before,
    weight,
    bias,
    parts,
    out,
    statistics,
    eps,
    P,
    C,
    RELU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the output [G, P, C], and each mini-batch's mean, variance and 1/sigma, [G, 3, C]."""
    group, c, there, start, stop = part(P, C, BLOCK)
    means, squares, counts = load_pairs(parts, P, C, c)
    mean = tl.sum(means * counts, 0) / P
    apart = means - mean[None, :]
    variance = tl.sum(squares + apart * apart * counts, 0) / P
    inverse = 1.0 / tl.sqrt(variance + eps)
    if start == 0:
        place = statistics + group * 3 * C + c
        tl.store(place, mean, mask=there)
        tl.store(place + C, variance, mask=there)
        tl.store(place + 2 * C, inverse, mask=there)
    scale = (inverse * tl.load(weight + c, mask=there, other=0.0))[None, :]
    shift = tl.load(bias + c, mask=there, other=0.0)[None, :]
    for first in range(start, stop, ROWS):
        values, places, inside = tile(x, before, first, stop, P, C, c, RELU)
        tl.store(out + places, (values - mean[None, :]) * scale + shift, mask=inside)


@triton.jit
def sums(gy, x, before, statistics, parts, P, C, RELU: tl.constexpr, BLOCK: tl.constexpr):
    """Write each part's sums of gy times the normalised values, and of gy, [G, parts, 2, C]."""
    group, c, there, start, stop = part(P, C, BLOCK)
    mean = tl.load(statistics + group * 3 * C + c, mask=there, other=0.0)[None, :]
    inverse = tl.load(statistics + (group * 3 + 2) * C + c, mask=there, other=0.0)[None, :]
    products = tl.zeros([BLOCK], tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(start, stop, ROWS):
        values, places, inside = tile(x, before, first, stop, P, C, c, RELU)
        given = tl.load(gy + places, mask=inside, other=0.0).to(tl.float32)
        products += tl.sum(given * ((values - mean) * inverse), 0)
        total += tl.sum(given, 0)
    store_pair(parts, products, total, C, c)


@triton.jit
def input_gradient(
    gy,
    x,
    before,
    weight,
    statistics,
    parts,
    gx,
    of_bias,
    P,
    C,
    RELU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the gradient by the input, [G, P, C], and with ``before`` each part's sum of it, [G,
    parts, C].
    """
    group, c, there, start, stop = part(P, C, BLOCK)
    products, totals, _counts = load_pairs(parts, P, C, c)
    product = (tl.sum(products, 0) / P)[None, :]
    centre = (tl.sum(totals, 0) / P)[None, :]
    mean = tl.load(statistics + group * 3 * C + c, mask=there, other=0.0)[None, :]
    inverse = tl.load(statistics + (group * 3 + 2) * C + c, mask=there, other=0.0)[None, :]
    scale = inverse * tl.load(weight + c, mask=there, other=0.0)[None, :]
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(start, stop, ROWS):
        values, places, inside = tile(x, before, first, stop, P, C, c, RELU)
        given = tl.load(gy + places, mask=inside, other=0.0).to(tl.float32)
        gradient = scale * (given - (centre + (values - mean) * inverse * product))
        if RELU:
            gradient = tl.where(values <= 0.0, 0.0, gradient)
        total += tl.sum(tl.where(inside, gradient, 0.0), 0)
        tl.store(gx + places, gradient, mask=inside)
    if before is not None:
        tl.store(
            of_bias + (group * tl.num_programs(1) + tl.program_id(1)) * C + c, total, mask=there
        )


def launch(kernel: object, x: "Tensor", *arguments: object, relu: bool) -> None:
    """Launch a kernel for values [G, P, C], with P and C as its last arguments."""
    groups, places, channels = x.shape
    block = min(CHANNELS, max(16, triton.next_power_of_2(channels)))
    grid = groups, parts_of(places), triton.cdiv(channels, block)
    gpu_kernels.launch(
        kernel, grid, x, *arguments, places, channels, RELU=relu, BLOCK=block, num_warps=8
    )


def parts_of(places: int) -> int:
    """Return the number of parts of a mini-batch."""
    tiles = triton.cdiv(places, ROWS.value)
    return int(triton.cdiv(tiles, triton.cdiv(tiles, MOST.value)))


def normalise(
    x: "Tensor",
    weight: "Tensor | None",
    bias: "Tensor | None",
    eps: float,
    relu: bool,
    before: "Tensor | None" = None,
) -> "tuple[Tensor, Tensor, Tensor, tuple[Tensor | None, ...]]":
    """Normalise every mini-batch, see ``fusible.normalise``, after adding ``before`` [C], the bias
    of a convolution.
    """
    x, (groups, places, channels) = x.contiguous(), x.shape
    parts, statistics = (
        x.new_empty(groups, n, channels, dtype=torch.float32) for n in (2 * parts_of(places), 3)
    )
    vectors = (
        (torch.ones_like(statistics[0, 0]), torch.zeros_like(statistics[0, 0]))
        if weight is None
        else (weight, bias)
    )
    out = torch.empty_like(x)
    launch(moments, x, before, parts, relu=relu)
    launch(normal, x, before, *vectors, parts, out, statistics, eps, relu=relu)
    return out, statistics[:, :1], statistics[:, 1:2], (x, before, statistics)


def normalise_backward(
    gy: "Tensor",
    kept: "tuple[Tensor, Tensor | None, Tensor]",
    weight: "Tensor | None",
    relu: bool,
    workers: int,
    wanted: bool,
) -> "tuple[Tensor | None, ...]":
    """Return the gradients by input, weight and bias, see ``fusible.normalise_backward``, and by
    ``before`` if there is one.
    """
    (x, before, statistics), gy, (groups, places, channels) = kept, gy.contiguous(), gy.shape
    parts = statistics.new_empty(groups, parts_of(places), 2, channels)
    launch(sums, gy, x, before, statistics, parts, relu=relu)
    vectors = parts.view(workers, -1, 2, channels).sum(1).unbind(1)  # [m, C] each
    if not wanted:
        return None, *vectors
    weight = torch.ones_like(statistics[0, 0]) if weight is None else weight
    gx, of_bias = torch.empty_like(x), None if before is None else torch.empty_like(parts[:, :, 0])
    launch(input_gradient, gy, x, before, weight, statistics, parts, gx, of_bias, relu=relu)
    return gx, *vectors, *([] if of_bias is None else [of_bias.view(workers, -1, channels).sum(1)])
