"""Simulations for the nodes of a Ray cluster in tests; the folder of data sets says what goes
wrong.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator

from dynabro_cli.core import events
from dynabro_cli.runs.executors import worker
from dynabro_cli.runs.executors.worker import Request, Simulate
from tests.runs.executors import faulty
from tests.runs.store.made import checkpointed, evaluated, finished, rounds, started, totals


def made_up() -> Simulate:
    """Simulation that makes up runs like ``faulty``."""

    def simulate(request: Request, wanted: Callable[[], bool]) -> Iterator[events.Event]:
        os.environ["FAULTS"] = str(request.data_dir)
        yield from faulty.simulate(request, wanted)

    return simulate


def half_way() -> Simulate:
    """Simulation that stops half-way until a checkpoint is requested, and reports where it is."""

    def simulate(request: Request, wanted: Callable[[], bool]) -> Iterator[events.Event]:
        print("on", request.device, "of GPUs", os.environ.get("CUDA_VISIBLE_DEVICES"))
        half = faulty.ROUNDS // 2
        if request.resume is None:
            yield started(request.key, **request.spec)
            yield rounds(0, half - 1)
            while not wanted():
                os.sched_yield()
            yield checkpointed(half)
        else:
            assert request.resume == b"state"
            yield events.Started(
                request.key, started(request.key, **request.spec).record, totals(half)
            )
        yield rounds(half, faulty.ROUNDS - 1)
        yield evaluated(faulty.ROUNDS)
        yield finished(faulty.ROUNDS)

    return simulate


def patient() -> Simulate:
    """Simulation of real runs that wait after their first checkpoint until nobody has locked the
    file ``gate``.
    """
    real = worker.simulation()

    def simulate(request: Request, wanted: Callable[[], bool]) -> Iterator[events.Event]:
        for event in real(request, wanted):
            yield event
            if (
                isinstance(event, events.Checkpointed)
                and request.resume is None
                and request.data_dir is not None
            ):
                with (request.data_dir / "gate").open() as gate:
                    fcntl.flock(gate, fcntl.LOCK_SH)

    return simulate


def of_another_version() -> Simulate:
    """Simulation that takes every spec for another run's spec."""
    real = worker.simulation()
    return lambda request, wanted: real(Request(**vars(request) | {"key": "0" * 64}), wanted)


def broken() -> Simulate:
    raise ImportError("no component of this name")
