"""Processes with a process group, which run functions of tests."""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

SECONDS = 250
"""Time limit of a function of a test."""


class World:
    """The processes of a process group with gloo, one for each rank."""

    def __init__(self, ranks: int, folder: Path, timeout: float = SECONDS) -> None:
        # forked from a process that has loaded torch, and has no threads
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["dynabro_cli.distributed", "torch._dynamo"])
        pairs = [context.Pipe() for _ in range(ranks)]
        self.ends = [ours for ours, _ in pairs]
        self.processes = [
            context.Process(
                target=_serve, args=(theirs, rank, ranks, folder / "store", timeout), daemon=True
            )
            for rank, (_, theirs) in enumerate(pairs)
        ]
        with pytest.MonkeyPatch.context() as patch:
            # the processes must not import the program of the tests, which may start them again
            patch.setattr(sys.modules["__main__"], "__file__", None, raising=False)
            patch.setattr(sys.modules["__main__"], "__spec__", None)
            for process in self.processes:
                process.start()

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call a function in all processes; return the results by rank."""
        for end in self.ends:
            end.send((function, arguments))
        answers = [end.recv() if end.poll(SECONDS) else "no answer" for end in self.ends]
        errors = [f"rank {rank}: {text}" for rank, text in enumerate(answers) if type(text) is str]
        assert not errors, "\n".join(errors)
        return [answer for (answer,) in answers]

    def end(self) -> None:
        for end in self.ends:
            with suppress(OSError):
                end.send(None)
        for process in self.processes:
            process.join(5)
            process.kill()


@contextmanager
def world_of(ranks: int, timeout: float = SECONDS) -> Iterator[World]:
    with tempfile.TemporaryDirectory() as folder:
        world = World(ranks, Path(folder), timeout)
        try:
            yield world
        finally:
            world.end()


def _serve(end: Connection, rank: int, ranks: int, store: Path, timeout: float) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=timeout),
    )
    while (task := end.recv()) is not None:
        function, arguments = task
        try:
            end.send((function(*arguments),))
        except BaseException:
            end.send(traceback.format_exc())


_groups: dict[int, Any] = {}


def first(ranks: int) -> Any:
    """Return the group of the first ranks of this world; the same object for each call."""
    if ranks not in _groups:
        _groups[ranks] = dist.new_group(list(range(ranks)))
    return _groups[ranks]
