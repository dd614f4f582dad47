"""Runs in warm worker processes of this machine, or, with ``--jobs 0``, in this process."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dynabro_cli.errors import SpecError
from dynabro_cli.executors._api import Options
from dynabro_cli.executors.backend import Places
from dynabro_cli.executors.backends.local.pool import Pool
from dynabro_cli.experiment.build import data_directory
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.experiment.spec import fields
from dynabro_cli.grid.forecast import usual_jobs
from dynabro_cli.machine.cores import cores, spin_little
from dynabro_cli.machine.devices import devices_of, pick_device
from dynabro_cli.machine.host_memory import free_host_memory
from dynabro_cli.simulation import precision

if TYPE_CHECKING:
    from dynabro_cli.simulation.need import Need

LIKE = tuple(name for name, one in fields().items() if one.memory)
"""The fields that the memory of a run depends on."""
FIRST = 2
"""Processes that start before the number of runs at a time is known."""


@contextlib.contextmanager
def opened(options: Options, most: int, *, entry: str | None = None) -> Iterator[Callable[[Sequence[Run]], Places]]:
    """Start some processes, which takes seconds, and yield the function that decides on their number.

    Each process makes one run after another, and ends with this one.

    Args:
        options: The options.
        most: Most runs that may be made.
        entry: The function of a worker process, as ``module:name``.
    """
    if options.jobs == 0:
        from dynabro_cli.executors.backends.local.in_process import InProcess

        spin_little()
        yield lambda runs: Places(
            replace(options, jobs=1, device=_devices(runs, options)[0]), _devices(runs, options)[:1], 1, InProcess()
        )
        return
    free = free_host_memory()
    with contextlib.closing(Pool(entry)) as pool:
        for place in range(min(options.jobs or FIRST, cores(), most)):
            pool.start(place)
        yield functools.partial(places_of, options, free, pool)


def places_of(options: Options, free: float | None, pool: Pool, runs: Sequence[Run]) -> Places:
    """Return a process per core, or ``jobs_per_gpu`` on each GPU; fewer if the free memory is too small.

    Args:
        options: The options.
        free: Bytes of free memory before any process has started; None if unknown.
        pool: The processes.
        runs: The runs to make.

    Raises:
        SpecError: An option is not legal for one of the runs, a run does not fit, or ``jobs`` runs do not fit at a time.
    """
    devices = _devices(runs, options)
    jobs, note = options.jobs or usual_jobs(options.device, cores(), options.jobs_per_gpu), None
    pool.check = "all" if len(runs) == 1 else "gpu"
    if len(runs) > 1 and free is not None and not options.force:
        fit = fitting(runs, jobs, options, free)
        if fit < min(jobs, len(runs)):
            jobs, note = fit, f"{fit} runs at a time: more do not fit into the free memory"
    pool.resize(jobs)
    share = options.threads or max(1, cores() // jobs)
    options = replace(options, jobs=jobs, threads=share, most_threads=options.threads is None)
    return Places(options, devices, jobs, pool, note)


def _devices(runs: Sequence[Run], options: Options) -> list[str]:
    """Return the devices to run on; raise SpecError if there are none, or if one of the runs cannot be made on them."""
    devices = devices_of(options.device)
    for kind in sorted({run.spec.precision for run in runs}):
        precision.check(kind, devices[0])
    return devices


def fitting(runs: Sequence[Run], jobs: int, options: Options, free: float) -> int:
    """Return how many of ``runs``, at most ``jobs`` at a time, fit into the free memory, whichever meet.

    The process that uses a GPU checks the GPU's memory itself.

    Args:
        runs: The runs to make.
        jobs: Most runs at a time.
        options: The options.
        free: Bytes of free memory, before any process of a run has started.

    Raises:
        SpecError: A single run does not fit, or ``options`` ask for more runs at a time than fit.
    """
    from dynabro_cli.simulation.need import too_much  # it loads torch

    jobs, needs = min(jobs, len(runs)), [need.within(free) for need in _needs(runs, options)]
    largest = sorted((need.host for need in needs), reverse=True)[:jobs]
    fit = sum(total <= free for total in itertools.accumulate(largest))
    if not fit:
        need = max(needs)
        raise too_much(need, need.host, free, "are free")
    if fit < jobs and options.jobs is not None:
        raise SpecError(
            f"jobs={options.jobs}: {fit} of these runs at a time fit into the free memory. Try: --jobs {fit}, or --force"
        )
    return fit


def _needs(runs: Sequence[Run], options: Options) -> list[Need]:
    """Return the memory that each run needs."""
    from dynabro_cli.simulation.need import need_of

    gpu, folder = pick_device(options.device).type == "cuda", data_directory(options.data_dir)
    known: dict[tuple[object, ...], Need] = {}
    needs = []
    for run in runs:
        like = tuple(getattr(run.spec, name) for name in LIKE)
        if like not in known:
            known[like] = need_of(run.with_data(folder), gpu=gpu, compiles=options.compile != "off")
        needs.append(known[like])
    return needs
