"""Cells of the paper's figures, on made-up images that have the shape and number of a data
set's.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from dynabro_cli import RunSpec
from dynabro_cli.components.tasks import cifar10, mnist
from dynabro_cli.components.tasks._api import Images
from dynabro_cli.core import events
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.simulation.setup import simulate_run

FOREVER = 10**9
"""A distance between evaluations that no run reaches."""


def cell(task: str, method: str, aggregator: str, **more: Any) -> RunSpec:
    """Return a cell of the paper's figures on ``mnist`` or ``cifar10``, without evaluations unless
    requested.
    """
    usual = {
        "attack": {"mnist": "sf", "cifar10": "ipm"}[task],
        "switching": "periodic:K=20",
        "eval_every": FOREVER,
    }
    return RunSpec(task=task, method=method, aggregator=aggregator, **(usual | more))


@functools.cache
def images_of(task: str, tiny: bool = False) -> Images:
    """Make noise in the shape of ``mnist`` or ``cifar10``; torch starts no thread here, so a
    process can be forked later.
    """
    module = {"mnist": mnist, "cifar10": cifar10}[task]
    shape, source, parts = module.SHAPE, np.random.default_rng(0), list[Any]()
    for size in (256, 64) if tiny else (module.TRAIN_SIZE, module.TEST_SIZE):
        pixels = source.integers(
            0, 256, (size, shape.channels, shape.height, shape.width), dtype=np.uint8
        )
        parts += [
            torch.from_numpy(pixels),
            torch.from_numpy(source.integers(0, shape.classes, size)),
        ]
    channels = shape.channels
    return Images(
        *parts, mean=(0.5,) * channels, std=(0.25,) * channels, shape=shape, flip=task == "cifar10"
    )


def stream(
    spec: RunSpec, device: str, *, tiny: bool = False, **more: Any
) -> Iterator[events.Event]:
    """Simulate a cell; ``more`` are arguments of ``simulate_run``."""
    yield from simulate_run(
        resolve(spec), device=device, load=lambda task, _: images_of(task.name, tiny), **more
    )
