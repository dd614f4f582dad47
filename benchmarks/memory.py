"""The peak memory of runs, each in a new process."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks import ours
from benchmarks.measuring import machine, table
from benchmarks.processes import workers
from dynabro_cli import RunSpec
from dynabro_cli.core.errors import NotFoundError
from dynabro_cli.core.streams import Streams
from dynabro_cli.simulation.setup import data_directory

HEADER = ["run", "peak RSS, MiB", "s", "rounds"]


@dataclass(frozen=True)
class How:
    """Device and options of the runs, as in ``dynabro run``.

    Compiling takes memory, and ``auto`` would not compile a short run. So it is requested, because
    a run of full length compiles.
    """

    data_dir: Path | None = None
    device: str = "cpu"
    threads: int | None = None
    compile: str = "on"


def measure(task: str, budget: int, level: int, m: int, batch_size: int, how: How) -> str:
    """Return the peak memory of a short run of ``task``, and of one round of DynaBRO at ``level``
    on CIFAR-10's shape.
    """
    least = RunSpec(task="digits", method="sgd", budget=1)
    rows = [
        _row("one round on digits", least, how),
        _row(f"{task}, momentum, budget {budget}", _short(task, budget), how),
    ]
    title = f"one round at level {level}, cnn-cifar, m = {m}, B = {batch_size}"
    if (data_directory(how.data_dir) / "cifar-10-batches-py").is_dir():
        rows.append(_row(title, one_round("cifar10", level, m, batch_size), how))
    else:
        with tempfile.TemporaryDirectory() as folder:
            write_noise(Path(folder) / "noise", batch_size)
            spec = one_round("image-folder:name=noise,like=cifar10", level, m, batch_size)
            rows.append(
                _row(f"{title}, images of noise", spec, replace(how, data_dir=Path(folder)))
            )
    return f"compile={how.compile}\n{machine(how.device, how.threads)}\n\n{table(HEADER, rows)}"


def _short(task: str, budget: int) -> RunSpec:
    return RunSpec(task=task, method="momentum:beta=0.9", budget=budget, eval_every=budget)


def one_round(task: str, level: int, m: int, batch_size: int) -> RunSpec:
    """Return a run of DynaBRO with one round of ``level``: the seed draws this level, and the
    budget ends with the round.
    """
    seed = next(
        seed for seed in range(2**16) if Streams(seed).generator("level", 0).geometric(0.5) == level
    )
    return RunSpec(
        task=task,
        model="cnn-cifar",
        method=f"dynabro:jmax={level}",
        switching="static",
        workers=m,
        byzantine=(m - 1) // 2,
        batch_size=batch_size,
        budget=2**level,
        eval_every=2**level,
        seed=seed,
    )


def write_noise(folder: Path, batch_size: int) -> None:
    """Write a data set of noise in the shape of CIFAR-10: enough training images for a mini-batch,
    ten for testing.
    """
    from PIL import Image

    generator = np.random.Generator(np.random.PCG64(0))
    for part, count in (("train", -(-batch_size // 10)), ("test", 1)):
        for label in range(10):
            place = folder / part / str(label)
            place.mkdir(parents=True)
            for index in range(count):
                pixels = generator.integers(256, size=(32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{index}.png")


def _row(title: str, spec: RunSpec, how: How) -> list[object]:
    """Run ``spec`` in a new process; return its row."""
    arguments = {
        "spec": spec,
        "data_dir": how.data_dir,
        "device": how.device,
        "compile": how.compile,
    }
    try:
        with workers({"ours": (ours.whole_run, arguments)}, how.threads) as groups:
            worker = groups["ours"][0]
            return [title, worker.close() / 2**20, worker.first.seconds, worker.first.iterations]
    except NotFoundError:
        return [title, "no data", None, None]
