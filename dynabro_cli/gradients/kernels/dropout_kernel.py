# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Dropout on a GPU as one kernel each way: the backward pass draws the mask again, so that no mask
is stored.
"""

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from dynabro_cli.core.lazy import torch
from dynabro_cli.core.machine import gpu_kernels
from dynabro_cli.gradients.kernels import fusible

if TYPE_CHECKING:
    from torch import Tensor

VALUES = 1024
"""Values of a block of threads."""
FIRST, SECOND, THIRD = (tl.constexpr(fusible.signed(word)) for word in fusible.WORDS)


@triton.jit
def mix(word):
    """Compute ``fusible._mix``."""
    word = (word ^ ((word >> 16) & 0xFFFF)) * FIRST
    word = (word ^ ((word >> 15) & 0x1FFFF)) * SECOND
    return word ^ ((word >> 15) & 0x1FFFF)


@triton.jit
def dropped(x, out, seeds, layer, least, scale, count, BLOCK: tl.constexpr):
    """Write x times ``scale`` where ``fusible.kept_values`` keeps, else 0; each mini-batch has
    ``count`` values.
    """
    batch = tl.program_id(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    seed = tl.load(seeds + batch)
    low = (seed ^ layer).to(tl.int32)
    word = mix(mix((place >> 1) + mix(low ^ THIRD)) ^ mix(mix((seed >> 32).to(tl.int32)) ^ low))
    half = tl.where((place & 1) == 0, word << 16, word)
    values = batch.to(tl.int64) * count + place
    kept = tl.load(x + values, mask=place < count, other=0.0).to(tl.float32) * scale
    tl.store(out + values, tl.where(half >= least, kept, 0.0), mask=place < count)


def drop(x: "Tensor", seeds: "Tensor", layer: int, p: float) -> "tuple[Tensor, Tensor]":
    """Compute ``fusible.drop``, equal bit for bit; return the seeds for the backward pass."""
    rows = (x.movedim(1, -1) if x.ndim > 2 else x).contiguous()
    out, count = torch.empty_like(rows), x.numel() // len(seeds)
    numbers = fusible.signed(layer), fusible.least_kept(p), 1 / (1 - p), count
    gpu_kernels.launch(
        dropped, (triton.cdiv(count, VALUES), len(seeds)), rows, out, seeds, *numbers, BLOCK=VALUES
    )
    return (out.movedim(-1, 1) if x.ndim > 2 else out), seeds


def drop_backward(gy: "Tensor", seeds: "Tensor", layer: int, p: float) -> "Tensor":
    """Compute ``fusible.drop_backward``, equal bit for bit."""
    return drop(gy, seeds, layer, p)[0]
