"""Number of runs at a time that fit into the free memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from dynabro_cli.errors import SpecError
from dynabro_cli.executors._api import Options
from dynabro_cli.experiment.build import data_directory
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.experiment.spec import fields
from dynabro_cli.grid.forecast import usual_jobs
from dynabro_cli.machine.cores import cores
from dynabro_cli.machine.devices import pick_device
from dynabro_cli.simulation.need import Need, need_of
from dynabro_cli.simulation.room import too_much
from dynabro_cli.store.repetition import stand

LIKE = tuple(name for name, one in fields().items() if one.memory)
"""The fields that the memory of a run depends on."""


def with_room(runs: Sequence[Run], options: Options, database: str, free: float | None) -> Options:
    """Return the options with as many jobs as fit into this machine's memory, each in a process, whichever runs meet.

    The process that uses a GPU checks the GPU's memory itself.

    Args:
        runs: The runs.
        options: The options.
        database: The database: stored runs are not made.
        free: Bytes of free memory, before any process of a run has started; None if unknown.

    Raises:
        SpecError: A single run does not fit, or ``options`` ask for more runs at a time than fit.
        DynabroError: The file is not a dynabro database, or cannot be read.
    """
    standing = stand(database, options.entry, options.rerun)[1]
    settled = ("stored",) if options.retry_failed else ("stored", "failed")
    left = [run for run in runs if standing.of(run.key) not in settled]
    jobs = min(options.jobs or usual_jobs(options.device, cores(), options.jobs_per_gpu), len(left))
    if not left or free is None:
        return options
    fit = _fitting(left, jobs, options, free)
    if fit == jobs:
        return options
    if not fit:
        need = max(need.within(free) for need in _needs(left, options))
        raise too_much(need, need.host, free, "are free")
    if options.jobs is None:
        return replace(options, jobs=fit)
    raise SpecError(
        f"jobs={options.jobs}: {fit} of these runs at a time fit into the free memory. Try: --jobs {fit}, or --force"
    )


def _fitting(runs: Sequence[Run], jobs: int, options: Options, free: float) -> int:
    """Return how many runs at a time, at most ``jobs``, fit in any combination: the largest ones together."""
    largest = sorted((need.within(free).host for need in _needs(runs, options)), reverse=True)[:jobs]
    return sum(total <= free for total in itertools.accumulate(largest))


def _needs(runs: Sequence[Run], options: Options) -> list[Need]:
    gpu, folder = pick_device(options.device).type == "cuda", data_directory(options.data_dir)
    known: dict[tuple[object, ...], Need] = {}
    needs = []
    for run in runs:
        like = tuple(getattr(run.spec, name) for name in LIKE)
        if like not in known:
            known[like] = need_of(run.with_data(folder), gpu=gpu, compiles=options.compile != "off")
        needs.append(known[like])
    return needs
