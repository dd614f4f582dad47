"""A whole run, evaluations included: the cost of writing it to the database, and of its
evaluations.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.measuring import machine, table
from dynabro_cli import RunSpec, simulate
from dynabro_cli.core.events import Evaluated, Started
from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.write.recorder import Recorder


class Times(NamedTuple):
    """Seconds from the first event to the last, and the seconds in the recorder and in
    evaluations.
    """

    total: float
    recorder: float
    evaluations: float


def measure(
    spec: RunSpec, repeats: int, data_dir: Path | None, device: str, threads: int | None
) -> str:
    """Run ``spec`` with and without a recorder, in turn; return the medians, their ratio, and the
    shares of a run.
    """
    times: dict[bool, list[Times]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(repeats):
            for on in (False, True):
                recorder = Recorder(open_for_writing(f"{folder}/{repeat}.db")) if on else None
                times[on].append(_time(spec, recorder, data_dir, device, threads))
    off, on_ = (statistics.median(run.total for run in times[key]) for key in (False, True))
    every = times[False] + times[True]
    row = [
        *(f"{spec.task}, {spec.method}, budget {spec.budget}", off, on_, on_ / off),
        f"{statistics.median(run.recorder / run.total for run in times[True]):.2%}",
        f"{statistics.median(run.evaluations / run.total for run in every):.1%}",
    ]
    header = ["run", "without database, s", "with, s", "ratio", "in the recorder", "in evaluations"]
    return f"{machine(device, threads)}\n\n{table(header, [row])}"


def _time(
    spec: RunSpec,
    recorder: Recorder | None,
    data_dir: Path | None,
    device: str,
    threads: int | None,
) -> Times:
    """Run ``spec`` once; the time between an event and a following ``Evaluated`` is the
    evaluation's time.
    """
    writing = evaluating = 0.0
    begin = last = time.perf_counter()
    for event in simulate(spec, data_dir=data_dir, device=device, threads=threads):
        now = time.perf_counter()
        if isinstance(event, Started):
            begin = now
        elif isinstance(event, Evaluated):
            evaluating += now - last
        if recorder is not None:
            recorder.record(event)
        last = time.perf_counter()
        writing += last - now
    return Times(last - begin, writing, evaluating)
