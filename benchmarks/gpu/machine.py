"""The machine: versions, the GPU, and a first computation."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator

import torch

from benchmarks.gpu.steps import Check, Found, How


def checks(how: How) -> Iterator[Check]:
    """Yield the checks that come before all others."""
    yield Check("versions", lambda: _versions(how), 30)
    yield Check("computes", lambda: _computes(how), 30)


def _versions(how: How) -> Found:
    found: Found = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
        "cores": os.cpu_count(),
        "mps": shutil.which("nvidia-cuda-mps-control") is not None,
    }
    if not how.gpu or not torch.cuda.is_available():
        return found | {"gpu": "none"}
    properties = torch.cuda.get_device_properties(how.device)
    free, total = torch.cuda.mem_get_info(how.device)
    return found | {
        "gpu": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "processors": properties.multi_processor_count,
        "free GB": free / 1e9,
        "total GB": total / 1e9,
        "cudnn": torch.backends.cudnn.version(),
    }


def _computes(how: How) -> Found:
    if how.gpu and not torch.cuda.is_available():
        return {"left out": "no GPU"}
    x = torch.arange(1000, dtype=torch.float64)
    found = float((x.to(how.device) ** 2).sum())
    return {"sum": found, "ok": found == float((x**2).sum())}
