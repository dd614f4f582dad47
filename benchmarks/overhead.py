"""Cost of a sweep besides its simulations: tiny runs by ``dynabro sweep``, and the same runs by
``simulate``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.measuring import machine, spread, table

ALONE = """
import sys
from dynabro_cli.experiment.grid.plan import plan
from dynabro_cli.simulation.setup import simulate_run
from dynabro_cli.experiment.grid.sweep_lookup import load_sweep
for run in plan(load_sweep(sys.argv[1])).runs:
    for _ in simulate_run(run, device="cpu", threads=1, compile="off"):
        pass
"""
HOW = ("--jobs", "1", "--threads", "1", "--device", "cpu", "--compile", "off", "--quiet")


class Cost(NamedTuple):
    """Seconds of wall clock and of processor time, children included."""

    wall: float
    cpu: float


def measure(task: str, runs: int, budget: int, repeats: int) -> str:
    """Make few and many runs in turn, with and without a sweep; the difference is the cost of a run
    without the start.

    Args:
        task: ``quadratic``, or any task with data that need no download.
        runs: The difference between many and few.
        budget: The budget of each run.
        repeats: The number of measurements.
    """
    found: dict[str, list[Cost]] = {"sweep": [], "simulate": []}
    with tempfile.TemporaryDirectory() as folder:
        few, many = (_sweep(Path(folder), task, budget, count) for count in (2, 2 + runs))
        for repeat in range(repeats):
            for name in found:
                costs = [
                    _time(name, sweep, Path(folder) / f"{name}-{repeat}.db")
                    for sweep in (few, many)
                ]
                found[name].append(
                    Cost(*((long - short) / runs for short, long in zip(*costs, strict=True)))
                )
    found["overhead"] = [
        Cost(*(own - alone for own, alone in zip(*pair, strict=True)))
        for pair in zip(found["sweep"], found["simulate"], strict=True)
    ]
    rows = [
        (
            f"{name}, {clock}",
            *(f"{1000 * value:.1f}" for value in spread([getattr(cost, clock) for cost in costs])),
        )
        for name, costs in found.items()
        for clock in Cost._fields
    ]
    header = [f"{task}, budget {budget}, {runs} runs, --jobs 1", "min, ms a run", "median", "max"]
    return f"{machine('cpu', 1)}\n\n{table(header, rows)}"


def _sweep(folder: Path, task: str, budget: int, runs: int) -> Path:
    """Write a sweep file with ``runs`` seeds of one small run."""
    path = folder / f"{runs}.yaml"
    path.write_text(
        f"name: overhead-{runs}\nbase: {{task: {task}, method: sgd, attack: sf, budget: "
        f"{budget}, eval_every: {budget}}}\n"
        f"seeds: 0..{runs - 1}\n"
    )
    return path


def _time(name: str, sweep: Path, database: Path) -> Cost:
    """Run all of a sweep file in a new process."""
    command = {
        "sweep": [
            *("-m", "dynabro_cli", "sweep", str(sweep), "--db", str(database), "--jobs", "1"),
            *("--threads", "1", "--quiet"),
        ],
        "simulate": ["-c", ALONE, str(sweep)],
    }
    before, began = os.times(), time.perf_counter()
    subprocess.run([sys.executable, *command[name]], check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - began, os.times()
    database.unlink(missing_ok=True)
    return Cost(
        wall,
        after.children_user + after.children_system - before.children_user - before.children_system,
    )
