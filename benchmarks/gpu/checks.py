"""The checks of ``python -m benchmarks gpu``, in the order of its seven questions."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import importlib
import os
import platform
import shutil
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors import numpy as safetensors
from torch.profiler import ProfilerActivity, profile

from benchmarks import byzfl_loop, ours
from benchmarks.cells import FOREVER, cell, images_of, stream
from benchmarks.gpu.drive import FORK, Check, Outcome, forked
from benchmarks.iteration import cases
from benchmarks.measuring import synchronise
from benchmarks.processes import Block
from dynabro_cli import RunSpec, events
from dynabro_cli.gradients import graphs
from dynabro_cli.machine import mps
from dynabro_cli.simulation.loop import FLUSH_ROUNDS, Simulation

MACHINE, BITS, PROFILE, GRAPHS, CIFAR, BYZFL, MANY = QUESTIONS = (
    "1. Which machine is it?",
    "2. Are results with CUDA graphs equal to results without, bit for bit?",
    "3. Which kernels take the time of a round?",
    "4. What do graphs save on MNIST?",
    "5. How long does a computation of CIFAR-10 take?",
    "6. How much faster than ByzFL is an iteration, on the same GPU?",
    "7. How many runs on MNIST should share the GPU?",
)
MOMENTUM = "momentum:beta=0.9"
CHANGING = "bernoulli:p=0.05,D=10,delta_max=0.72"
"""Switching under which the number of computed gradients changes, because IPM needs no gradient of
a Byzantine worker.
"""
KERNELS = {
    "batch norm and dropout": "dynabro_cli.gradients.engine",
    "order statistics": "dynabro_cli.aggregators._order",
    "weighted means": "dynabro_cli.vectors.means",
}
"""Modules that use Triton's kernels if ``triton_works``, by what the kernels compute."""


@dataclasses.dataclass(frozen=True)
class How:
    """The device of the checks, and True for sizes that a CPU computes in seconds."""

    device: str = "cuda"
    tiny: bool = False

    @property
    def gpu(self) -> bool:
        """True if the device is a GPU."""
        return self.device.startswith("cuda")

    def of(self, full: Any, tiny: Any) -> Any:
        """Return one of two sizes."""
        return tiny if self.tiny else full

    def cell(self, task: str, method: str, rule: str, budget: int, **more: Any) -> RunSpec:
        """Return a cell, or one with few workers, samples and rounds."""
        if self.tiny:
            model = {"mnist": "mlp:hidden=8", "cifar10": "cnn-cifar:width=0.1"}[task]
            more |= {"workers": 5, "byzantine": 1, "batch_size": 2, "model": model}
            method = method.replace("dynabro", "dynabro:jmax=1")
        return cell(
            task, method, rule, budget=self.of(budget, min(budget, 3 * FLUSH_ROUNDS)), **more
        )

    def stream(self, spec: RunSpec, **more: Any) -> Iterator[events.Event]:
        """Simulate a cell; a small one without C++, which takes longer to compile than it saves."""
        how = {"compile": self.of("auto", "off")} | more
        return stream(spec, self.device, tiny=self.tiny, **how)


def checks(how: How) -> list[Check]:
    """Return all checks. The images are made here, once for all processes that are forked later."""
    for task in ("mnist", "cifar10"):
        images_of(task, how.tiny)
    precisions = ("bf16", "tf32", "fp32") if how.gpu else ("fp32",)
    mnist, cifar = ("mnist", MOMENTUM, "cwtm"), ("cifar10", MOMENTUM, "cwmed")
    made = [Check(MACHINE, "versions", 30, partial(machine, how))]
    for what, budget, more in (
        (mnist, 64, {}),
        (("mnist", "dynabro", "gm"), 400, {"attack": "alie"}),
        (("cifar10", "dynabro", "cwmed"), 200, {"switching": CHANGING}),
    ):
        made.append(
            Check(BITS, ", ".join(what), 30, partial(bits, how, how.cell(*what, budget, **more)))
        )
    for what, name in ((mnist, "fp32"), *((cifar, name) for name in precisions)):
        made.append(
            Check(
                PROFILE,
                f"{what[0]}, {name}",
                30,
                partial(kernels, how, how.cell(*what, 200, precision=name)),
            )
        )
    made.append(
        Check(GRAPHS, ", ".join(mnist), 60, partial(with_graphs, how, how.cell(*mnist, 3000)))
    )
    for name in precisions:
        find = partial(timed, how, how.cell(*cifar, 80, precision=name), FLUSH_ROUNDS)
        made.append(Check(CIFAR, f"{name}, momentum", 25, find))
        if how.gpu:
            separate = [(kernel, [kernel]) for kernel in KERNELS] if name == "bf16" else []
            for title, off in (*separate, ("any kernel", list(KERNELS))):
                made.append(
                    Check(
                        CIFAR,
                        f"{name}, momentum, without {title}",
                        25,
                        partial(without_kernels, off, find),
                    )
                )
    spec = how.cell("cifar10", "dynabro", "cwmed", 240, precision=precisions[0], switching=CHANGING)
    made.append(
        Check(CIFAR, f"{precisions[0]}, dynabro", 25, partial(timed, how, spec, FLUSH_ROUNDS))
    )
    made += [
        Check(BYZFL, "dynabro", 30, partial(our_loop, how)),
        Check(BYZFL, "ByzFL", 30, partial(byzfls_loop, how, False)),
    ]
    made.append(Check(BYZFL, "ByzFL without its data loading", 30, partial(byzfls_loop, how, True)))
    for service in (False, True) if how.gpu else (False,):
        for count in how.of((1, 4, 8, 12), (1, 2)):
            made.append(
                Check(
                    MANY,
                    f"{count} processes{', MPS' * service}",
                    45,
                    partial(together, how, count, service),
                )
            )
    return made


def machine(how: How) -> Outcome:
    """Name the machine and its versions, and make a first computation on the device."""
    right = (
        float(torch.arange(1000, dtype=torch.float64).to(how.device).square().sum()) == 332833500
    )
    found: Outcome = {
        "right sum": right,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
    found |= {
        "triton": metadata.version("triton") if find_spec("triton") else None,
        "cores": os.cpu_count(),
        "MPS": shutil.which(mps.CONTROL),
    }
    if how.gpu:
        free, total = torch.cuda.mem_get_info(how.device)
        found |= {
            "gpu": torch.cuda.get_device_name(how.device),
            "free GB": free / 1e9,
            "total GB": total / 1e9,
        }
    return found


def bits(how: How, spec: RunSpec) -> Outcome:
    """Compare the rounds and the last model of a run without graphs with a run with graphs, and
    this one with a repetition.
    """
    runs = []
    for values in (0, FOREVER, FOREVER):
        with patch.object(graphs, "GRAPH_VALUES", values):
            run = list(how.stream(spec, weights="end"))
        rounds = [
            repr(row)
            for event in run
            if isinstance(event, events.RoundsDone)
            for row in event.rounds
        ]
        tensors = safetensors.load(
            next(event.data for event in run if isinstance(event, events.Weights))
        )
        runs.append((rounds, {name: tensor.tobytes() for name, tensor in tensors.items()}))
    (plain, model), (graphed, graphed_model), again = runs
    different = [
        number
        for number, rows in enumerate(zip(plain, graphed, strict=True), 1)
        if rows[0] != rows[1]
    ]
    found: Outcome = {
        "rounds": len(plain),
        "that differ": len(different),
        "first": different[0] if different else None,
    }
    found |= {"same model": model == graphed_model, "same again": (graphed, graphed_model) == again}
    return found | {"graphs": getattr(run[-1], "how", {}).get("graphs")}


def kernels(how: How, spec: RunSpec) -> Outcome:
    """Profile 16 rounds by kernel, after measuring how long the host takes to begin a round while
    the GPU is idle.
    """
    begun, one_round = list[float](), Simulation._round

    def timed_round(simulation: Simulation) -> Any:
        before, first = time.perf_counter(), simulation._state.round % FLUSH_ROUNDS == 0
        record = one_round(simulation)
        if first:  # the rounds before it have been read, so the GPU had nothing to do
            begun.append(time.perf_counter() - before)
        return record

    run = (event for event in how.stream(spec) if isinstance(event, events.RoundsDone))
    with patch.object(Simulation, "_round", timed_round):
        for _ in range(how.of(5, 1)):
            next(run)
        before = time.perf_counter()
        next(run)
        wall = time.perf_counter() - before
    with profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if how.gpu else [])]
    ) as watch:
        next(run)
        synchronise(how.device)
    calls: dict[str, list[float]] = collections.defaultdict(list)
    for call in watch.events() or ():
        if ("CUDA" in str(call.device_type)) is how.gpu:
            calls[call.name].append(call.time_range.elapsed_us() / FLUSH_ROUNDS)
    largest = sorted(calls.items(), key=lambda item: -sum(item[1]))[:40]
    return {
        "ms a round": 1000 * wall / FLUSH_ROUNDS,
        "host ms to begin it": 1000 * statistics.median(begun[how.of(2, 0) :]),
        "kernels": sum(map(len, calls.values())) / FLUSH_ROUNDS,
        "ms of kernels": sum(map(sum, calls.values())) / 1000,
        "rows": [
            {
                "kernel": name[:90].replace("|", "/"),
                "calls": len(us) / FLUSH_ROUNDS,
                "us a round": sum(us),
            }
            for name, us in largest
        ],
    }


def with_graphs(how: How, spec: RunSpec) -> Outcome:
    """Time rounds without graphs and with them, in one process."""
    found = []
    for values in (0, graphs.GRAPH_VALUES):
        with patch.object(graphs, "GRAPH_VALUES", values):
            found.append(timed(how, spec, 3 * FLUSH_ROUNDS))
    off, on = (outcome["ms a round"] for outcome in found)
    return {
        "ms a round, off": off,
        "ms a round, on": on,
        "off over on": off / on,
        "graphs": found[1]["graphs"],
    }


def timed(how: How, spec: RunSpec, warm: int, ready: Callable[[], object] = int) -> Outcome:
    """Time the rounds of a run after the first ``warm`` ones and a call of ``ready``, without
    evaluations.
    """
    marks: list[tuple[float, events.Totals]] = []
    for event in how.stream(spec):
        if isinstance(event, events.RoundsDone) and event.totals.rounds >= how.of(
            warm, FLUSH_ROUNDS
        ):
            if not marks:
                ready()
            marks.append((time.perf_counter(), event.totals))  # the device has made these rounds
    (begin, first), (end, last) = marks[0], marks[-1]
    found: Outcome = {"ms a round": 1000 * (end - begin) / (last.rounds - first.rounds)}
    found["ms a computation"] = 1000 * (end - begin) / (last.budget_spent - first.budget_spent)
    if how.gpu:
        found["peak GB"] = torch.cuda.max_memory_allocated(how.device) / 1e9
    return found | {"graphs": getattr(event, "how", {}).get("graphs")}


def without_kernels(names: Sequence[str], find: Callable[[], Outcome]) -> Outcome:
    """Find something out while some of Triton's kernels are off."""
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(
                patch.object(
                    importlib.import_module(KERNELS[name]), "triton_works", lambda *_: False
                )
            )
        return find()


def our_loop(how: How) -> Outcome:
    """Time iterations of the case that does the same work as ByzFL's loop."""
    spec = cases()["cwtm"].spec
    spec = dataclasses.replace(spec, workers=5, byzantine=1, batch_size=2) if how.tiny else spec
    with patch.object(ours, "simulate", lambda spec, **_: how.stream(spec)):
        return _rate(ours.rounds(spec, None, how.device, None), how.of(40, 2))


def byzfls_loop(how: How, fixed: bool) -> Outcome:
    """Time ByzFL's own loop; with ``fixed``, each client computes its first mini-batch again and
    again.
    """
    with tempfile.TemporaryDirectory() as folder:
        write_mnist(Path(folder), how)
        settings, length = cases()["cwtm"].settings, how.of(20, 1)
        return _rate(
            byzfl_loop.iterations(settings, Path(folder), how.device, length, fixed=fixed),
            how.of(6, 2),
        )


def _rate(blocks: Iterator[Block], count: int) -> Outcome:
    """Return the iterations per second of some blocks after the first one: median, least and
    most.
    """
    next(blocks)
    rates = sorted(
        block.iterations / block.seconds for _, block in zip(range(count), blocks, strict=False)
    )
    return {"iterations/s": statistics.median(rates), "least": rates[0], "most": rates[-1]}


def write_mnist(folder: Path, how: How) -> None:
    """Write the made-up images as MNIST's own files."""
    raw, images = folder / "MNIST" / "raw", images_of("mnist", how.tiny)
    raw.mkdir(parents=True)
    for name, part in (("train", "train"), ("t10k", "test")):
        pixels, labels = getattr(images, f"{part}_images"), getattr(images, f"{part}_labels")
        sizes, numbers = (
            struct.pack(">4B3I", 0, 0, 8, 3, len(pixels), 28, 28),
            struct.pack(">4BI", 0, 0, 8, 1, len(labels)),
        )
        (raw / f"{name}-images-idx3-ubyte").write_bytes(sizes + pixels.numpy().tobytes())
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(
            numbers + labels.numpy().astype("uint8").tobytes()
        )


def together(how: How, count: int, service: bool) -> Outcome:
    """Make rounds of MNIST in ``count`` processes at the same time; they begin together when all
    are warm.
    """
    barrier = FORK.Barrier(count)
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        contextlib.ExitStack() as stack,
    ):
        served = mps.start(stack) if service else str(Path(folder, "none"))
        if served is None:
            return {"error": "CUDA's multi-process service did not start"}
        environment = {mps.FOLDER: served}
        finds = [partial(_one_of_many, how, seed, barrier, environment) for seed in range(count)]
        outcomes = forked(finds, 40, Path(folder) / "log")
    if wrong := [outcome["error"] for outcome in outcomes if "error" in outcome]:
        return {"error": wrong[0]}
    rate = 1000 * count / max(outcome["ms a round"] for outcome in outcomes)
    return {"rounds/s": rate, "minutes of 200 runs of 5,000": 1e6 / rate / 60}


def _one_of_many(how: How, seed: int, barrier: Any, environment: dict[str, str]) -> Outcome:
    os.environ.update(environment)
    torch.set_num_threads(1)
    return timed(
        how, how.cell("mnist", MOMENTUM, "cwtm", 648, seed=seed), 3 * FLUSH_ROUNDS, barrier.wait
    )
