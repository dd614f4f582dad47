"""Fast or slow: the ceilings of the GPU, compared with the paper's cells."""

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
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu.data import has_mnist
from benchmarks.gpu.right import LIMIT, network
from benchmarks.gpu.steps import Check, Found, How
from benchmarks.gpu.whole import FOREVER, cell, simulations, smaller, stream
from benchmarks.measuring import synchronise
from dynabro_cli import RunSpec, events
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.gradients import at_once
from dynabro_cli.gradients.at_once import Geometry
from dynabro_cli.gradients.graphs import KernelCapture
from dynabro_cli.simulation import precision
from dynabro_cli.tasks import cifar10
from dynabro_cli.tasks import mnist as mnist_task

PRECISIONS = ("fp32", "tf32", "bf16")
WARM = 48
"""Rounds before the clock starts; they include compiling and capturing."""


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
    """Time matrix products in each precision, and a copy."""
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
    """Time the full MNIST cell, as ``dynabro run`` computes it, evaluations included."""
    for method in ("sgd", "momentum:beta=0.9", "dynabro"):
        for rule in ("cwtm", "gm"):
            more = {"budget": how.of(5000, 12), "eval_every": how.of(100, 6)}
            spec = cell("mnist", method, rule, attack="sf" if rule == "cwtm" else "alie", **more)
            spec = smaller(spec) if how.tiny else spec
            yield Check(f"{method}, {rule}", functools.partial(_full, spec, how), 60)


def _full(spec: RunSpec, how: How, compile: str = "auto") -> Found:  # noqa: A002
    before = time.perf_counter()
    started = evaluations = 0.0
    record: dict[str, Any] = {}
    last: events.Event | None = None
    rounds = 0
    run = stream(spec, how, compile=compile)
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
    accuracy, changed = getattr(last_but, "accuracy", None), getattr(last_but, "how", {})
    found: Found = {"whole s": total, "set-up s": started, "evaluations s": evaluations, "rounds": rounds, "accuracy": accuracy}
    return found | _how(record, changed) | {"images": "read" if has_mnist(how) else "made up"}


def _how(record: dict[str, Any], changed: dict[str, object]) -> Found:
    versions = json.loads(record["versions"]) | changed
    return {name: versions.get(name) for name in ("gradients", "graphs", "compile")}


def twice(how: How) -> Iterator[Check]:
    """Time whole runs on MNIST one after another in one process: with eager functions, compiled, and eager again."""
    more = {"budget": how.of(5000, 12), "eval_every": how.of(1000, 6)}
    spec = cell("mnist", "momentum:beta=0.9", "cwtm", **more)
    spec = smaller(spec) if how.tiny else spec
    for place, compiled in enumerate(("off", "on" if how.gpu else "off", "off"), 1):
        yield Check(f"run {place}, compile {compiled}", functools.partial(_with_graphs, spec, how, compiled), 120)


def _with_graphs(spec: RunSpec, how: How, compiled: str) -> Found:
    """Make a run; on a GPU a run without graphs is wrong."""
    found = _full(spec, how, compiled)
    return found | ({"ok": str(found["graphs"]).startswith("on")} if how.gpu else {})


def convolutions(how: How) -> Iterator[Check]:
    """Time the weight gradients of each convolution of the CIFAR-10 cell, in each way, by graph."""
    spec = resolve(cell("cifar10", "momentum:beta=0.9", "cwmed")).spec
    workers, samples = how.of(spec.workers, 3), how.of(spec.batch_size, 2)
    seen: list[tuple[nn.Conv2d, torch.Size]] = []
    model = network(str(spec.model), cifar10.SHAPE).eval()
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_pre_hook(lambda module, inputs: seen.append((module, inputs[0].shape[1:])))
    with torch.no_grad():
        model(torch.zeros(1, cifar10.SHAPE.channels, cifar10.SHAPE.height, cifar10.SHAPE.width))
    for name in reversed(PRECISIONS) if how.gpu else ("fp32",):
        for number, (layer, shape) in enumerate(seen, 1):
            title = f"{number}: {list(layer.weight.shape)} on {shape[1]} x {shape[2]}, {name}"
            yield Check(title, functools.partial(_ways_of, layer, shape, workers, samples, name, how), 30)


def _ways_of(layer: nn.Conv2d, shape: torch.Size, workers: int, samples: int, name: str, how: How) -> Found:
    """Time each way of a convolution's weight gradients, and compare it with the loop over workers."""
    device = torch.device(how.device)
    dtype = precision.apply(name, device)
    geometry = Geometry(list(layer.stride), [int(size) for size in layer.padding], list(layer.dilation), layer.groups)
    like, weight = tuple(layer.weight.shape), layer.weight.detach().to(device, dtype)
    x = torch.randn(workers * samples, *shape, device=device, dtype=dtype).contiguous(memory_format=torch.channels_last)
    y = torch.nn.functional.conv2d(x, weight, None, layer.stride, layer.padding, layer.dilation, layer.groups)  # type: ignore[arg-type]
    gy = torch.randn_like(y).contiguous(memory_format=torch.channels_last)
    capture = KernelCapture(device)
    found: Found = {"patches GB": at_once.bytes_of_patches(gy, x, like) / 1e9}
    expected = at_once.looped(gy, x, like, workers, geometry).float()
    torch.use_deterministic_algorithms(how.gpu, warn_only=True)
    for title, way in at_once.WAYS.items():
        try:
            compute = functools.partial(way, gy, x, like, workers, geometry)
            replay = capture(compute)[0] if how.gpu else compute
            found[f"{title} ms"] = 1000 * median_seconds(replay, how, how.of(5, 1))
            found[f"{title} differs"] = float((compute().float() - expected).norm() / expected.norm())
        except RuntimeError as error:  # the other ways are still timed
            found[f"{title} ms"] = f"{type(error).__name__}: {error}".splitlines()[0][:80]
    worst = max(float(value) for title, value in found.items() if title.endswith("differs"))  # type: ignore[arg-type]
    return found | {"ok": worst <= (2e-2 if name != "fp32" else LIMIT)}


def cifar(how: How) -> Iterator[Check]:
    """Time the CIFAR-10 cell, extrapolated from 300 rounds, in each precision; momentum also without compiled functions."""
    for name in reversed(PRECISIONS) if how.gpu else ("fp32",):
        for method in ("momentum:beta=0.9", "dynabro"):
            spec = cell("cifar10", method, "cwmed", precision=name, budget=8000)
            yield Check(f"{method}, {name}", functools.partial(_part, spec, how, how.of(300, 4), 40), 60)
        spec = cell("cifar10", "momentum:beta=0.9", "cwmed", precision=name, budget=8000)
        yield Check(f"momentum, {name}, compile off", functools.partial(_part, spec, how, how.of(300, 4), 20, "off"), 40)


def _part(spec: RunSpec, how: How, most: int, limit: float, compile: str = "auto") -> Found:  # noqa: A002
    """Time a run's rounds after the first ones, and extrapolate to its whole budget; one evaluation is timed separately."""
    spec = dataclasses.replace(smaller(spec), eval_every=2) if how.tiny else spec
    record: dict[str, Any] = {}
    warm, rounds, spent, first_spent = (WARM if not how.tiny else 1), 0, 0, 0
    begun = before = time.perf_counter()
    evaluation = 0.0
    with simulations() as made:
        for event in stream(spec, how, compile=compile):
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
        state = made[-1].how
    each = seconds / max(1, spent - first_spent)
    full = resolve(spec).spec.budget
    found: Found = {"rounds": rounds, "ms a computation": 1000 * each, "evaluation s": evaluation}
    found |= {"whole budget s": each * full, "computations/s": 1 / each if each else None}
    if how.gpu:
        found["peak GB"] = torch.cuda.max_memory_allocated(how.device) / 1e9
        torch.cuda.reset_peak_memory_stats(how.device)
    return found | _how(record, state)


def kernels(how: How) -> Iterator[Check]:
    """Measure kernels, copies and host time of a round, and the share of the ceiling that the gradients reach."""
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
    """Time the MNIST cell in each precision, compiled or not, with or without graphs."""
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
    """Make every capture fail before it begins."""
    before = KernelCapture.__call__

    def refuse(*_: Any) -> Any:
        raise RuntimeError("graphs are switched off")

    KernelCapture.__call__ = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        KernelCapture.__call__ = before  # type: ignore[method-assign]
