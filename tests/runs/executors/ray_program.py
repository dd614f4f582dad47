"""A program that makes runs of ``ray_faults`` on Ray: ``python ray_program.py DATABASE ADDRESS
ENTRY FAULTS JOBS SEEDS``.

It prints ``at work`` when every slot has got to the middle of a run, and at its end the outcomes,
or the error.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dynabro_cli.core.errors import DynabroError
from dynabro_cli.runs.executors._api import Options
from dynabro_cli.runs.executors.backends import ray
from dynabro_cli.runs.store.open.engine import open_for_writing
from tests.runs.executors.made_runs import execute_all, quadratic
from tests.runs.executors.program import Announcer


def main() -> None:
    database, address, entry, faults, jobs, seeds = sys.argv[1:]
    try:
        runs = [quadratic(seed) for seed in range(int(seeds))]
        options = Options(
            executor="ray", address=address, jobs=int(jobs), device="cpu", data_dir=Path(faults)
        )
        opened = ray.opened(options, len(runs), entry=f"tests.runs.executors.ray_faults:{entry}")
        outcomes = execute_all(
            runs, open_for_writing(database), options, Announcer(int(jobs)), opened=opened
        )
    except DynabroError as error:
        print(error)
        sys.exit(error.exit_code)
    print(*(outcome.status for outcome in outcomes))


if __name__ == "__main__":
    main()
