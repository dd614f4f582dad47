"""Trial of Triton's kernels on a GPU, in a separate process: each is compared with torch on small
arguments whose sizes fill no block.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable

import torch
from torch import Tensor

from dynabro_cli.components.aggregators import _order, gm, signguard
from dynabro_cli.core.machine import gpu_kernels
from dynabro_cli.core.vectors.gram import around, gram
from dynabro_cli.core.vectors.means import weighted
from dynabro_cli.gradients.layers import norm

WORKERS, DIMENSION = 17, 1000


def main(device: str) -> None:
    """Print a line of JSON for each kernel: its name, and why it is off; or nothing if no kernel
    can be launched here.
    """
    gpu_kernels.trial = lambda device: {}
    if gpu_kernels.obstacle(torch.device(device)) is not None:
        return
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device)

    messages = draw(WORKERS, 2 * DIMENSION)[:, 1::2]
    messages = torch.cat([messages, messages.round()], 1)[:, DIMENSION // 2 :]
    shares = torch.rand(WORKERS, 3, generator=generator, dtype=torch.float64).to(device)
    seeds = torch.arange(4, device=device) * 0x123456789AB
    trials: dict[str, Callable[[], object]] = {
        "mean": lambda: [weighted(messages, shares[:, 0], total) for total in (None, WORKERS)],
        "order": lambda: [
            _order.middle_mean(messages, WORKERS // 2),
            _order.nearest_mean(messages, WORKERS // 2, WORKERS // 4),
        ],
        "gm": lambda: gm.weiszfeld(around(products, gm.start_of(products)), 1e-6, 1e-6, 1000),
        "signguard": lambda: signguard.largest_cluster(shares),
        "norm": lambda: [
            norm.normalise(x.to(dtype), draw(65), draw(65), 1e-5, True, *before)
            for x in (draw(4, 130, 65), draw(1, 5000, 65))
            for dtype in (torch.float32, torch.bfloat16)
            for before in ((), (draw(65),))
        ],
        "dropout": lambda: [
            norm.drop(draw(4, 1027).to(dtype), seeds, 7, 0.25)
            for dtype in (torch.float32, torch.bfloat16)
        ],
    }
    with torch.no_grad():
        products = gram(messages)
        for name, trial in trials.items():
            with contextlib.suppress(gpu_kernels.KernelOffError):
                trial()
            os.write(1, json.dumps({name: gpu_kernels.off.get(name, "")}).encode() + b"\n")
