"""The host's share of a round, and the part of it that one graph of the server's function would save."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu.fast import WARM, median_seconds
from benchmarks.gpu.steps import Check, Found, How
from benchmarks.gpu.whole import cell, smaller, stream
from benchmarks.measuring import synchronise
from dynabro_cli import RunSpec, events
from dynabro_cli.gradients.graphs import KernelCapture
from dynabro_cli.simulation.loop import Simulation


def checks(how: How) -> Iterator[Check]:
    """Measure the time that the host needs to begin a round, and the time that one graph of the server function would save."""
    for task, method, rule in (("mnist", "momentum:beta=0.9", "cwtm"), ("mnist", "sgd", "gm"), ("cifar10", "sgd", "cwmed")):
        for compiled in ("on", "off") if how.gpu else ("off",):
            spec = cell(task, method, rule, budget=8000)
            spec = smaller(spec) if how.tiny else spec
            yield Check(f"{task}, {method}, {rule}, compile {compiled}", functools.partial(_host, spec, compiled, how), 60)


def _host(spec: RunSpec, compiled: str, how: How) -> Found:
    """Time rounds until the host has begun them, and until the GPU has made them; and the server's function as a graph."""
    asked: list[Any] = []
    with torch.no_grad(), _remembered(asked):
        run = stream(spec, how, compile=compiled)
        for event in run:
            if isinstance(event, events.RoundsDone) and event.totals.rounds >= how.of(WARM, 1):
                break
        simulation, answer, arguments = asked[-1]
        count = how.of(100, 2)
        synchronise(how.device)
        before = time.perf_counter()
        for _ in range(count):
            simulation._round()
        begun = time.perf_counter()
        synchronise(how.device)
        made = time.perf_counter()
        found: Found = {"host ms a round": 1000 * (begun - before) / count, "ms a round": 1000 * (made - before) / count}
        found["server ms"] = 1000 * median_seconds(lambda: answer(*arguments), how, how.of(50, 2))
        if how.gpu:
            replay, _ = KernelCapture(torch.device(how.device))(lambda: answer(*arguments).aggregate)
            found["server as a graph ms"] = 1000 * median_seconds(replay, how, 50)
    return found


@contextlib.contextmanager
def _remembered(asked: list[Any]) -> Iterator[None]:
    """Note the simulation, its server function and the function's arguments whenever it is called."""
    sent = Simulation._sent

    def remembering(simulation: Simulation, *arguments: Any) -> Any:
        server = simulation._server

        def answer(*given: Any) -> Any:
            asked[:] = [(simulation, server.answer, given)]
            return server.answer(*given)

        simulation._server = server._replace(answer=answer)
        try:
            return sent(simulation, *arguments)
        finally:
            simulation._server = server

    Simulation._sent = remembering  # type: ignore[method-assign]
    try:
        yield
    finally:
        Simulation._sent = sent  # type: ignore[method-assign]
