"""Precision of gradients: torch's switches for the process, and the dtype of the network."""

from __future__ import annotations

import os
import warnings
from typing import Any

from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.lazy import torch

AMPERE = 8, 0
"""Compute capability from which GPUs have bfloat16 and TensorFloat-32."""
OVERRIDE = "NVIDIA_TF32_OVERRIDE"
"""The variable by which CUDA's libraries ignore torch's switches; they read it when they start."""


def check(precision: str, device: str) -> None:
    """Raise SpecError if a device, such as ``cpu`` or ``cuda:0``, cannot compute in
    ``precision``.
    """
    gpu = device.startswith("cuda")
    if precision == "tf32" and not gpu:
        raise SpecError(
            f"precision=tf32 is not legal on device {device}: only CUDA GPUs have "
            "TensorFloat-32. Try: --precision fp32 or bf16"
        )
    if precision != "fp32" and gpu and torch.cuda.get_device_capability(device) < AMPERE:
        raise SpecError(
            f"precision={precision} is not legal on {device}: it needs compute capability 8.0. "
            "Try: --precision fp32"
        )


def apply(precision: str, device: torch.device) -> torch.dtype:
    """Set torch's switches for the whole process, and return the dtype to compute in.

    ``fp32`` and ``bf16`` use true single precision; with torch's default, cuDNN would convolve in
    TensorFloat-32. ``tf32`` rounds the factors of matrix products and convolutions to 10 bits of
    mantissa.

    Args:
        precision: ``fp32``, ``tf32`` or ``bf16``.
        device: The device of the run.

    Raises:
        SpecError: The device cannot compute in this precision.
    """
    check(precision, str(device))
    if device.type == "cuda" and os.environ.pop(OVERRIDE, ""):
        warnings.warn(f"{OVERRIDE} is ignored: --precision {precision} decides", stacklevel=2)
    tf32 = precision == "tf32"
    # torch has an older and a newer set of switches. Reading the older set raises if the two
    # disagree, so both are set. The older set comes first because it writes the newer one; the
    # newer alone would leave convolutions to a wider default.
    backends: Any = torch.backends
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    backends.cudnn.allow_tf32 = tf32
    for operation in (
        backends.cuda.matmul,
        backends.cudnn.conv,
        backends.cudnn.rnn,
        backends.mkldnn.conv,
    ):
        operation.fp32_precision = "tf32" if tf32 else "ieee"
    return torch.bfloat16 if precision == "bf16" else torch.float32
