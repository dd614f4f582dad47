"""A program that makes runs of ``faulty`` in worker processes: ``python program.py DATABASE JOBS
SEEDS``.

It prints ``at work`` when every slot has got to the middle of a run, and at its end the outcomes,
or the error. With the folder ``first`` in ``PYTHONPATH``, Python says in its worker processes that
the system is ``PRETEND``; with ``EARLY`` Ctrl-C comes while they start.
"""

from __future__ import annotations

import sys


class Announcer:
    """Progress that reports when all slots are in the middle of a run."""

    def __init__(self, slots: int) -> None:
        self._waiting = set(range(slots))

    def started(self, slot: int, run: object) -> None:
        pass

    def event(self, slot: int, run: object, event: object) -> None:
        if type(event).__name__ == "RoundsDone":
            self._waiting.discard(slot)
            if not self._waiting:
                print("at work", flush=True)

    def ended(self, slot: int, outcome: object) -> None:
        pass

    def waiting(self, runs: int) -> None:
        pass


def main() -> None:
    from dynabro_cli.core.errors import DynabroError
    from dynabro_cli.runs.executors._api import Options
    from dynabro_cli.runs.store.open.engine import open_for_writing
    from tests.runs.executors.made_runs import execute_all, quadratic

    database, jobs, seeds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    runs = [quadratic(seed) for seed in range(seeds)]
    options = Options(jobs=jobs, device="cpu")
    try:
        outcomes = execute_all(
            runs,
            open_for_writing(database),
            options,
            Announcer(jobs),
            worker="tests.runs.executors.faulty:serve",
        )
    except DynabroError as error:
        print(error)
        sys.exit(error.exit_code)
    print(*(outcome.status for outcome in outcomes))


if __name__ == "__main__":
    main()
