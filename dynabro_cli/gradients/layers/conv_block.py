"""Convolution, ReLU and 2 x 2 max-pooling in one layer, compiled for its shape and this processor.

After the pooling, at most a quarter of the convolution's gradient is not zero: the largest value of
each window, if it is positive. The kernel keeps the value's place as a byte, and the backward pass
computes only these places (``conv_block.cpp``).
"""

from __future__ import annotations

import ctypes
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function

from dynabro_cli.core.errors import RunError
from dynabro_cli.core.machine import native
from dynabro_cli.gradients.layers.worker_layers import WorkerConv2d

COMPILE_VALUES = 1e8
"""Values of the convolution's output in a run above which compiling saves time: it saves at least 6
ns per value, and costs about 1 s.
"""

SCRATCH = 16 << 20
"""Largest scratch memory of a thread in bytes; larger images do not fit into a cache."""


@dataclass(frozen=True)
class Shape:
    """Constants of a kernel: the image, the convolution, and True if the input needs a gradient."""

    channels: int
    height: int
    width: int
    kernels: int
    kernel: tuple[int, int]
    padding: tuple[int, int]
    input: bool

    @property
    def output(self) -> tuple[int, int]:
        """Height and width of the convolution's output."""
        (top, left), (height, width) = self.padding, self.kernel
        return self.height + 2 * top - height + 1, self.width + 2 * left - width + 1

    @property
    def values(self) -> int:
        """Values of the convolution's output for one image."""
        return self.output[0] * self.output[1] * self.kernels

    @property
    def served(self) -> bool:
        """True if the output has a window, and the scratch memory of a thread is not too large."""
        rows, columns = self.output
        padded = (
            (self.height + 2 * self.padding[0]) * (self.width + 2 * self.padding[1]) * self.channels
        )
        return min(rows, columns) >= 2 and 64 * (padded + columns * self.kernels) <= SCRATCH

    def compiled(self) -> native.Kernel:
        """The kernel of this shape."""
        sizes = {
            "C": self.channels,
            "H": self.height,
            "W": self.width,
            "O": self.kernels,
            "INPUT": int(self.input),
        }
        sizes |= {
            "KH": self.kernel[0],
            "KW": self.kernel[1],
            "TOP": self.padding[0],
            "LEFT": self.padding[1],
        }
        return native.Kernel(Path(__file__).with_name("conv_block.cpp"), sizes)


class Compiled:
    """The two functions of a shape's library, on float32 tensors; images are channels last."""

    def __init__(self, shape: Shape, library: ctypes.CDLL) -> None:
        self.shape = shape
        self._library = native.Library(library)

    def forward(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, *, places: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return y [N, O, h, w] and, if ``places``, the places of the largest values, [N, h, w, O],
        a byte each.
        """
        rows, columns = (size // 2 for size in self.shape.output)
        y = torch.empty(
            len(x), self.shape.kernels, rows, columns, memory_format=torch.channels_last
        )
        at = (
            torch.empty(len(x), rows, columns, self.shape.kernels, dtype=torch.uint8)
            if places
            else None
        )
        self._library.run("forward", self._scratch(0, 0), x, weight, bias, y, at, len(x))
        return y, at

    def backward(
        self, x: Tensor, weight: Tensor, at: Tensor, gy: Tensor, dw: Tensor, db: Tensor | None
    ) -> Tensor | None:
        """Write the weights' gradients dw [m, O, C, kh, kw] and db [m, O]; return the input's if
        needed.
        """
        m = len(dw)
        gx = torch.empty_like(x) if self.shape.input else None
        n = len(x) // m
        self._library.run(
            "backward", self._scratch(m, n), x, weight, at, gy, dw, db, dw.stride(0), gx, m, n
        )
        return gx

    def _scratch(self, workers: int, batch: int) -> Tensor:
        """Return the scratch memory that all threads need."""
        return torch.empty(self._library.number("scratch", self._library.threads, workers, batch))


class _Block(Function):
    """y = max-pool(ReLU(conv(x))); the gradient goes to the first of the largest values, if it is
    positive.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: ConvBlock
    ) -> Tensor:
        y, at = cast(Compiled, layer.compiled).forward(x, weight, bias, places=True)
        ctx.save_for_backward(x, weight, at)
        ctx.layer = layer
        return y

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> Any:
        (x, weight, at), layer = ctx.saved_tensors, ctx.layer
        gy = outputs[0].contiguous(memory_format=torch.channels_last)
        bias = layer.conv.gradient("bias") if layer.conv.has_bias else None
        gx = layer.compiled.backward(x, weight, at, gy, layer.conv.gradient("weight"), bias)
        return gx if ctx.needs_input_grad[0] else None, None, None, None


class ConvBlock(nn.Module):
    """Replace a ``WorkerConv2d``, ``nn.ReLU`` and ``nn.MaxPool2d(2)`` in a row.

    Attributes:
        compiled: The kernel; None before ``compile_blocks``, or if the block is not compiled. The
            layers then run unchanged.
        seen: The shape of the input in the last call that was not compiled.
    """

    def __init__(self, conv: WorkerConv2d, relu: nn.Module, pool: nn.Module) -> None:
        super().__init__()
        self.conv = conv
        # ReLU has less to do after the pooling
        self.plain: nn.Module = nn.Sequential(conv, pool, relu)
        self.compiled: Compiled | None = None
        self.seen: Shape | None = None

    @staticmethod
    def serves(conv: nn.Module, relu: nn.Module, pool: nn.Module) -> bool:
        """Return True if these three layers can be replaced; only ``forward`` sees the image's
        size.
        """
        return (
            isinstance(conv, WorkerConv2d)
            and conv.groups == 1
            and conv.stride == conv.dilation == [1, 1]
            and type(relu) is nn.ReLU
            and type(pool) is nn.MaxPool2d
            and (pool.padding, pool.dilation, pool.ceil_mode, pool.return_indices)
            == (0, 1, False, False)
            and all(size in (2, (2, 2)) for size in (pool.kernel_size, pool.stride))
        )

    def forward(self, x: Tensor) -> Tensor:
        shape = self._shape(x)
        if self.compiled is None or shape is None or not self._fits(shape):
            self.seen = shape
            return cast(Tensor, self.plain(x))
        x = x.contiguous(memory_format=torch.channels_last)
        if torch.is_grad_enabled():
            return cast(Tensor, _Block.apply(x, self.conv.weight, self.conv.bias, self))
        return self.compiled.forward(x, self.conv.weight, self.conv.bias, places=False)[0]

    def _shape(self, x: Tensor) -> Shape | None:
        """Return the shape of a kernel for ``x``; None if no kernel serves ``x``."""
        if (
            x.device.type != "cpu"
            or x.dtype != torch.float32
            or self.conv.weight.dtype != torch.float32
        ):
            return None
        kernels, channels, *kernel = self.conv.weight.shape
        padding = (self.conv.padding[0], self.conv.padding[1])
        return Shape(
            channels,
            x.shape[2],
            x.shape[3],
            kernels,
            (kernel[0], kernel[1]),
            padding,
            x.requires_grad,
        )

    def _fits(self, shape: Shape) -> bool:
        compiled = cast(Compiled, self.compiled).shape
        return compiled == dataclasses.replace(shape, input=compiled.input) and (
            compiled.input or not shape.input
        )


def blocks_of(model: nn.Module) -> list[ConvBlock]:
    """Return all blocks of a model."""
    return [module for module in model.modules() if isinstance(module, ConvBlock)]


def without_block(model: nn.Module) -> list[Tensor]:
    """Return the weights of a twin's convolutions that are not part of a compiled block."""
    blocks = {block.conv for block in blocks_of(model) if block.compiled is not None}
    return [
        layer.weight
        for layer in model.modules()
        if isinstance(layer, WorkerConv2d) and layer not in blocks
    ]


def compile_blocks(model: nn.Module, samples: float, *, insist: bool) -> str:
    """Compile the blocks of a model that has already been called at least once with images of the
    same shape.

    Args:
        model: The model.
        samples: Number of images of the whole run.
        insist: True to compile for any number of images, and to raise if that fails.

    Returns:
        The outcome in a few words: ``2 of 2 compiled``, ``none`` if the model has no block, or
            ``off: `` and the reason.

    Raises:
        RunError: Compiling failed, and ``insist`` is True.
    """
    blocks = blocks_of(model)
    pairs = [
        (block, block.seen) for block in blocks if block.seen is not None and block.seen.served
    ]
    if not pairs:
        return "off: not for these images" if blocks else "none"
    work = [
        (block, shape)
        for block, shape in pairs
        if insist or samples * shape.values >= COMPILE_VALUES
    ]
    if not work:
        return "off: too little work"
    if native.team() is None and torch.get_num_threads() > 1:
        return "off: torch has other threads than OpenMP's"
    try:
        libraries = native.load_all([shape.compiled() for _, shape in work])
    except native.NativeError as error:
        if insist:
            raise RunError(f"compiling failed ({error}). Try: --compile off") from error
        return f"off: {error}"
    for (block, shape), library in zip(work, libraries, strict=True):
        block.compiled = Compiled(shape, library)
    return f"{len(work)} of {len(blocks)} compiled"
