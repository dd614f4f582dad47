"""Sides that run in separate processes, as their users run them, and take turns.

A side is a generator of ``Block``: a few iterations, and their seconds. Its work before the first
block is not timed. A process runs blocks on request. With ``go_on`` it stays busy after its timed
block, so that in a sweep no process is timed while another is idle.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from dynabro_cli.core.errors import DynabroError, RunError


class Block(NamedTuple):
    """Some iterations: their number, their seconds, the seconds of each phase, and the number of
    gradients.
    """

    iterations: int
    seconds: float
    phases: dict[str, float]
    gradients: int = 0


Side = Callable[..., Iterator[Block]]


class Worker:
    """One side in a separate process.

    Args:
        side: A function of a module, which makes the generator of blocks.
        arguments: Its arguments.
        threads: CPU threads of the process; None for torch's own number.

    Attributes:
        first: The first block, which warms up; set by ``workers``.
    """

    first: Block

    def __init__(self, side: Side, arguments: Mapping[str, Any], threads: int | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, side, dict(arguments), threads), daemon=True
        )
        with _threads_of_children(threads):
            self._process.start()
        theirs.close()

    def result(self) -> Block:
        """Wait for a block: the first, which warms up, or the one that was started; raise what the
        side raised instead.
        """
        block: Block = self._receive()
        return block

    def start(self, *, go_on: bool = False) -> None:
        """Run one timed block and, with ``go_on``, more untimed blocks until ``stop``."""
        self._pipe.send("go on" if go_on else "run")

    def stop(self) -> None:
        """Wait until the process is idle."""
        self._pipe.send("stop")
        self._receive()

    def close(self) -> int:
        """End the process; return its peak memory in bytes."""
        self._pipe.send("close")
        peak: int = self._receive()
        self._process.join()
        return peak

    def kill(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.join()

    def _receive(self) -> Any:
        try:
            kind, value = self._pipe.recv()
        except EOFError:
            self._process.join()
            raise RunError(
                f"a benchmark's process has ended with exit code {self._process.exitcode}"
            ) from None
        if kind == "error":
            raise value
        return value


Groups = dict[str, list[Worker]]


@contextlib.contextmanager
def workers(
    sides: Mapping[str, tuple[Side, Mapping[str, Any]]], threads: int | None, count: int = 1
) -> Iterator[Groups]:
    """Start ``count`` warm processes of each side, by its name; end them when the context is
    left.
    """
    groups: Groups = {}
    try:
        for name, (side, arguments) in sides.items():
            groups[name] = [Worker(side, arguments, threads) for _ in range(count)]
        for group in groups.values():
            for worker in group:
                worker.first = worker.result()
        yield groups
    finally:
        for group in groups.values():
            for worker in group:
                worker.kill()


def take_turns(groups: Mapping[str, Sequence[Worker]], turns: int) -> dict[str, list[list[Block]]]:
    """Run the groups in turn, the processes of one group together; return, by group, the blocks of
    each turn.
    """
    blocks: dict[str, list[list[Block]]] = {name: [] for name in groups}
    for _ in range(turns):
        for name, group in groups.items():
            for worker in group:
                worker.start(go_on=len(group) > 1)
            blocks[name].append([worker.result() for worker in group])
            for worker in group:
                worker.stop()
    return blocks


@contextlib.contextmanager
def _threads_of_children(threads: int | None) -> Iterator[None]:
    """Make processes that start within the context use ``threads`` threads from the start; OpenMP
    reads the number once.
    """
    before = os.environ.get("OMP_NUM_THREADS")
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("OMP_NUM_THREADS", None)
        else:
            os.environ["OMP_NUM_THREADS"] = before


def _serve(pipe: Connection, side: Side, arguments: dict[str, Any], threads: int | None) -> None:
    """Serve in a process: prepare the side, then run blocks on request, until the parent says so or
    is gone.
    """
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    with contextlib.suppress(EOFError, BrokenPipeError):
        try:
            blocks = side(**arguments)
            first = next(blocks)
        except DynabroError as error:
            pipe.send(("error", error))
            return
        pipe.send(("ready", first))
        while (order := pipe.recv()) != "close":
            if order == "stop":
                pipe.send(("idle", None))
                continue
            pipe.send(("block", next(blocks)))
            while order == "go on" and not pipe.poll():
                next(blocks)
        pipe.send(("peak", peak_memory()))


def peak_memory() -> int:
    """Return the peak memory of this process in bytes.

    ``ru_maxrss`` is inherited from the parent on Linux, so the process's own high-water mark is
    read if the system has it.
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
