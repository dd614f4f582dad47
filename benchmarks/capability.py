"""One run of each shipped sweep, with all vector instructions of the processor and without some of
them: the numbers that differ.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.measuring import chosen, machine
from dynabro_cli.core.errors import NotFoundError, SpecError
from dynabro_cli.experiment.build import data_directory
from dynabro_cli.experiment.complete import CompleteSpec
from dynabro_cli.experiment.grid.plan import plan
from dynabro_cli.experiment.grid.sweep_lookup import load_sweep, shipped

VARIABLE = "ATEN_CPU_CAPABILITY"
"""Torch's variable for the vector instructions that its own kernels may use."""
SMALL_BUDGET = 60
LEFT_OUT = "cifar10"
"""A task whose runs take hours on a CPU."""
PROGRAM = """
import json, sys
import torch
from dynabro_cli import RunSpec, simulate
from dynabro_cli.core import events
fields, place, threads = json.loads(sys.argv[1]), sys.argv[2] or None, int(sys.argv[3])
norms, end = [], None
for event in simulate(RunSpec.from_text(fields), data_dir=place, device="cpu", threads=threads):
    if isinstance(event, events.RoundsDone):
        norms += [repr(done.gradient_norm) for done in event.rounds]
    elif isinstance(event, (events.Finished, events.Diverged)):
        end = [type(event).__name__.lower(), event.accuracy, event.gap if event.loss is None else event.loss]
print(json.dumps([torch.backends.cpu.get_cpu_capability(), norms, *end]))
"""  # noqa: E501


def sweeps_of(names: Sequence[str]) -> list[str]:
    """Return the names of shipped sweeps, all except CIFAR-10 if no name is given.

    Raises:
        SpecError: A name is unknown.
    """
    return chosen(names, [name for name in shipped() if not name.startswith(LEFT_OUT)], "sweep")


def measure(
    names: Sequence[str], without: str, threads: int, data_dir: Path | None, small: bool
) -> Iterator[str]:
    """Yield a table line by line, cheapest run first.

    Args:
        names: The sweeps.
        without: The value of ``ATEN_CPU_CAPABILITY`` of the second run, such as ``avx2``.
        threads: CPU threads of a run.
        data_dir: Folder of data sets.
        small: True to cut the budget of each run to ``SMALL_BUDGET``.
    """
    cost_of = {name: _cheapest(name, data_dir) for name in names}
    header = ("sweep", "run", "rounds", "first other round", "{} end", "{} end", "apart by")
    yield machine(threads=threads)
    yield ""
    begun = False
    for name, (_, spec) in sorted(cost_of.items(), key=lambda item: item[1][0]):
        if small:
            budget = min(spec.budget, SMALL_BUDGET)
            spec = replace(spec, budget=budget, eval_every=min(spec.eval_every, budget))
        try:
            full, less = _both(spec, without, threads, data_dir)
        except NotFoundError as error:
            yield f"| {name} | {error} |" + " - |" * 5
            continue
        if not begun:
            begun = True
            yield f"| {' | '.join(header)} |".format(full[0], less[0])
            yield "| :-- | :-- | --: | --: | :-- | :-- | --: |"
        yield f"| {' | '.join((name, _named(spec), *_compared(full, less)))} |"


def _cheapest(name: str, data_dir: Path | None) -> tuple[float, CompleteSpec]:
    """Return the first of the runs of a sweep that compute the fewest samples, and their number."""
    runs = plan(load_sweep(name), data_dir).runs
    specs = [run.spec for run in runs if not run.spec.task.startswith(LEFT_OUT)]
    costs = [spec.budget * (spec.batch_size or 1) * spec.workers for spec in specs]
    # a network costs more for each sample, by far
    heavy = {"mnist": 300, "text-file": 30, "digits": 3}.get(specs[0].task.partition(":")[0], 1)
    return min(costs) * heavy, specs[costs.index(min(costs))]


def _named(spec: CompleteSpec) -> str:
    chain = (
        spec.aggregator
        if spec.pre_aggregators in ("none", "", None)
        else (f"{spec.pre_aggregators}+{spec.aggregator}")
    )
    return f"{spec.task}, {spec.method}, {chain}, {spec.attack}, {spec.switching}"


def _both(
    spec: CompleteSpec, without: str, threads: int, data_dir: Path | None
) -> tuple[list[Any], list[Any]]:
    """Make a run twice, in two processes at the same time: as it is, and with fewer instructions.

    Raises:
        NotFoundError: The data are missing.
        SpecError: The run failed.
    """
    fields = {name: str(value) for name, value in asdict(spec).items() if value is not None}
    folder = "" if data_dir is None else str(data_directory(data_dir))
    command = [sys.executable, "-c", PROGRAM, json.dumps(fields), folder, str(threads)]
    usual = {name: value for name, value in os.environ.items() if name != VARIABLE}
    started = [
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for environment in (usual, usual | {VARIABLE: without})
    ]
    answers = []
    for process in started:
        out, problem = process.communicate()
        if process.returncode:
            line = (problem.strip().splitlines() or ["?"])[-1]
            raise (NotFoundError if "NotFoundError" in line else SpecError)(line)
        answers.append(json.loads(out.splitlines()[-1]))
    return answers[0], answers[1]


def _compared(full: list[Any], less: list[Any]) -> tuple[str, ...]:
    """Return the rounds, the first round with another gradient norm, both ends, and the relative
    difference of the last losses or gaps.
    """
    pairs = zip(full[1], less[1], strict=False)
    first = next((str(number) for number, (a, b) in enumerate(pairs, 1) if a != b), "none")
    ends = [
        f"{status} {number!r}"
        for _, _, status, accuracy, loss in (full, less)
        for number in (loss if accuracy is None else accuracy,)
    ]
    a, b = full[4], less[4]
    apart = "0" if a == b else f"{abs(a - b) / max(abs(a), abs(b)):.1e}" if a and b else "-"
    rounds = len(full[1]), len(less[1])
    counts = str(rounds[0]) if rounds[0] == rounds[1] else f"{rounds[0]}, {rounds[1]}"
    return counts, first, *ends, apart
