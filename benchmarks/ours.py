"""Our side: the package's simulation, driven event by event, so that only rounds are timed."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measuring import synchronise
from benchmarks.processes import Block
from dynabro_cli import RunSpec, simulate
from dynabro_cli.core.events import RoundsDone
from dynabro_cli.simulation.problem.images import ImageProblem
from dynabro_cli.simulation.problem.mini_batches import BatchSource

WARM_UP = 2
FOREVER = 10**9
"""Budget, and distance between evaluations, that no benchmark reaches."""


def rounds(
    spec: RunSpec,
    data_dir: Path | None,
    device: str,
    threads: int | None,
    compile: str = "auto",  # noqa: A002
    force: bool = False,
) -> Iterator[Block]:
    """Run ``spec`` and yield a block for each ``RoundsDone`` after the first two, which warm up.

    Evaluations are not timed. On a CPU the phases are ``data`` and ``gradients``; the rest is
    attack, aggregation, step.
    """
    watch = Watch()
    watch.install()
    stream = simulate(
        spec, data_dir=data_dir, device=device, threads=threads, compile=compile, force=force
    )
    done = 0
    while True:
        watch.reset()
        before = time.perf_counter()
        event = next(stream)
        if not isinstance(event, RoundsDone):
            continue
        synchronise(device)
        total = time.perf_counter() - before
        done += 1
        if done > WARM_UP:
            yield Block(
                len(event.rounds),
                total,
                watch.phases(total) if device == "cpu" else {},
                watch.gradients,
            )


class Watch:
    """Stopwatch of a process's mini-batches and gradients; it also counts the gradients.

    It replaces methods of ``ImageProblem`` and ``BatchSource`` for the rest of the process.
    """

    def __init__(self) -> None:
        self.drawing = self.reading = self.both = 0.0
        self.gradients = 0

    def install(self) -> None:
        """Put the stopwatch around the methods."""
        draws, batches = BatchSource.of_workers, ImageProblem._batches
        gradients = ImageProblem.gradients

        @functools.wraps(batches)
        def watched_batches(problem: Any, drawn: Any, source: Any) -> Any:
            before = time.perf_counter()
            inputs, labels = batches(problem, drawn, source)
            self.reading += time.perf_counter() - before
            self.gradients += len(drawn.computations) * len(labels)
            return inputs, labels

        @functools.wraps(draws)
        def watched_draws(*arguments: Any) -> Any:
            before = time.perf_counter()
            drawn = draws(*arguments)
            self.drawing += time.perf_counter() - before
            return drawn

        @functools.wraps(gradients)
        def watched_gradients(*arguments: Any, **keywords: Any) -> Any:
            before = time.perf_counter()
            total = gradients(*arguments, **keywords)  # it reads the mini-batches that were drawn
            self.both += time.perf_counter() - before
            return total

        BatchSource.of_workers, ImageProblem._batches = watched_draws, watched_batches  # type: ignore[method-assign]
        ImageProblem.gradients = watched_gradients  # type: ignore[method-assign]

    def reset(self) -> None:
        """Restart from zero."""
        self.drawing = self.reading = self.both = 0.0
        self.gradients = 0

    def phases(self, total: float) -> dict[str, float]:
        """Return the seconds of mini-batches, of gradients without them, and of the rest of
        ``total``.
        """
        return {
            "data": self.drawing + self.reading,
            "gradients": self.both - self.reading,
            "rest": total - self.both - self.drawing,
        }


def whole_run(
    spec: RunSpec,
    data_dir: Path | None,
    device: str,
    compile: str = "auto",  # noqa: A002
) -> Iterator[Block]:
    """Run ``spec`` to its end, evaluations included, as one block, to measure its memory."""
    before, rounds_done = time.perf_counter(), 0
    for event in simulate(spec, data_dir=data_dir, device=device, compile=compile):
        rounds_done += len(event.rounds) if isinstance(event, RoundsDone) else 0
    yield Block(rounds_done, time.perf_counter() - before, {})
