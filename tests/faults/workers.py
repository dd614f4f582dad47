"""Worker processes that make real runs, and go wrong in the middle of those that ``FAULTS`` names.

``FAULTS`` is a folder. A file in it named ``TASK SEED`` holds a fault, and is removed by the
process that goes wrong. Where there is one named ``early``, every process is killed before the
first event of its first run.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dynabro_cli.core.events import Checkpointed, Event
from dynabro_cli.runs.executors.worker import Request, answer, simulation

CHECKPOINTS = 2
"""Number of checkpoints that a run sends before it goes wrong."""


def faulty(connection: Connection) -> None:
    """Answer requests with simulations, some of which go wrong."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    simulate = simulation()

    def simulate_until_it_goes_wrong(
        request: Request, wanted: Callable[[], bool]
    ) -> Iterator[Event]:
        left = CHECKPOINTS
        if (Path(os.environ["FAULTS"]) / "early").exists():
            go_wrong("kill")
        for event in simulate(request, wanted):
            yield event
            left -= isinstance(event, Checkpointed)
            if not left and (fault := planned(request.spec)):
                go_wrong(fault)

    answer(connection, simulate_until_it_goes_wrong)


def stuck(connection: Connection) -> None:
    """Answer requests with simulations that get stuck in a round."""
    stuck_in(300)
    answer(connection, simulation())


def planned(spec: dict[str, Any]) -> str | None:
    """The fault of a run, which comes once."""
    path = Path(os.environ["FAULTS"]) / f"{spec['task']} {spec['seed']}"
    try:
        fault = path.read_text()
        path.unlink()
    except FileNotFoundError:
        return None
    return fault


def go_wrong(fault: str) -> None:
    if fault == "segfault":
        ctypes.string_at(0)
    if fault == "exit":
        os._exit(0)
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "memory":
        import torch

        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, hard))
        try:
            torch.ones(2**30)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    if fault == "hang":
        os.read(os.pipe()[0], 1)
    if fault == "raise":
        raise ValueError("bang")


def stuck_in(round_: int) -> None:
    """Have every simulation of this process get into one round that takes for ever, in native code
    that sees no signals.
    """
    from dynabro_cli.simulation.loop import Simulation

    usual = Simulation._round

    def round_or_sleep(self: Any) -> Any:
        if self._state.round == round_:
            os.write(2, b"stuck\n")
            libc = ctypes.CDLL(None)
            blocked = (ctypes.c_ulong * 16)(*[2**64 - 1] * 16)
            # as a kernel that does not return: no signal interrupts it
            libc.pthread_sigmask(0, blocked, None)
            while True:
                libc.sleep(1000)
        return usual(self)

    Simulation._round = round_or_sleep  # type: ignore[method-assign]
