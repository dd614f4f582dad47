"""The checks of ``python -m benchmarks gpu``, in the order of its eight questions."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
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
from dynabro_cli import RunSpec
from dynabro_cli.core import events
from dynabro_cli.core.machine import devices, gpu_kernels, mps
from dynabro_cli.gradients import graphs
from dynabro_cli.gradients.engine import WorkerGradients
from dynabro_cli.simulation.loop import FLUSH_ROUNDS, Simulation
from dynabro_cli.simulation.round import update

MACHINE, KERNELS, BITS, GRAPHS, MANY, CIFAR, PROFILE, BYZFL = QUESTIONS = (
    "1. Which machine is it, and does Triton work there?",
    "2. Do Triton's kernels compute what torch computes?",
    "3. Are results with CUDA graphs equal to results without, bit for bit?",
    "4. What do graphs save on MNIST?",
    "5. How many runs on MNIST should share the GPU?",
    "6. How long does a computation of CIFAR-10 take?",
    "7. Which kernels take the time of a round?",
    "8. How much faster than ByzFL is an iteration, on the same GPU?",
)
MOMENTUM = "momentum:beta=0.9"
CHANGING = "bernoulli:p=0.05,D=10,delta_max=0.72"
"""Switching under which the number of computed gradients changes, because IPM needs no gradient of
a Byzantine worker.
"""
CASES = (
    "mean",
    "norm",
    "dropout",
    "gm",
    "signguard",
    "engine",
    *(f"order{m}" for m in (5, 16, 17, 25)),
)
"""Sets of cases of ``tests.gpu.kernels``; order statistics take long to compile."""
STAGES = ("gradients", "messages", "answer", "statistics", "step")
"""Parts of a round, each captured alone if a whole round cannot be."""


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
            model = {"mnist": "mlp:hidden=8", "cifar10": "cnn-cifar:width=0.05"}[task]
            more |= {"workers": 5, "byzantine": 1, "batch_size": 2, "model": model}
            method = method.replace("dynabro", "dynabro:jmax=1")
        return cell(
            task, method, rule, budget=self.of(budget, min(budget, 3 * FLUSH_ROUNDS)), **more
        )

    def stream(self, spec: RunSpec, **more: Any) -> Iterator[events.Event]:
        """Simulate a cell; a small one without C++, which takes longer to compile than it saves."""
        how = {"compile": "auto" if self.gpu else self.of("auto", "off")} | more
        return stream(spec, self.device, tiny=self.tiny, **how)


def checks(how: How) -> list[Check]:
    """Return all checks. The images are made here, once for all processes that are forked later."""
    for task in ("mnist", "cifar10"):
        images_of(task, how.tiny)
    precisions = ("bf16", "tf32", "fp32") if how.gpu else ("fp32",)
    mnist, cifar = ("mnist", MOMENTUM, "cwtm"), ("cifar10", MOMENTUM, "cwmed")
    made = [Check(MACHINE, "versions", 60, partial(machine, how))]
    if how.gpu:
        made.append(Check(KERNELS, "trial", 90, partial(trial, how)))
        made.append(Check(KERNELS, "all cases", 75, partial(against_torch, how, CASES)))
    for what, budget, more in (
        (mnist, 64, {}),
        (("mnist", "dynabro", "gm"), 400, {"attack": "alie"}),
        (("cifar10", "dynabro", "cwmed"), 200, {"switching": CHANGING}),
    ):
        spec, name = how.cell(*what, budget, **more), ", ".join(what)
        made.append(Check(BITS, name, 40, partial(bits, how, spec)))
        for stage in STAGES if how.gpu else ():
            find = partial(captured_alone, how, spec, stage)
            made.append(Check(BITS, f"{name}: {stage} alone", 20, find, partial(_not_on, name)))
    made.append(
        Check(GRAPHS, ", ".join(mnist), 60, partial(with_graphs, how, how.cell(*mnist, 3000)))
    )
    for service in (False, True) if how.gpu else (False,):
        for count in how.of((1, 8), (1, 2)):
            name = f"{count} processes{', MPS' * service}"
            made.append(Check(MANY, name, 45, partial(together, how, count, service)))
    for name in precisions:
        find = partial(timed, how, how.cell(*cifar, 80, precision=name), FLUSH_ROUNDS)
        made.append(Check(CIFAR, f"{name}, momentum", 40, find))
        if how.gpu:
            off = ["norm", "dropout"] if name == "bf16" else list(gpu_kernels.KERNELS)
            title = "batch norm and dropout" if name == "bf16" else "any kernel"
            find = partial(without_kernels, off, find)
            made.append(Check(CIFAR, f"{name}, momentum, without {title}", 25, find))
    for what, name in ((mnist, "fp32"), *((cifar, name) for name in precisions)):
        find = partial(kernels, how, how.cell(*what, 200, precision=name))
        made.append(Check(PROFILE, f"{what[0]}, {name}", 30, find))
    spec = how.cell("cifar10", "dynabro", "cwmed", 240, precision=precisions[0], switching=CHANGING)
    made.append(
        Check(CIFAR, f"{precisions[0]}, dynabro", 25, partial(timed, how, spec, FLUSH_ROUNDS))
    )
    made += [
        Check(BYZFL, "dynabro", 30, partial(our_loop, how)),
        Check(BYZFL, "ByzFL", 30, partial(byzfls_loop, how, False)),
        Check(BYZFL, "ByzFL without its data loading", 30, partial(byzfls_loop, how, True)),
    ]
    return made


def _not_on(name: str, lines: Sequence[Outcome]) -> bool:
    """Return True if the check of this name found that nothing can be captured."""
    return any(
        line["check"] == name and "captured nothing" in line.get("error", "") for line in lines
    )


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
        device = torch.device(how.device)
        with patch.object(gpu_kernels, "trial", lambda _: {}):  # a later check
            why = gpu_kernels.obstacle(device)
        found |= {
            "why Triton does not work": why,
            "driver": gpu_kernels.DRIVER.read_text().strip()
            if gpu_kernels.DRIVER.exists()
            else None,
            "capability": torch.cuda.get_device_capability(device),
            "cards": devices.look(),
        }
        free, total = torch.cuda.mem_get_info(how.device)
        found |= {
            "gpu": torch.cuda.get_device_name(how.device),
            "free GB": free / 1e9,
            "total GB": total / 1e9,
        }
    return found


def bits(how: How, spec: RunSpec) -> Outcome:
    """Compare the rounds and the last model of a run without graphs with a run with graphs, this
    run with a repetition, and its model with a run by torch alone.

    Forms are captured at their second round, because many come only a few times here.
    """
    runs = []
    for values, choice in ((0, "auto"), (FOREVER, "auto"), (FOREVER, "auto"), (0, "off")):
        with patch.object(graphs, "GRAPH_VALUES", values), patch.object(graphs, "EAGER", 1):
            choice = choice if how.gpu else "off"
            run = list(how.stream(spec, weights="end", compile=choice))
        rounds = [
            repr(row)
            for event in run
            if isinstance(event, events.RoundsDone)
            for row in event.rounds
        ]
        tensors = safetensors.load(
            next(event.data for event in run if isinstance(event, events.Weights))
        )
        state = getattr(run[-1], "how", {}).get("graphs")
        runs.append(
            (rounds, {name: tensor.tobytes() for name, tensor in tensors.items()}, tensors, state)
        )
    (plain, model, *_), (graphed, graphed_model, ours, state), again, (*_, torchs, _) = runs
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
    found |= {
        "same model": model == graphed_model,
        "same again": (graphed, graphed_model) == again[:2],
        "difference from torch alone": apart(ours, torchs),
        "graphs": state,
    }
    if how.gpu and not str(state).startswith("on"):
        found["error"] = f"captured nothing: {state}"
    return found


def apart(first: dict[str, Any], second: dict[str, Any]) -> float:
    """Return the largest difference of two models, relative to the largest number of a tensor."""
    return max(
        float(abs(first[name] - second[name]).max() / max(1e-30, abs(second[name]).max()))
        for name in first
        if first[name].dtype.kind == "f"
    )


def captured_alone(how: How, spec: RunSpec, stage: str) -> Outcome:
    """Capture one part of a round, with the arguments that it had in the third round."""
    calls: dict[str, Callable[[], object]] = {}

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            calls[name] = partial(function, *arguments, **keywords)
            return function(*arguments, **keywords)

        return call

    def server(parts: Any) -> Any:
        made = make_server(parts)
        return made._replace(
            messages=noted("messages", made.messages), answer=noted("answer", made.answer)
        )

    def update_or_capture(updating: update.Update, inputs: Any, state: Any) -> Any:
        if state.round < 3:
            return whole(updating, inputs, state)
        start, _ = graphs.KernelCapture(torch.device(how.device))(lambda: calls[stage]())
        start()
        synchronise(how.device)
        raise _DoneError

    whole, make_server = update.Update.__call__, update.make_server
    with contextlib.ExitStack() as stack:
        for owner, name, function in (
            (update, "make_server", server),
            (WorkerGradients, "__call__", noted("gradients", WorkerGradients.__call__)),
            (update.Update, "_observe", noted("statistics", update.Update._observe)),
            (update.Step, "update", noted("step", update.Step.update)),
            (update.Update, "__call__", update_or_capture),
            (graphs, "GRAPH_VALUES", 0),
        ):
            stack.enter_context(patch.object(owner, name, function))
        stack.enter_context(contextlib.suppress(_DoneError))
        for _ in how.stream(spec):
            pass
        return {"error": "the run ended before its fourth round"}
    return {"graphs": "captured"}


class _DoneError(Exception):
    """A part has been captured."""


def trial(how: How) -> Outcome:
    """Try all kernels as the first run on a GPU does."""
    outcome = gpu_kernels.trial(torch.device(how.device))
    off = {name: why for name, why in outcome.items() if why}
    wrong: Outcome = {"error": f"off: {off}"[:600] if outcome else "nothing was tried"}
    return {"kernels": len(outcome)} | (wrong if off or not outcome else {})


def against_torch(how: How, names: Sequence[str]) -> Outcome:
    """Compute the cases of ``tests.gpu.kernels`` on the GPU, each set in a separate process."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        outcomes = forked([partial(_cases, how.device, name) for name in names], 65, log)
        print(log.read_text() if log.exists() else "")
    rows = [
        {"kernel": name, "cases": outcome.get("cases"), "worst": outcome.get("worst")}
        | {"case": outcome.get("case"), "error": outcome.get("error")}
        for name, outcome in zip(names, outcomes, strict=True)
    ]
    wrong = [row for row in rows if row["error"] or not row["worst"] <= 1]
    found: Outcome = {"sets": len(rows), "wrong": len(wrong), "rows": rows}
    return found | ({"error": f"wrong: {wrong[0]}"[:600]} if wrong else {})


def _cases(device: str, name: str) -> Outcome:
    """Return the largest error over its bound."""
    from tests.gpu import kernels as tested

    gpu_kernels.launch = tested.on_card(torch.device(device))
    torch.set_num_threads(1)
    kind = name.rstrip("0123456789")
    find = tested.CHECKS[kind]
    errors = dict(find(int(name.removeprefix(kind))) if kind != name else find())
    errors = {title: math.inf if math.isnan(error) else error for title, error in errors.items()}
    case = max(errors, key=lambda title: errors[title])
    return {"cases": len(errors), "worst": errors[case], "case": case}


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
    with patch.dict(gpu_kernels.off, dict.fromkeys(names, "switched off")):
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
        for log in [Path(folder, "log"), *sorted(Path(served).glob("*.log"))]:
            print(log.read_text(errors="replace") if log.exists() else "")
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
