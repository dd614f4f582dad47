"""The loop of a sweep for any executor: it takes turns until all runs are done, a failure ends it, or a signal arrives."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from dynabro_cli.executors._api import Outcome
from dynabro_cli.executors.interruptions import Interrupted, Interruptions
from dynabro_cli.executors.ledger import Ledger

LEAVE_SECONDS = 3.0
"""Seconds for runs in progress, after a signal, to finish a round and hand over a checkpoint."""


def drive(ledger: Ledger, turn: Callable[[Interruptions], bool], leave: Callable[[float], None]) -> list[Outcome]:
    """Take turns until there is nothing to wait for; return the outcomes of the runs.

    Args:
        ledger: The runs.
        turn: Starts runs and handles their messages; returns True if there was anything to wait for.
        leave: Ends and stores all runs in progress, after a number of seconds for handing over checkpoints.

    Raises:
        InterruptedRunError: Ctrl-C.
        PreemptedError: SIGTERM.
        DynabroError: An error of ``turn``, after all runs have been left.
    """
    with Interruptions() as interruptions:
        try:
            while not ledger.failed_fast and turn(interruptions):
                pass
            leave(0)
        except Interrupted:
            leave(LEAVE_SECONDS)
            raise interruptions.error(
                f"runs stored as interrupted: {ledger.interrupted}; the same command resumes from here"
            ) from None
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is reported
                leave(0)
            raise
    return ledger.outcomes
