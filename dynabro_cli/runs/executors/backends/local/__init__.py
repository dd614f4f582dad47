"""Runs in warm worker processes of this machine, or, with ``--jobs 0``, in this process."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.machine import mps
from dynabro_cli.core.machine.cores import cores, spin_little
from dynabro_cli.core.machine.host_memory import free_host_memory
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.runs.executors._api import Options
from dynabro_cli.runs.executors.backend import Places
from dynabro_cli.runs.executors.backends.local.pool import Pool
from dynabro_cli.runs.executors.placement import Demand, Placement, placement_of
from dynabro_cli.simulation import precision

FIRST = 2
"""Processes that start before the number of runs at a time is known."""


@contextlib.contextmanager
def opened(
    options: Options, most: int, *, entry: str | None = None
) -> Iterator[Callable[[Sequence[Run]], Places]]:
    """Start some processes, which takes seconds, and yield the function that decides on their
    number.

    Each process makes one run after another, and ends with this one.

    Args:
        options: The options.
        most: Most runs that may be made.
        entry: The function of a worker process, as ``module:name``.
    """
    if options.jobs == 0:
        spin_little()
        yield functools.partial(_here, options)
        return
    free = free_host_memory()
    # clients end before their service
    with contextlib.ExitStack() as stack, contextlib.closing(Pool(entry)) as pool:
        for place in range(min(options.jobs or FIRST, cores(), most)):
            pool.start(place)
        yield functools.partial(places_of, options, free, pool, stack)


def _here(options: Options, runs: Sequence[Run]) -> Places:
    """Return the only place, which is this process."""
    from dynabro_cli.runs.executors.backends.local.in_process import InProcess

    where = _placement(runs, options, lambda: None)
    options = replace(options, jobs=1)
    return Places(options, where.devices, 1, InProcess(), where.notes, where.sharing)


def places_of(
    options: Options,
    free: float | None,
    pool: Pool,
    stack: contextlib.ExitStack,
    runs: Sequence[Run],
) -> Places:
    """Return a process for each place; fewer if the free memory is too small.

    Args:
        options: The options.
        free: Bytes of free memory before any process has started; None if unknown.
        pool: The processes.
        stack: Ends what is started here.
        runs: The runs to make.

    Raises:
        SpecError: An option is not legal for one of the runs, a run does not fit, or ``jobs`` runs
            do not fit at a time.
    """
    placement = _placement(runs, options, functools.partial(mps.start, stack))
    jobs, notes = len(placement.devices), [*placement.notes]
    pool.memory_check = "all" if len(runs) == 1 else "gpu"
    if len(runs) > 1 and free is not None and not options.force:
        fit = fitting(runs, jobs, options, free, placement.demand)
        if fit < min(jobs, len(runs)):
            jobs = fit
            notes.append(f"{fit} runs at a time: more do not fit into the free memory")
    pool.resize(jobs)
    share = options.threads or max(1, cores() // jobs)
    options = replace(options, jobs=jobs, threads=share, most_threads=options.threads is None)
    return Places(options, placement.devices, jobs, pool, notes, placement.sharing, placement.mps)


def _placement(
    runs: Sequence[Run], options: Options, service: Callable[[], str | None]
) -> Placement:
    """Return the places of runs; raise SpecError if the device does not exist, or if it cannot make
    one of the runs.
    """
    placement = placement_of(runs, options, service)
    gpus = {device for device in placement.devices if device != "cpu"}
    kinds = {
        (run.spec.precision, device)
        for run in runs
        for device in (gpus if placement.sharing(run).gpu else ["cpu"])
    }
    for kind, device in sorted(kinds):
        precision.check(kind, device)
    return placement


def fitting(
    runs: Sequence[Run], jobs: int, options: Options, free: float, demand: Callable[[Run], Demand]
) -> int:
    """Return how many of ``runs``, at most ``jobs`` at a time, fit into the free memory, whichever
    meet.

    The process that uses a GPU checks the GPU's memory itself.

    Args:
        runs: The runs to make.
        jobs: Most runs at a time.
        options: The options.
        free: Bytes of free memory, before any process of a run has started.
        demand: Returns the demand of a run.

    Raises:
        SpecError: A single run does not fit, or ``options`` ask for more runs at a time than fit.
    """
    from dynabro_cli.simulation.need import too_much  # it loads torch

    jobs, needs = min(jobs, len(runs)), [demand(run).need.within(free) for run in runs]
    largest = sorted((need.host for need in needs), reverse=True)[:jobs]
    fit = sum(total <= free for total in itertools.accumulate(largest))
    if not fit:
        need = max(needs)
        raise too_much(need, need.host, free, "are free")
    if fit < jobs and options.jobs is not None:
        raise SpecError(
            f"jobs={options.jobs}: {fit} of these runs at a time fit into the free memory. "
            f"Try: --jobs {fit}, or --force"
        )
    return fit
