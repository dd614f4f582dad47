"""Kinds of errors of a pass: too little memory, a broken device, and all else, which may be a layer that is not supported."""

from __future__ import annotations

import torch

MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
DEVICE = (
    *("CUDA error", "HIP error", "cuDNN error", "CUDNN_STATUS", "CUBLAS_STATUS", "device-side assert", "driver"),
    "unable to find an engine",  # cuDNN's frontend, for a convolution that it has no kernel for
)


def out_of_memory(error: Exception) -> bool:
    """Return True if a smaller pass may fit."""
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in MEMORY)


def of_the_device(error: Exception) -> bool:
    """Return True if another way of computing would fail as well: the error is the device's or its libraries'."""
    kind = getattr(torch, "AcceleratorError", ())
    return isinstance(error, kind) or any(text in str(error) for text in DEVICE)
