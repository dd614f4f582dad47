"""Messages with a NaN or an Inf: their workers are Byzantine to every rule."""

from __future__ import annotations

import math

import torch
from torch import Tensor

EXPONENTS = {torch.float32: (torch.int32, 0x7F80_0000), torch.float64: (torch.int64, 0x7FF0_0000_0000_0000)}
"""The bits of a number's exponent, which are all set in NaN and Inf and in no other; and the whole numbers to read them as."""


def sound(messages: Tensor) -> tuple[Tensor, Tensor | None]:
    """The messages [m, d] with zeros for the rows that hold a NaN or an Inf; nothing but NaN where all of them do.

    A worker that sends such a row is Byzantine, so that any finite row in its place keeps what is proved of a rule. Where no
    row is finite there is nothing to aggregate, and the run has diverged: no rule makes a finite aggregate of NaN.

    The bool mask [m] of the finite rows comes with it; or None, with the messages themselves, where the host may look at
    them and they are all finite.
    """
    if host_may_look(messages) and math.isfinite(messages.detach().sum()):  # a NaN or an Inf is in the sum of whatever it is in
        return messages, None
    finite = finite_rows(messages)
    instead = torch.where(finite.any(), 0.0, math.nan).to(messages.dtype)
    return torch.where(finite[:, None], messages, instead), finite


def finite_rows(messages: Tensor) -> Tensor:
    """The bool mask [m] of the rows without NaN and Inf.

    By their bits: of all ways to see it, this adds least to a compiled function, for which it is hidden behind the memory.
    """
    if messages.dtype not in EXPONENTS:
        return messages.isfinite().all(1)
    whole, bits = EXPONENTS[messages.dtype]
    return (messages.view(whole) & bits).amax(1) < bits


def host_may_look(tensor: Tensor) -> bool:
    """Whether to decide by a tensor's values costs nothing: the host waits for no GPU, and nothing is being compiled."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()
