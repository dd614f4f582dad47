"""The ``dynabro`` command in a process prepared for a fault: ``python -m tests.faults.prepared
WORDS``.

``PREPARE`` is a word for each fault that is prepared, with its number or name behind a colon.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import threading
from typing import Any

PR_CAPBSET_DROP = 24  # of Linux's prctl.h


def pages(number: str) -> None:
    """Limit every database to this number of pages: for SQLite, the disk is then full."""
    from sqlalchemy import Engine, event

    @event.listens_for(Engine, "connect")
    def limit(connection: Any, _record: object) -> None:
        connection.execute(f"PRAGMA max_page_count = {number}")


def file_size(number: str) -> None:
    """Limit every file to this number of bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(number), int(number)))


def ordinary_user(again: str) -> None:
    """Root obeys the permissions of files, as an ordinary user does: it gives up what lets it pass
    them, for good.
    """
    if os.geteuid() == 0 and not again:
        for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
            if ctypes.CDLL(None, use_errno=True).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
                raise OSError(ctypes.get_errno(), "prctl")
        os.environ["PREPARE"] = os.environ["PREPARE"].replace(
            "ordinary_user", "ordinary_user:again"
        )
        os.execv(sys.executable, [sys.executable, "-m", "tests.faults.prepared", *sys.argv[1:]])


def signal_at_import(text: str) -> None:
    """The process gets a signal when a module begins to be imported: ``NAME=SIGNAL``."""
    module, _, name = text.partition("=")

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "import" and arguments[0] == module and module not in seen:
            seen.append(module)
            os.kill(os.getpid(), signal.Signals["SIG" + name])

    seen: list[str] = []
    sys.addaudithook(audit)


def signal_at_lock(name: str) -> None:
    """The process gets a signal half a second after it begins to wait for its turn to write to the
    database.
    """
    from dynabro_cli.runs.store.open import connections

    usual = connections.begin_immediate

    def begin(connection: Any) -> None:
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.Signals["SIG" + name]))
        timer.daemon = True
        timer.start()
        usual(connection)

    connections.begin_immediate = begin


def workers(entry: str) -> None:
    """Worker processes serve with this function of ``workers.py``."""
    from dynabro_cli.runs.executors.backends.local import pool

    pool.WORKER = f"tests.faults.workers:{entry}"


def broken_round(round_: str) -> None:
    """The simulation in this process raises an exception in a round."""
    from dynabro_cli.simulation.loop import Simulation

    usual = Simulation._round

    def round_or_raise(self: Any) -> Any:
        if self._state.round == int(round_):
            raise ValueError("bang")
        return usual(self)

    Simulation._round = round_or_raise  # type: ignore[method-assign]


def main() -> None:
    from dynabro_cli.cli.app import main

    sys.argv[0] = "dynabro"
    main()


if __name__ == "__main__":
    for word in os.environ.get("PREPARE", "").split():
        name, _, argument = word.partition(":")
        globals()[name](argument)
    main()
