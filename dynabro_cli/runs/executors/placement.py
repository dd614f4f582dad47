"""Choose the devices of runs, and the number of runs at a time on each device."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from dynabro_cli.core.machine.cores import cores
from dynabro_cli.core.machine.devices import EXCLUSIVE, card_of, devices_of, gpu_memory
from dynabro_cli.experiment.build import data_directory
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.experiment.spec import fields
from dynabro_cli.runs.executors._api import ON_CPU, Options, Sharing

if TYPE_CHECKING:
    from dynabro_cli.simulation.need import Need

DEMAND_FIELDS = tuple(name for name, field in fields().items() if field.memory or field.speed)
"""The fields that decide where a run computes, and how much memory it needs."""
WITH_MPS, WITHOUT_MPS, FILLING = 12, 3, 2
"""Most runs on a GPU: with CUDA's multi-process service, without it, and of runs that fill a
GPU.
"""
OTHER_CORES = 2
"""Cores for the command and the system; each run on a GPU keeps another core busy."""
BASE_BYTES = 1e9
"""Memory of a process on a GPU for CUDA's libraries, beside the estimated need of its run."""


class DeviceKind(NamedTuple):
    """Kind of device of a run, ``cpu`` or ``cuda``, and the number of such runs at a time."""

    device: str
    jobs: int = 1


class Demand(NamedTuple):
    """Device of a run, and its need of memory there; ``fills`` is True if the run fills a GPU."""

    gpu: bool
    fills: bool
    need: Need


@dataclass(frozen=True)
class Placement:
    """Places of the runs of a sweep.

    Attributes:
        devices: The device of each place.
        demand: Returns the demand of a run.
        sharing: How a run shares its device.
        notes: Lines about GPUs that are not used, and runs on the CPU although there is a GPU.
        mps: Folder of CUDA's multi-process service; None without one.
    """

    devices: Sequence[str]
    demand: Callable[[Run], Demand]
    sharing: Callable[[Run], Sharing] = lambda _: ON_CPU
    notes: Sequence[str] = ()
    mps: str | None = None

    def of(self, run: Run) -> DeviceKind:
        """Return the kind of device of a run, and the number of runs like it at a time."""
        gpus = [device for device in self.devices if device != "cpu"]
        sharing = self.sharing(run)
        if sharing.gpu:
            return DeviceKind("cuda", min(len(gpus), sum(map(sharing.most_on, set(gpus)))))
        return DeviceKind("cpu", len(self.devices) - len(gpus) or len(gpus))


def placement_of(runs: Sequence[Run], options: Options, mps: Callable[[], str | None]) -> Placement:
    """Choose the places of runs: one per core for runs on the CPU, and several on each GPU.

    If there are runs for both devices, the cores that the GPUs' runs do not keep busy become places
    for runs on the CPU. Those also take a GPU's place if no run for the GPU needs it.

    Args:
        runs: The runs to make, or some like them.
        options: The options.
        mps: Returns the folder of CUDA's multi-process service, which it may start; called if
            several runs share a GPU.

    Raises:
        SpecError: The device does not exist.
    """
    options = replace(options, jobs=1) if options.jobs == 0 else options
    (names, unused), demand = devices_of(options.device), demands(options)
    if names == ["cpu"]:
        notes = unused if unused and any(demand(run).gpu for run in runs) else ()
        demand = demands(replace(options, device="cpu"))
        return Placement(["cpu"] * (options.jobs or cores()), demand, notes=notes)
    on_gpu, on_cpu = ([run for run in runs if demand(run).gpu is gpu] for gpu in (True, False))
    notes = [*unused, *_notes(on_cpu, mixed=bool(on_gpu))]
    if not on_gpu:
        return Placement(["cpu"] * (options.jobs or cores()), demand, notes=notes)
    given = math.ceil(options.jobs / len(names)) if options.jobs else options.jobs_per_gpu

    def most(run: Run, name: str, served: bool) -> int:
        card, memory = card_of(name), gpu_memory(name)
        limit = FILLING if demand(run).fills else WITH_MPS if served else WITHOUT_MPS
        fit = memory // (BASE_BYTES + demand(run).need.within(memory).device)
        limit = min(limit, (cores() - OTHER_CORES) // len(names), int(fit))
        alone = card is not None and card.mode == EXCLUSIVE and not served
        return 1 if alone else given or max(1, limit)

    served = any(most(run, name, True) > 1 for run in on_gpu for name in names)
    folder = mps() if served else None
    served = folder is not None
    each = {name: max(most(run, name, served) for run in on_gpu) for name in names}
    if options.jobs:
        devices = [names[place % len(names)] for place in range(options.jobs)]
    else:
        places = itertools.product(range(max(each.values())), names)
        devices = [name for place, name in places if place < each[name]]
    if on_cpu and options.jobs is None:
        devices += ["cpu"] * max(1, cores() - len(devices))

    def sharing(run: Run) -> Sharing:
        if not demand(run).gpu:
            return ON_CPU
        counts = {name: most(run, name, served) for name in names}
        largest = max(counts.values())
        fewer = tuple((name, count) for name, count in counts.items() if count < largest)
        return Sharing(True, demand(run).fills, largest, fewer)

    return Placement(devices, demand, sharing, notes, folder)


def demands(options: Options) -> Callable[[Run], Demand]:
    """Return a function that returns the demand of a run, and computes it once for similar runs; it
    loads torch.
    """
    seen: dict[tuple[object, ...], Demand] = {}
    folder = data_directory(options.data_dir)

    def demand(run: Run) -> Demand:
        like = tuple(getattr(run.spec, name) for name in DEMAND_FIELDS)
        if like not in seen:
            from dynabro_cli.simulation.need import need_of
            from dynabro_cli.simulation.placing import fills_gpu, takes_gpu

            run = run.with_data(folder)
            gpu = takes_gpu(run, options.device)
            need = need_of(run, gpu=gpu, compiles=options.compile != "off")
            seen[like] = Demand(gpu, gpu and fills_gpu(run), need)
        return seen[like]

    return demand


def _notes(on_cpu: Sequence[Run], *, mixed: bool) -> Sequence[str]:
    """Return a line about runs that do not use the GPU."""
    if not on_cpu:
        return ()
    why = "small model" if any(run.model is not None for run in on_cpu) else "no model"
    return (f"device: cpu{' for some runs' if mixed else ''} ({why})",)
