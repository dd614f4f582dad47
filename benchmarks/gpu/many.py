"""Many at once: several runs on one GPU, the time of a grid, and the largest m and d that fit."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.gpu.data import folder_with_mnist
from benchmarks.gpu.steps import Check, Found, How
from benchmarks.gpu.whole import FOREVER, rounds_of, stream
from dynabro_cli import RunSpec
from dynabro_cli.errors import SpecError

GRID_RUNS, GRID_BUDGET = 150, 5000
AT_ONCE = (1, 2, 4, 8, 16)
WORKERS = (64, 256, 1024, 4096)
HIDDEN = (1_000, 10_000, 50_000, 200_000)


def jobs(how: How) -> Iterator[Check]:
    """Time sweeps with a growing number of runs at a time on the GPU, with and without CUDA's multi-process service."""
    data = functools.cache(functools.partial(folder_with_mnist, how))
    for count in AT_ONCE[: how.of(len(AT_ONCE), 2)]:
        yield Check(f"{count} at a time", functools.partial(_jobs, count, how, data, False), 100)
    if shutil.which("nvidia-cuda-mps-control") and how.gpu:
        for count in AT_ONCE[2:]:
            yield Check(f"{count} at a time, MPS", functools.partial(_jobs, count, how, data, True), 100)


def _jobs(count: int, how: How, data: object, shared: bool) -> Found:
    """Time a sweep in which each process computes two runs; the grid's time is extrapolated from it."""
    runs, budget = max(2 * count, how.of(4, 2)), how.of(1000, 2)
    task = "mnist" if not how.tiny else "digits"
    with tempfile.TemporaryDirectory() as folder:
        sweep = {
            "name": "gpu",
            "base": {"task": task, "attack": "sf", "aggregator": "cwtm", "budget": budget, "eval_every": FOREVER},
            "grid": {"method": ["sgd", "momentum:beta=0.9"]},
            "seeds": f"0..{runs // 2 - 1}",
        }
        place = Path(folder) / "gpu.yaml"
        place.write_text(json.dumps(sweep), encoding="utf-8")
        command = [sys.executable, "-m", "dynabro_cli", "sweep", str(place), "--db", str(Path(folder) / "gpu.db")]
        command += ["--device", how.device, "--data-dir", data() if task == "mnist" else folder]  # type: ignore[operator]
        command += ["--jobs-per-gpu", str(count)] if how.gpu else ["--jobs", str(count)]
        without = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/none"}  # dynabro would start a service
        with _mps(Path(folder)) if shared else contextlib.nullcontext(without) as environment:
            before = time.perf_counter()
            ended = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)
            seconds = time.perf_counter() - before
    if ended.returncode:
        return {"ok": False, "error": f"exit code {ended.returncode}: {(ended.stderr or ended.stdout)[-400:]}"}
    rate = runs * budget / seconds
    return {
        "runs": runs,
        "s": seconds,
        "computations/s": rate,
        f"{GRID_RUNS} runs of {GRID_BUDGET}, min": GRID_RUNS * GRID_BUDGET / rate / 60,
    }


@contextlib.contextmanager
def _mps(folder: Path) -> Iterator[dict[str, str]]:
    """Run CUDA's multi-process service of this user, for the processes that get the environment."""
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "log")}
    for name in environment.values():
        Path(name).mkdir()
    control = "nvidia-cuda-mps-control"
    subprocess.run([control, "-d"], env=os.environ | environment, check=True, timeout=20)
    try:
        yield environment
    finally:
        subprocess.run([control], input="quit\n", text=True, env=os.environ | environment, check=False, timeout=20)


def largest(how: How) -> Iterator[Check]:
    """Make a round with growing numbers of workers, and with growing networks, until the memory does not suffice."""
    for m in WORKERS[: how.of(len(WORKERS), 1)]:
        spec = RunSpec(task="mnist", method="sgd", aggregator="cwtm", attack="sf", workers=m, byzantine=m // 4, budget=16)
        yield Check(f"m = {m}", functools.partial(_fits, spec, how), 40)
    for hidden in HIDDEN[: how.of(len(HIDDEN), 1)]:
        spec = RunSpec(task="mnist", model=f"mlp:hidden={hidden}", method="sgd", aggregator="cwtm", attack="sf", budget=16)
        yield Check(f"hidden = {hidden}", functools.partial(_fits, spec, how), 40)


def _fits(spec: RunSpec, how: How) -> Found:
    before = time.perf_counter()
    spec = dataclasses.replace(spec, workers=3, byzantine=1, batch_size=2) if how.tiny else spec
    try:
        rounds = len(rounds_of(stream(spec, how, compile="off"), 1))
    except (torch.OutOfMemoryError, SpecError) as error:
        return {"fits": False, "why": f"{type(error).__name__}: {error}"[:200]}
    found: Found = {"fits": True, "rounds": rounds, "s": time.perf_counter() - before}
    if how.gpu:
        found["peak GB"] = torch.cuda.max_memory_allocated(how.device) / 1e9
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(how.device)
    return found
