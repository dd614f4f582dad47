"""Products of all pairs of vectors by a compiled kernel (``gram.cpp``), which also finds the vectors that are equal."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import TYPE_CHECKING

from dynabro_cli.lazy import torch
from dynabro_cli.machine import native

if TYPE_CHECKING:
    from torch import Tensor

_long, _pointer = ctypes.c_long, ctypes.c_void_p


class Products:
    """The function of the compiled library, on tensors."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.scratch.restype = _long

    def __call__(self, vectors: Tensor) -> tuple[Tensor, list[int]]:
        """Return the products [m, m] in double precision, and the first vector that equals each.

        Args:
            vectors: [m, d], single precision, on a CPU.
        """
        vectors = vectors if vectors.stride(1) == 1 else vectors.contiguous()
        m, d = vectors.shape
        threads = torch.get_num_threads() if native.team() is not None else 1
        sizes = _long(m), _long(d)
        scratch = torch.empty(self._library.scratch(_long(threads), *sizes), dtype=torch.uint8)
        found, first = torch.empty(m, m, dtype=torch.float64), torch.empty(m, dtype=torch.int32)
        tensors = _pointer(scratch.data_ptr()), _pointer(vectors.data_ptr())
        results = _pointer(found.data_ptr()), _pointer(first.data_ptr())
        self._library.products(native.team(), _long(threads), *tensors, *sizes, _long(vectors.stride(0)), *results)
        return found, first.tolist()


@functools.cache
def load() -> Products | None:
    """Compile and load the kernel; None if that fails."""
    try:
        return Products(native.Kernel(Path(__file__).with_name("gram.cpp"), {}).load())
    except native.NativeError:
        return None
