"""Decide whether a run is worth a GPU, and whether it fills a GPU, by the work of one gradient
computation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynabro_cli.core.machine.devices import pick_device
from dynabro_cli.experiment.complete import chain_setting
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.simulation.need import looked_at, model_size

if TYPE_CHECKING:
    import torch

WORTH_A_GPU = 10_000_000
"""Least work, in parameters x samples, for which ``auto`` takes a GPU.

A round on a GPU takes 2 to 7 ms of host time, whatever its size (MNIST: 2.4 with CUDA graphs, 7.4
without). A core computes digits/mlp, 2e6, in 0.9 ms. So GPU and core are equally fast between 4e6
and 1.6e7.
"""
FILLS_A_GPU = 500_000_000
"""Least work for which a GPU computes longer than the host needs to launch a round.

A GPU computes MNIST's 1e8 in about 1 ms, and CIFAR-10's 2e9 in 20 ms, so host and GPU are equally
slow between 2e8 and 7e8.
"""


def work_of(run: Run) -> float | None:
    """Return parameters x samples of one computation of all workers; None if only reading the data
    would show it.

    Weights of convolutions and of attention meet a sample several times. On both devices, this
    counts as once.
    """
    shape = looked_at(run.parts.task).shape
    if run.model is None or shape is None:
        return None
    return (
        float(model_size(run.model, shape).parameters)
        * chain_setting(run.spec).workers
        * run.spec.batch_size
    )


def takes_gpu(run: Run, device: str) -> bool:
    """Return True if a run on ``device`` computes on a GPU, on a machine that has one.

    A task without a model computes on the CPU, whatever the device. With ``auto``, so does a small
    model, unless its precision exists on GPUs only. A run of unknown work takes the GPU.
    """
    if device == "cpu" or not run.parts.task.trains_model:
        return False
    work = work_of(run) if device == "auto" and run.spec.precision != "tf32" else None
    return work is None or work >= WORTH_A_GPU


def fills_gpu(run: Run) -> bool:
    """Return True if the kernels of a run fill a GPU, so that small kernels of other runs would
    wait behind them.
    """
    return (work_of(run) or 0) >= FILLS_A_GPU


def device_of(run: Run, name: str) -> torch.device:
    """Return the device on which a run computes, if ``auto``, ``cpu``, ``cuda`` or ``cuda:N`` is
    asked for.

    Raises:
        SpecError: The device does not exist.
    """
    where = pick_device(name)
    return where if where.type == "cpu" or takes_gpu(run, name) else pick_device("cpu")
