"""Compare a run's memory with the free memory, before anything is allocated."""

from __future__ import annotations

import torch

from dynabro_cli.errors import SpecError
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.gradients.memory import free_memory
from dynabro_cli.machine.host_memory import free_host_memory, private_memory
from dynabro_cli.simulation.need import Need, need_of


def check_room(run: Run, device: torch.device, *, compiles: bool, host: bool = True) -> None:
    """Compare a run's need in this process with the free memory of this machine and its GPU.

    Args:
        run: The run.
        device: Where it computes.
        compiles: Whether its functions may be compiled.
        host: Whether to look at the machine's memory, too.

    Raises:
        SpecError: The run needs more than is free.
    """
    need = need_of(run, gpu=device.type == "cuda", compiles=compiles)
    free = free_host_memory() if host else None
    if free is not None and (more := need.within(free).host - private_memory()) > free:
        raise too_much(need, more, free, "are free")
    if device.type == "cuda" and (more := need.within(left := free_memory(device)).device) > left:
        raise too_much(need, more, left, f"are free on {device}")


def too_much(need: Need, needed: float, free: float, where: str) -> SpecError:
    """Return the error for a run that needs more than the free bytes."""
    return SpecError(
        f"memory: a run here needs about {needed / 1e9:,.1f} GB, most of it for {need.largest}, "
        f"and {free / 1e9:,.1f} GB {where}. Try: {need.advice}, or --force to begin all the same"
    )
