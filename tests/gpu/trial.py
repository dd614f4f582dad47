"""The trial of Triton's kernels in Triton's interpreter: ``TRITON_INTERPRET=1 python -m
tests.gpu.trial trial [KERNEL FAULT]``; with ``networks`` gradients are computed instead.

The fault of a function that is called like a kernel is ``raises``, ``later``
(raises from the second call on), ``bit`` (a last bit of a result differs) or ``dies`` (the process
ends).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from dynabro_cli.core.machine import gpu_kernels
from dynabro_cli.gradients.engine import SHARED, WorkerGradients
from dynabro_cli.gradients.layers import norm
from dynabro_cli.simulation import kernel_trial
from tests.gpu.kernels import convert, draw, interpret, interpreter


def with_fault(name: str, fault: str) -> Callable[..., None]:
    """Return a launch that goes wrong for one kernel."""
    calls = list[int]()

    def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        wrong = kernel.fn.__name__ == name
        if wrong and fault == "dies":
            os._exit(11)
        if wrong and (fault == "raises" or (fault == "later" and calls)):
            raise RuntimeError("PassManager::run failed\nat line 3")
        calls.extend([1] * wrong)
        interpret(kernel, grid, *arguments, **constants)
        if wrong and fault == "bit":
            out = arguments[OUT[name]].view(-1)
            if out.dtype == torch.int8:
                out[-1] ^= 1
            else:
                out[-1] = torch.nextafter(out[-1], torch.full_like(out[-1], torch.inf))

    return launch


OUT = {"order": 1, "mean": 3, "steps": 1, "shift": 1, "normal": 5, "dropped": 1}
"""The argument that a kernel writes."""


def prepare(fault: list[str]) -> None:
    """Let CPU tensors pass for a GPU's."""
    interpreter._convert_float = convert  # type: ignore[attr-defined]
    gpu_kernels.launch = with_fault(*fault) if fault else interpret
    gpu_kernels.obstacle = lambda _: None  # type: ignore[assignment]
    torch.Tensor.is_cuda = True  # type: ignore[assignment, misc]


def networks() -> dict[str, float]:
    """Return the largest difference between the results of three passes with kernels and without.

    The second pass has mini-batches of another size, which the kernels have not seen.
    """
    made = []
    for joined in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(
            *(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.BatchNorm2d(6), nn.Dropout(0.3)),
            *(nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)),
        )
        engine = WorkerGradients(model.train(), 3, kinds=(SHARED,))
        if joined:
            norm.use_gpu_kernels(engine._twin, engine._shared)  # type: ignore[arg-type]
        results = list[torch.Tensor]()
        for samples in (4, 6, 4):
            inputs, labels = draw(3, samples, 2, 8, 8), torch.arange(3 * samples).view(3, -1) % 5
            losses = engine(inputs, labels, 2, torch.arange(6))
            results += [losses, engine.matrix.clone(), engine.statistics.clone()]
        made.append(results)
    pairs = zip(made[0], made[1], strict=True)
    return {"error": max(float((one - two).abs().max() / two.abs().max()) for one, two in pairs)}


if __name__ == "__main__":
    prepare(sys.argv[2:])
    if sys.argv[1] == "trial":
        kernel_trial.main("cpu")
    else:
        print(json.dumps(networks() | gpu_kernels.off))
