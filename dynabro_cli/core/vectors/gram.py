"""Inner products and distances of messages, for several rules.

Rules that weigh messages by their relative positions need only the m x m Gram matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from dynabro_cli.core.lazy import torch
from dynabro_cli.core.machine import native
from dynabro_cli.core.vectors.finite import host_may_look
from dynabro_cli.core.vectors.operators import opaque

if TYPE_CHECKING:
    from torch import Tensor

Equal: TypeAlias = "Callable[[list[int], list[int]], bool]"

KERNEL = Path(__file__).with_name("gram.cpp")

CLOSE = 1e-2
"""Share of the squared lengths: a squared distance of at least this share loses at most 1e-5 of
itself by rounding.
"""

SMALL = 1 << 16
"""Largest number of values of a matrix that is multiplied in double precision on a CPU; this takes
no noticeable time.
"""

COLUMNS = 1 << 13
"""Number of columns whose products are added up in single precision; these sums are added up in
double precision.
"""

RANGE = 200
"""Exponent of a limit: double-precision messages are scaled to a largest entry between 2^-200 and
2^200, because LAPACK's eigenvalues may not converge for products of far larger entries.
"""


def _square(messages: Tensor) -> Tensor:
    """Return an empty tensor with the shape and type of a Gram matrix."""
    return messages.new_empty((len(messages), len(messages)), dtype=torch.float64)


def _by_kernel(messages: Tensor) -> Tensor | None:
    """Compute ``gram`` with a compiled kernel; return None if no kernel serves these messages."""
    if (
        messages.device.type != "cpu"
        or messages.dtype != torch.float32
        or messages.numel() <= SMALL
    ):
        return None
    kernel = native.library_of(KERNEL)
    return None if kernel is None else _looked(messages, kernel).nan_to_num(0, 0, 0)


@opaque("gram(Tensor messages) -> Tensor", _square, _by_kernel)
def gram(messages: Tensor) -> Tensor:
    """Return <g_i - c, g_j - c>/u^2 for all pairs, c some vector and u = ``unit(messages)``: [m, d]
    -> [m, m].

    The result is in double precision, finite, and 0 if the messages are NaN. No square overflows or
    underflows, however large or small the messages are. c is chosen so that differences between
    messages are not lost beside their lengths. It is 0, or a message that is near to more than half
    of all messages, so that one worker cannot move c away.
    """
    if messages.dtype != torch.float32:
        messages = messages.double() / unit(messages)
    return (_looked if host_may_look(messages) else _in_units)(messages).nan_to_num(0, 0, 0)


@opaque("distances(Tensor messages) -> Tensor", _square)
def distances(messages: Tensor) -> Tensor:
    """Return |g_i - g_j| for all pairs: [m, d] -> [m, m], in double precision."""
    return squared_distances(gram(messages)).sqrt() * unit(messages)


def unit(messages: Tensor) -> Tensor:
    """Return the power of two by which ``gram`` divides messages; 1 for messages in single
    precision.
    """
    if messages.dtype == torch.float32:
        return torch.ones((), dtype=torch.float64, device=messages.device)
    exponent = torch.frexp(messages.detach().double().abs().amax().nan_to_num()).exponent.double()
    return torch.exp2(exponent - exponent.clamp(-RANGE, RANGE))


def squared_distances(gram: Tensor) -> Tensor:
    """Return |g_i - g_j|^2 for all pairs, from their Gram matrix around any vector: [m, m] -> [m,
    m], 0 on the diagonal.
    """
    squares = gram.diagonal()
    return (squares[:, None] + squares - 2 * gram).clamp_min(0).fill_diagonal_(0)


def around(gram: Tensor, weights: Tensor) -> Tensor:
    """Return the Gram matrix [m, m] of the same vectors around their weighted mean; the weights [m]
    add up to 1.
    """
    inner = gram @ weights
    return (gram - inner) - (inner - weights @ inner)[:, None]


def central(gram: Tensor) -> Tensor:
    """Return the index, a tensor [1], of the message with the smallest ball around it that holds
    more than half of all.
    """
    return radii(gram).argmin().view(1)


def radii(gram: Tensor) -> Tensor:
    """Return the squared radius of the ball around each message that holds more than half of all:
    [m, m] -> [m].
    """
    return squared_distances(gram).sort(1).values[:, len(gram) // 2]


def _looked(messages: Tensor, kernel: native.Library | None = None) -> Tensor:
    """Return the Gram matrix with only as much work as these messages need."""
    exact = messages.numel() <= SMALL
    products, equal = _multiplied(messages.double() if exact else messages, kernel)
    if not exact and not _in_range(products.diagonal(), messages):
        exact = True
        products, equal = _multiplied(messages.double(), kernel)
    first = _equal_rows(equal, products)
    if first is None:
        messages = (messages.double() if exact else messages) - messages.index_select(
            0, central(products)
        )
        products, equal = _multiplied(messages, kernel)
        first = _equal_rows(equal, products)
    if first is None or first == list(range(len(first))):
        return products
    places = torch.tensor(first)  # so that equal messages tie, whatever the rounding
    return products.index_select(0, places).index_select(1, places)


def _multiplied(vectors: Tensor, kernel: native.Library | None) -> tuple[Tensor, Equal]:
    """Return the products of all pairs [m, m], and a function that returns True where vectors i and
    j are equal.
    """
    if kernel is not None and vectors.dtype == torch.float32:
        products, first = products_by(kernel, vectors)
        return products, lambda i, j: all(first[a] == first[b] for a, b in zip(i, j, strict=True))
    return _products(vectors), lambda i, j: torch.equal(vectors[i], vectors[j])


def products_by(kernel: native.Library, vectors: Tensor) -> tuple[Tensor, list[int]]:
    """Return the products of all pairs [m, m] in double precision, and for each vector the first
    vector that equals it.

    Args:
        kernel: The library of ``KERNEL``.
        vectors: [m, d], single precision, on a CPU.
    """
    vectors = vectors if vectors.stride(1) == 1 else vectors.contiguous()
    m, d = vectors.shape
    scratch = torch.empty(kernel.number("scratch", kernel.threads, m, d), dtype=torch.uint8)
    products, first = torch.empty(m, m, dtype=torch.float64), torch.empty(m, dtype=torch.int32)
    kernel.run("products", scratch, vectors, m, d, vectors.stride(0), products, first)
    return products, first.tolist()


def _in_units(messages: Tensor) -> Tensor:
    """Return the Gram matrix without a decision on the host, always around the central message."""
    centre = messages.index_select(0, central(_row_scaled(messages)))
    return 4 * _row_scaled(messages / 2 - centre / 2)  # halves, because a difference may overflow


def _row_scaled(vectors: Tensor) -> Tensor:
    """Return the products of vectors, which are divided by their largest entries before and
    multiplied by them after.
    """
    largest = vectors.abs().amax(1).nan_to_num()  # [m]
    units = vectors / torch.where(largest > 0, largest, 1)[:, None]
    sizes = largest.double()
    return (units @ units.mT).double().nan_to_num() * sizes[:, None] * sizes


def _products(vectors: Tensor) -> Tensor:
    """Return the products of all pairs, [m, d] -> [m, m]; sums of blocks of columns are added up in
    double precision.
    """
    m, d = vectors.shape
    blocks = d // COLUMNS
    whole, rest = vectors[:, : blocks * COLUMNS], vectors[:, blocks * COLUMNS :]
    products = (rest @ rest.mT).double()
    if blocks:
        parts = whole.view(m, blocks, COLUMNS).transpose(0, 1)
        products = products + torch.bmm(parts, parts.mT).sum(0, dtype=torch.float64)
    return products


def _in_range(squares: Tensor, messages: Tensor) -> bool:
    """Return True if no square has overflowed, and none has underflowed except of messages that are
    0.
    """
    enough = squares >= messages.shape[1] * 1e-30
    if bool(enough.all()):
        return math.isfinite(squares.detach().sum())
    return math.isfinite(squares.detach().sum()) and not bool(messages[~enough].any())


def _equal_rows(equal: Equal, gram: Tensor) -> list[int] | None:
    """Return for each message the first message that equals it; None if two different messages are
    close to each other.
    """
    squares = gram.diagonal()
    close = squared_distances(gram) <= CLOSE * (squares[:, None] + squares)
    first_equal = [row.index(True) if True in row else j for j, row in enumerate(close.tolist())]
    later = [j for j, first in enumerate(first_equal) if first < j]
    return first_equal if not later or equal([first_equal[j] for j in later], later) else None
