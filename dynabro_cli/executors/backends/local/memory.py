"""Number of runs at a time that fit into this machine's free memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from dynabro_cli.errors import SpecError
from dynabro_cli.executors._api import Options
from dynabro_cli.experiment.build import data_directory
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.experiment.spec import fields
from dynabro_cli.machine.devices import pick_device
from dynabro_cli.simulation.need import Need, need_of, too_much

LIKE = tuple(name for name, one in fields().items() if one.memory)
"""The fields that the memory of a run depends on."""


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
    gpu, folder = pick_device(options.device).type == "cuda", data_directory(options.data_dir)
    known: dict[tuple[object, ...], Need] = {}
    needs = []
    for run in runs:
        like = tuple(getattr(run.spec, name) for name in LIKE)
        if like not in known:
            known[like] = need_of(run.with_data(folder), gpu=gpu, compiles=options.compile != "off")
        needs.append(known[like])
    return needs
