"""Messages with a NaN or an Inf, whose workers every rule treats as Byzantine."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dynabro_cli.core.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

EXPONENT_32, EXPONENT_64 = 0x7F80_0000, 0x7FF0_0000_0000_0000
"""The exponent bits of a number of 32 or 64 bits; all of them are set in NaN and Inf, and in no
other number.
"""


def sound(messages: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the messages [m, d] with zeros in rows that have a NaN or an Inf; only NaN if all rows
    have one.

    A worker that sends such a row is Byzantine, so any finite row in its place keeps the proved
    properties of a rule. If no row is finite, nothing can be aggregated, and the run has diverged:
    no rule makes a finite aggregate from NaN.

    The second result is the bool mask [m] of finite rows. It is None, and the messages are returned
    unchanged, if the host may look at them and all are finite.
    """
    if host_may_look(messages) and all_finite(messages):
        return messages, None
    finite = finite_rows(messages)
    instead = torch.where(finite.any(), 0.0, math.nan).to(messages.dtype)
    return torch.where(finite[:, None], messages, instead), finite


def all_finite(messages: Tensor) -> bool:
    """Return True if no message has a NaN or an Inf; also False if the messages are so large that
    their sum is not finite.
    """
    # a NaN or an Inf makes every sum over it NaN or Inf
    return math.isfinite(messages.detach().sum())


def finite_rows(messages: Tensor) -> Tensor:
    """Return the bool mask [m] of the rows without NaN and Inf.

    Bits are tested, because this adds least to a compiled function: the test is hidden behind
    memory access.
    """
    if messages.dtype == torch.float32:
        return (messages.view(torch.int32) & EXPONENT_32).amax(1) < EXPONENT_32
    if messages.dtype == torch.float64:
        return (messages.view(torch.int64) & EXPONENT_64).amax(1) < EXPONENT_64
    return messages.isfinite().all(1)


def host_may_look(tensor: Tensor) -> bool:
    """Return True if deciding by a tensor's values costs nothing: no GPU has to finish first, and
    nothing is being compiled.
    """
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def number(value: float | Tensor, like: Tensor) -> Tensor:
    """Return a number as a tensor with the type and device of ``like``; it is filled in there, so
    nothing waits for it.
    """
    if isinstance(value, torch.Tensor):
        return value.to(dtype=like.dtype, device=like.device)
    return torch.full((), value, dtype=like.dtype, device=like.device)
