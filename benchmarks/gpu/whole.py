"""Right or wrong: whole runs. Hidden waits, repeats, methods against the CPU, and runs that are stopped and resumed."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import math
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.gpu.data import images_of
from benchmarks.gpu.steps import Check, Found, How
from dynabro_cli import RunSpec, events
from dynabro_cli.experiment.resolve import REGISTRIES, resolve
from dynabro_cli.simulation.loop import Simulation
from dynabro_cli.simulation.setup import simulate_run

FOREVER = 10**9
METHODS = {"momentum": "momentum:beta=0.9", "dynabro": "dynabro:filter=option1", "local-steps": "local-steps:H=2"}
"""Variants with more work than the defaults."""
LEGAL = ("records.py", "graphs.py")
"""Files whose lines may let the host wait."""
FIRST = 10
"""Number of rounds that are compared one by one; later rounds differ because rounding grows."""


def cell(task: str, method: str, aggregator: str, **more: Any) -> RunSpec:
    """Return a cell of the paper's figures, without evaluations unless requested."""
    attack = {"mnist": "sf", "cifar10": "ipm", "digits": "sf"}[task]
    defaults = {"attack": attack, "switching": "periodic:K=20", "eval_every": FOREVER}
    return RunSpec(task=task, method=method, aggregator=aggregator, **(defaults | more))


def smaller(spec: RunSpec) -> RunSpec:
    """Return a spec with a few workers and samples."""
    return dataclasses.replace(spec, workers=5, byzantine=1, batch_size=4)


def stream(spec: RunSpec, how: How, device: str | None = None, compile: str = "auto") -> Iterator[events.Event]:  # noqa: A002
    """Simulate a run on real images if they exist, otherwise on artificial images."""
    images = images_of(str(spec.task), how)
    yield from simulate_run(resolve(spec), device=device or how.device, compile=compile, load=lambda *_: images)


@contextlib.contextmanager
def simulations() -> Iterator[list[Simulation]]:
    """Note the simulations that are made, to examine a run that was broken off."""
    made: list[Simulation] = []
    begin = Simulation.__init__

    def noted(simulation: Simulation, *arguments: Any) -> None:
        begin(simulation, *arguments)
        made.append(simulation)

    with patch.object(Simulation, "__init__", noted):
        yield made


def rounds_of(events_: Iterator[events.Event], most: int, seconds: float = math.inf) -> list[events.Round]:
    """Return the first rounds of a run, fewer if they take longer than ``seconds``."""
    found: list[events.Round] = []
    end = time.monotonic() + seconds
    for event in events_:
        if isinstance(event, events.RoundsDone):
            found += event.rounds
            if len(found) >= most or time.monotonic() > end:
                break
    return found[:most]


def waiting(how: How) -> Iterator[Check]:
    """Check rounds of every method: the host must not wait for the device."""
    for name in REGISTRIES["methods"].entries():
        for rule in ("cwtm", "gm") if name in ("sgd", "dynabro") else ("cwtm",):
            yield Check(f"{name}, {rule}", functools.partial(_waiting, name, rule, how))
    yield Check("cnn-cifar, momentum, cwtm", functools.partial(_waiting, "momentum", "cwtm", how, "cifar10"))


def _waiting(name: str, rule: str, how: How, task: str = "digits") -> Found:
    """Count synchronisations, by the line of dynabro that causes them.

    Reading 16 rounds at once is one legal synchronisation; another is the capture of a shape at its second use.
    """
    if not how.gpu:
        return {"left out": "no GPU"}
    rule = "mean" if name in ("byzantine-sgd", "safeguard") else rule
    run = stream(cell(task, METHODS.get(name, name), rule, budget=5000), how, compile="off")
    rounds_of(run, 33)  # every shape has been captured, or its capture has failed
    places: collections.Counter[str] = collections.Counter()

    def note(message: Any, category: Any, filename: str, lineno: int, *_: Any) -> None:
        if "prototype" not in str(message):  # the first warning of this mode says what it is
            frame: Any = sys._getframe()
            while frame is not None and "dynabro_cli" not in frame.f_code.co_filename:
                frame = frame.f_back
            where = "elsewhere" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            places[where] += 1

    count = 0
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for event in itertools.islice(run, 4):
                count += len(event.rounds) if isinstance(event, events.RoundsDone) else 0
        finally:
            torch.cuda.set_sync_debug_mode("default")
    hidden = {place: times for place, times in places.items() if not place.startswith(LEGAL)}
    return {"rounds": count, "waits": sum(places.values()), "places": dict(places), "ok": not hidden}


def repeats(how: How) -> Iterator[Check]:
    """Check two runs of one spec: every number of every event is equal, bit for bit."""
    for task, method, rule in (
        ("mnist", "momentum:beta=0.9", "cwtm"),
        ("mnist", "dynabro", "gm"),
        ("cifar10", "sgd", "nnm+cwmed"),
    ):
        yield Check(f"{task}, {method}, {rule}", functools.partial(_repeats, task, method, rule, how))


def _repeats(task: str, method: str, rule: str, how: How) -> Found:
    *chain, name = rule.split("+")
    budget = how.of(64, 8)
    spec = cell(task, method, name, pre_aggregators="+".join(chain) or "none", budget=budget, eval_every=budget // 2)
    spec = smaller(spec) if how.tiny else spec
    first, second = ([event for event in stream(spec, how) if not isinstance(event, events.Started)] for _ in range(2))
    different = [place for place, pair in enumerate(zip(first, second, strict=True)) if repr(pair[0]) != repr(pair[1])]
    return {"events": len(first), "different": len(different), "ok": not different}


def methods(how: How) -> Iterator[Check]:
    """Check 200 rounds of each method on digits, on the device and on the CPU."""
    for name in REGISTRIES["methods"].entries():
        yield Check(name, functools.partial(_method, METHODS.get(name, name), how))


def _method(text: str, how: How) -> Found:
    most = how.of(200, 20)
    judges = text.startswith(("byzantine-sgd", "safeguard"))
    spec = cell("digits", text, "mean" if judges else "cwtm", budget=5000)
    spec = smaller(spec) if how.tiny else spec
    cpu = rounds_of(stream(spec, how, "cpu", compile="off"), most, 20)
    ours = rounds_of(stream(spec, how, compile="off"), len(cpu))
    errors = [
        abs(one.gradient_norm - other.gradient_norm) / max(abs(other.gradient_norm), 1e-30)
        for one, other in zip(ours, cpu, strict=True)
    ]
    plans = all(
        (one.cost, one.byzantine, one.level) == (other.cost, other.byzantine, other.level)
        for one, other in zip(ours, cpu, strict=True)
    )
    finite = all(math.isfinite(error) for error in errors)
    first = max(errors[:FIRST])
    found: Found = {
        "rounds": len(ours),
        "first rounds": first,
        "limit": 1e-3,
        "median of all": sorted(errors)[len(errors) // 2],
    }
    return found | {"ok": first <= 1e-3 and plans and finite}


def stopping(how: How) -> Iterator[Check]:
    """Check that a run that gets SIGTERM and is resumed ends like an undisturbed run."""
    yield Check("SIGTERM and resume", functools.partial(_stopping, how), 85)


def _stopping(how: How) -> Found:
    budget = how.of(3000, 300)
    with tempfile.TemporaryDirectory() as folder:
        results = {}
        for name in ("alone", "stopped"):
            database = str(Path(folder) / f"{name}.db")
            command = [sys.executable, "-m", "dynabro_cli", "run", "--task", "digits", "--method", "momentum"]
            command += ["--device", how.device, "--budget", str(budget), "--db", database]
            interrupted = 0
            if name == "stopped":
                interrupted = _interrupt(command, database)
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            if ended.returncode:
                return {"ok": False, "error": ended.stderr[-400:]}
            results[name] = _result(database)
    same = results["alone"] == results["stopped"]
    return {"interrupted": bool(interrupted), "same numbers": same, "ok": same and bool(interrupted)}


def _interrupt(command: list[str], database: str) -> int:
    """Stop a run as soon as it has rounds in the database; return its exit code."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while child.poll() is None:
        time.sleep(0.05)
        if Path(database).exists() and _result(database):
            child.send_signal(signal.SIGTERM)
            break
    return child.wait()


def _result(database: str) -> list[tuple[Any, ...]]:
    try:
        with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
            return list(
                connection.execute("SELECT round, test_accuracy, test_loss, train_loss FROM evaluations ORDER BY round")
            )
    except sqlite3.Error:
        return []
