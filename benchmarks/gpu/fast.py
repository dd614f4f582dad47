"""Fast or slow: the ceilings of the GPU, and what the paper's cells take beside them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu.right import network
from benchmarks.gpu.steps import Check, Found, How
from benchmarks.gpu.whole import FOREVER, cell, smaller, stream
from benchmarks.measuring import synchronise
from dynabro_cli import RunSpec, events
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.gradients import graphs
from dynabro_cli.simulation import precision
from dynabro_cli.tasks import cifar10
from dynabro_cli.tasks import mnist as mnist_task

PRECISIONS = ("fp32", "tf32", "bf16")
WARM = 48
"""Rounds before the clock starts: compiling and capturing are among them."""


def median_seconds(call: Callable[[], object], how: How, repeats: int = 10) -> float:
    """Return the median seconds of a call, after three calls to warm up."""
    times = []
    for turn in range(repeats + 3):
        synchronise(how.device)
        before = time.perf_counter()
        call()
        synchronise(how.device)
        if turn >= 3:
            times.append(time.perf_counter() - before)
    return statistics.median(times)


def ceilings(how: How) -> Iterator[Check]:
    """Matrix products in each precision, and a copy."""
    for name in PRECISIONS if how.gpu else ("fp32", "bf16"):
        yield Check(f"product, {name}", functools.partial(_product, name, how), 20)
    yield Check("copy", functools.partial(_copy, how), 20)


def _product(name: str, how: How) -> Found:
    dtype = precision.apply(name, torch.device(how.device))
    size = how.of(8192, 64)
    left, right = (torch.randn(size, size, device=how.device, dtype=dtype) for _ in range(2))
    seconds = median_seconds(lambda: left @ right, how)
    return {"TFLOP/s": 2 * size**3 / seconds / 1e12, "ms": 1000 * seconds}


def _copy(how: How) -> Found:
    source = torch.randn(how.of(1 << 30, 1 << 10), device=how.device)
    target = torch.empty_like(source)
    seconds = median_seconds(lambda: target.copy_(source), how)
    return {"TB/s": 8 * source.numel() / seconds / 1e12, "ms": 1000 * seconds}


def mnist(how: How) -> Iterator[Check]:
    """The MNIST cell in full, as ``dynabro run`` computes it, evaluations included."""
    for method in ("sgd", "momentum:beta=0.9", "dynabro"):
        for rule in ("cwtm", "gm"):
            more = {"budget": how.of(5000, 12), "eval_every": how.of(100, 6)}
            spec = cell("mnist", method, rule, attack="sf" if rule == "cwtm" else "alie", **more)
            spec = smaller(spec) if how.tiny else spec
            yield Check(f"{method}, {rule}", functools.partial(_full, spec, how), 60)


def _full(spec: RunSpec, how: How) -> Found:
    before = time.perf_counter()
    started = evaluations = 0.0
    record: dict[str, Any] = {}
    last: events.Event | None = None
    rounds = 0
    run = stream(spec, how)
    while True:
        turn = time.perf_counter()
        last_but = last
        last = next(run, None)
        now = time.perf_counter()
        if last is None:
            break
        if isinstance(last, events.Started):
            started, record = now - before, last.record
        elif isinstance(last, events.Evaluated):
            evaluations += now - turn
        elif isinstance(last, events.RoundsDone):
            rounds += len(last.rounds)
    total = time.perf_counter() - before
    accuracy = getattr(last_but, "accuracy", None)
    return {"whole s": total, "set-up s": started, "evaluations s": evaluations, "rounds": rounds, "accuracy": accuracy} | _how(
        record
    )


def _how(record: dict[str, Any]) -> Found:
    versions = json.loads(record["versions"])
    return {name: versions.get(name) for name in ("gradients", "graphs", "compile")}


def cifar(how: How) -> Iterator[Check]:
    """The CIFAR-10 cell, extrapolated from 300 rounds, in each precision; momentum without compiled functions, too."""
    for name in PRECISIONS if how.gpu else ("fp32",):
        for method in ("momentum:beta=0.9", "dynabro"):
            spec = cell("cifar10", method, "cwmed", precision=name, budget=8000)
            yield Check(f"{method}, {name}", functools.partial(_part, spec, how, how.of(300, 4), 40), 60)
        spec = cell("cifar10", "momentum:beta=0.9", "cwmed", precision=name, budget=8000)
        yield Check(f"momentum, {name}, compile off", functools.partial(_part, spec, how, how.of(300, 4), 20, "off"), 40)


def _part(spec: RunSpec, how: How, most: int, limit: float, compile: str = "auto") -> Found:  # noqa: A002
    """Time a run's rounds after the first ones, and extrapolate to its whole budget; one evaluation is timed beside."""
    spec = dataclasses.replace(smaller(spec), eval_every=2) if how.tiny else spec
    run = stream(spec, how, compile=compile)
    record: dict[str, Any] = {}
    warm, rounds, spent, first_spent = (WARM if not how.tiny else 1), 0, 0, 0
    begun = before = time.perf_counter()
    evaluation = 0.0
    for event in run:
        now = time.perf_counter()
        if isinstance(event, events.Started):
            record = event.record
        elif isinstance(event, events.Evaluated):
            evaluation = now - before
        elif isinstance(event, events.RoundsDone):
            rounds += len(event.rounds)
            spent = event.totals.budget_spent
            if not first_spent and rounds >= warm:
                first_spent, begun = spent, now
            elif rounds - warm >= most or (first_spent and now - begun > limit):
                break
        before = now
    seconds = before - begun if spent == first_spent else time.perf_counter() - begun
    each = seconds / max(1, spent - first_spent)
    full = resolve(spec).spec.budget
    found: Found = {"rounds": rounds, "ms a computation": 1000 * each, "evaluation s": evaluation}
    found |= {"whole budget s": each * full, "computations/s": 1 / each if each else None}
    if how.gpu:
        found["peak GB"] = torch.cuda.max_memory_allocated(how.device) / 1e9
        torch.cuda.reset_peak_memory_stats(how.device)
    return found | _how(record)


def kernels(how: How) -> Iterator[Check]:
    """Kernels, copies and host time of a round, and the share of the ceiling that the gradients reach."""
    for task, method, rule, name in (
        ("mnist", "sgd", "cwtm", "fp32"),
        ("mnist", "dynabro", "gm", "fp32"),
        ("cifar10", "momentum:beta=0.9", "cwmed", "tf32" if how.gpu else "fp32"),
        ("cifar10", "momentum:beta=0.9", "cwmed", "bf16" if how.gpu else "fp32"),
    ):
        spec = cell(task, method, rule, precision=name, budget=8000)
        yield Check(f"{task}, {method}, {rule}, {name}", functools.partial(_profile, spec, how), 50)


def _profile(spec: RunSpec, how: How) -> Found:
    if not how.gpu:
        return {"left out": "no GPU"}
    from torch.profiler import ProfilerActivity, profile

    run = stream(spec, how)
    for event in run:
        if isinstance(event, events.RoundsDone) and event.totals.rounds >= WARM:
            break
    rounds = computations = 0
    before, spent = time.perf_counter(), event.totals.budget_spent  # type: ignore[union-attr]
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as watch:
        for event in itertools.islice(run, 2):
            if isinstance(event, events.RoundsDone):
                rounds += len(event.rounds)
                computations = event.totals.budget_spent - spent
        torch.cuda.synchronize()
    wall = time.perf_counter() - before
    calls = watch.events() or []
    on_gpu = [call for call in calls if "CUDA" in str(call.device_type)]
    copies = [call for call in on_gpu if "Memcpy" in call.name]
    busy = sum(call.time_range.elapsed_us() for call in on_gpu) / 1e6
    host = sum(1 for call in calls if call.name in ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"))
    launches = sum(
        1 for call in calls if call.name in ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx")
    )
    return {
        "kernels a round": (len(on_gpu) - len(copies)) / rounds,
        "launches a round": launches / rounds,
        "graphs a round": sum(1 for call in calls if call.name == "cudaGraphLaunch") / rounds,
        "copies a round": len(copies) / rounds,
        "waits a round": host / rounds,
        "busy ms a round": 1000 * busy / rounds,
        "wall ms a round": 1000 * wall / rounds,
        "TFLOP/s while busy": _flops(spec) * computations / busy / 1e12 if busy else None,
    }


@functools.cache
def _forward(task: str, model: str) -> int:
    shape = {"mnist": mnist_task.SHAPE, "cifar10": cifar10.SHAPE}[task]
    with FlopCounterMode(display=False) as counter:
        network(model, shape)(torch.randn(2, shape.channels, shape.height, shape.width))
    return counter.get_total_flops() // 2


def _flops(spec: RunSpec) -> float:
    """Return the operations of a computation of all workers: three times a forward pass of each sample."""
    run = resolve(spec)
    return 3.0 * _forward(str(spec.task), str(run.spec.model)) * run.spec.workers * run.spec.batch_size


def ways(how: How) -> Iterator[Check]:
    """The MNIST cell by precision, compiled or not, with graphs or without."""
    for name in PRECISIONS if how.gpu else ("fp32",):
        for compiled in ("on", "off"):
            for graphed in (True, False):
                title = f"{name}, compile {compiled}, graphs {'on' if graphed else 'off'}"
                yield Check(title, functools.partial(_way, name, compiled, graphed, how), 60)


def _way(name: str, compiled: str, graphed: bool, how: How) -> Found:
    if how.tiny:
        compiled = "off"
    spec = cell("mnist", "momentum:beta=0.9", "cwtm", precision=name, eval_every=FOREVER, budget=5000)
    with contextlib.nullcontext() if graphed else _no_graphs():
        return _part(spec, how, how.of(800, 4), 15, compile=compiled)


@contextlib.contextmanager
def _no_graphs() -> Iterator[None]:
    """Have every capture fail."""
    before = graphs.capture_kernels

    def refuse(*_: Any) -> Any:
        raise RuntimeError("graphs are switched off")

    graphs.capture_kernels = refuse  # type: ignore[assignment]
    try:
        yield
    finally:
        graphs.capture_kernels = before
