"""Small runs, and somebody who listens to them."""

from __future__ import annotations

from dynabro_cli.events import Event
from dynabro_cli.executors.processes import Outcome
from dynabro_cli.experiment.resolve import Run, resolve
from dynabro_cli.experiment.spec import RunSpec


def quadratic(seed: int, **fields: object) -> Run:
    """A run of 20 rounds; real ones of it take no time."""
    values = {"task": "quadratic", "method": "sgd", "attack": "shift:lambda=1", "aggregator": "cwmed", "budget": 20}
    return resolve(RunSpec(**values | fields, seed=seed))  # type: ignore[arg-type]


class Log:
    """Keeps what it is told, as ``(seed, what)``."""

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
