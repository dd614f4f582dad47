"""What writing every round and evaluation to the database costs, as a share of a run."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from dynabro_cli import RunSpec, simulate
from dynabro_cli.events import Started
from dynabro_cli.store.engine import open_for_writing
from dynabro_cli.store.recorder import Recorder


def measure(task: str, budget: int, repeats: int, data_dir: Path | None) -> str:
    """Run one spec with and without a recorder, in turn; return the medians, their ratio, and the recorder's own share."""
    spec = RunSpec(task=task, method="sgd", budget=budget)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    shares = []
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(repeats):
            for on in (False, True):
                recorder = Recorder(open_for_writing(f"{folder}/{repeat}.db")) if on else None
                total, writing = _time(spec, recorder, data_dir)
                seconds[on].append(total)
                if on:
                    shares.append(writing / total)
    off, on_ = (statistics.median(seconds[key]) for key in (False, True))
    return (
        f"{task}, sgd, budget {budget}, {repeats} repeats: {off:.2f} s without, {on_:.2f} s with the database, "
        f"ratio {on_ / off:.3f}; inside the recorder: {statistics.median(shares):.2%}"
    )


def _time(spec: RunSpec, recorder: Recorder | None, data_dir: Path | None) -> tuple[float, float]:
    """Seconds from the first event to the last, and those of them spent in the recorder."""
    writing = begin = 0.0
    for event in simulate(spec, data_dir=data_dir):
        if isinstance(event, Started):
            begin = time.perf_counter()
        if recorder is not None:
            before = time.perf_counter()
            recorder.record(event)
            writing += time.perf_counter() - before
    return time.perf_counter() - begin, writing
