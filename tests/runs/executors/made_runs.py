"""Small runs, and somebody who listens to them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from dynabro_cli.core.events import Event
from dynabro_cli.experiment.resolve import Run, resolve
from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.runs.executors import backends
from dynabro_cli.runs.executors._api import Listener, Options, Outcome
from dynabro_cli.runs.executors.backends import local
from dynabro_cli.runs.executors.sweep import make_all
from dynabro_cli.runs.store.write.standing import read_standing


def children() -> list[int]:
    """The processes that this process has started, and that have not been waited for."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            _state, parent, *_ = path.read_text().rpartition(")")[2].split()
            if int(parent) == os.getpid():
                found.append(int(path.parent.name))
    return found


def quadratic(seed: int, **fields: object) -> Run:
    """A run of 20 rounds; real ones of it take no time."""
    values = {
        "task": "quadratic",
        "method": "sgd",
        "attack": "shift:lambda=1",
        "aggregator": "cwmed",
        "budget": 20,
    }
    return resolve(RunSpec(**values | fields, seed=seed))  # type: ignore[arg-type]


class Log:
    """Recorder that keeps every call as ``(seed, what)``."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, str]] = []
        self.slots: set[int] = set()
        self.waited: list[int] = []

    def started(self, slot: int, run: Run) -> None:
        self.slots.add(slot)
        self.lines.append((run.spec.seed, "started"))

    def event(self, slot: int, run: Run, event: Event) -> None:
        self.lines.append((run.spec.seed, type(event).__name__))

    def ended(self, slot: int, outcome: Outcome) -> None:
        self.lines.append((outcome.run.spec.seed, outcome.status))

    def waiting(self, runs: int) -> None:
        self.waited.append(runs)

    def of(self, seed: int) -> list[str]:
        return [what for number, what in self.lines if number == seed]


def execute_all(
    runs: Sequence[Run],
    engine: Engine,
    options: Options,
    listener: Listener,
    *,
    opened: Any = None,
    worker: str | None = None,
    files: Any = None,
) -> list[Outcome]:
    """Make runs as a sweep does, in processes that serve with ``worker``, or on an opened back
    end.
    """
    backends.check(options)
    if opened is None:
        opened = local.opened(options, len(runs), entry=worker)
    standing = read_standing(
        engine.url.render_as_string(hide_password=False), options.sweep_row, options.rerun
    )
    left = standing.to_make([run.key for run in runs], retry_failed=options.retry_failed)
    with opened as places_for:
        places = places_for([run for run in runs if run.key in left])
        return make_all(runs, engine, places, listener, standing, files=files)
