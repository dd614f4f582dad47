"""A small database of real runs: three methods and two seeds on digits, and one objective."""

from __future__ import annotations

from pathlib import Path

from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.write.recorder import Recorder
from dynabro_cli.simulation.setup import simulate

METHODS = ("sgd", "momentum:beta=0.5", "dynabro")
SPECS = [
    RunSpec(
        task="digits",
        model="logistic",
        method=method,
        switching="periodic:K=4",
        budget=40,
        eval_every=10,
        seed=seed,
    )
    for method in METHODS
    for seed in (0, 1)
] + [
    RunSpec(
        task="quadratic", method="momentum", attack="shift:lambda=1", aggregator="cwmed", budget=30
    )
]


def fill(database: Path | str) -> None:
    """Run ``SPECS`` into a database, which is made."""
    recorder = Recorder(open_for_writing(str(database)))
    for spec in SPECS:
        for event in simulate(spec, device="cpu"):
            recorder.record(event)
