"""Processor time of commands that do not compute, compared with the import of the packages that
print.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import MappingProxyType

from benchmarks.measuring import machine, spread, table
from dynabro_cli.core.errors import DynabroError

ROOT = Path(__file__).parents[1]
STORED = ROOT / "results.db.example"
SWEEP = ROOT / "sweeps" / "demo.yaml"
IMPORTS = "import typer, rich, sqlalchemy"
FLOOR = f'python -c "{IMPORTS}"'
RUN = (
    "run --task quadratic --method sgd --attack none --budget 20 --compile off --threads 1 --quiet"
)
"""The run that ``show`` and ``logs`` read."""
TORCH = "import torch"
ROUND = """
from dynabro_cli import RunSpec, simulate
list(simulate(RunSpec(task="digits", model="mlp", method="momentum", budget=1), device="cpu"))
"""
"""Program that makes one round like a worker process."""
FIRST_RUN = "run --task digits --model mlp --method momentum --budget 1 --quiet"
MOST_IMPORTS = 10


def first_round(repeats: int, checkout: Path | None) -> str:
    """Time the import of torch, a first round, and a whole run of one round; return tables of the
    times and of imports.

    Args:
        repeats: The number of measurements, after one that does not count.
        checkout: Another checkout, for example of an earlier commit, measured in the same turns.
    """
    places = {"here": ROOT} | ({} if checkout is None else {"there": checkout.resolve()})
    commands = {
        TORCH: ["-c", TORCH],
        "first round": ["-c", ROUND],
        FIRST_RUN: ["-m", "dynabro_cli", *FIRST_RUN.split()],
    }
    found: dict[tuple[str, str], list[float]] = {
        (words, side): [] for words in commands for side in places
    }
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(repeats + 1):
            for (words, side), seconds in found.items():
                own = {"PYTHONPATH": str(places[side]), "DYNABRO_DB": f"{side}-{turn}.db"}
                spent = _seconds([sys.executable, *commands[words]], Path(folder), own)
                seconds += [spent] if turn else []
    floors = {side: spread(found[TORCH, side])[1] for side in places}
    rows = [
        [
            words,
            side,
            *(f"{value:.2f}" for value in spread(seconds)),
            spread(seconds)[1] / floors[side],
        ]
        for (words, side), seconds in found.items()
    ]
    times = table(
        ["", "checkout", "CPU, min, s", "median", "max", "over the import of torch"], rows
    )
    return f"{machine('cpu')}\n\n{times}\n\n{table(['import behind torch', 'ms'], _imports())}"


def _imports() -> list[list[object]]:
    """Return the slowest imports of a first round besides torch: of each package, its slowest
    module.
    """
    command = [
        sys.executable,
        "-X",
        "importtime",
        "-c",
        f"{TORCH}\nimport sys; sys.stderr.write('behind\\n')\n{ROUND}",
    ]
    text = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stderr.partition("behind\n")[2]
    lines = (
        line.removeprefix("import time:").split("|")
        for line in text.splitlines()
        if line.startswith("import time:")
    )
    largest = sorted(((int(all_of), name.strip()) for _, all_of, name in lines), reverse=True)[
        :MOST_IMPORTS
    ]
    return [[name, f"{microseconds / 1000:.0f}"] for microseconds, name in largest]


def measure(repeats: int, other: Path | None) -> str:
    """Call every command in turn on a copy of the example database with an additional run, and time
    its process.

    Args:
        repeats: The number of measurements of each command, after one that does not count.
        other: The Python of another environment with dynabro, measured in the same turns; None for
            only this environment.
    """
    pythons = {"here": sys.executable} | ({} if other is None else {"other": str(other.absolute())})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copyfile(STORED, folder / "results.db")
        shutil.copyfile(SWEEP, folder / SWEEP.name)
        _seconds(_command(RUN, sys.executable), folder)
        with closing(sqlite3.connect(folder / "results.db")) as database:
            (run,) = database.execute("SELECT MAX(id) FROM runs").fetchone()
        words_of = (FLOOR, *commands(run))
        calls = {
            (words, side): _command(words, python)
            for words in words_of
            for side, python in pythons.items()
        }
        found: dict[tuple[str, str], list[float]] = {call: [] for call in calls}
        for turn in range(repeats + 1):
            for call, command in calls.items():
                seconds = _seconds(command, folder)
                if turn:  # the first call writes bytecode
                    found[call].append(seconds)
    rows = []
    for (words, side), seconds_of in found.items():
        least, median, most = spread(seconds_of)
        ratio = median / spread(found[FLOOR, side])[1]
        rows.append(
            [
                words,
                *([] if other is None else [side]),
                *(f"{value:.2f}" for value in (least, median, most)),
                ratio,
            ]
        )
    header = [
        "dynabro",
        *([] if other is None else ["environment"]),
        "CPU, min, s",
        "median",
        "max",
        "ratio of medians",
    ]
    return f"{machine('cpu')}\n\n{table(header, rows)}"


def commands(run: int) -> tuple[str, ...]:
    """Return the commands, in the order of the table; ``run`` is the id of a run with a log."""
    return (
        "--help",
        "run --help",
        "list",
        "show aggregators/cwtm",
        f"show runs/{run}",
        "runs",
        "status",
        "query SELECT(1)",
        f"logs {run}",
        "sweep demo.yaml --dry-run",
        "export final --csv -",
    )


def _command(words: str, python: str) -> list[str]:
    return (
        [python, "-c", IMPORTS] if words == FLOOR else [python, "-m", "dynabro_cli", *words.split()]
    )


def _seconds(
    command: Sequence[str], folder: Path, settings: Mapping[str, str] = MappingProxyType({})
) -> float:
    """Run a command in ``folder`` and return the processor time of its process, in user and system
    mode.

    Raises:
        DynabroError: The command ended with an error.
    """
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=usual | {"DYNABRO_DB": "results.db"} | dict(settings),
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            raise DynabroError(
                f"{' '.join(command)}: {errors.read().decode(errors='replace').strip()}"
            )
    return usage.ru_utime + usage.ru_stime
