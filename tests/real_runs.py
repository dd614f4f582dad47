"""A small database of real runs: three methods and two seeds on digits, and one objective."""

from __future__ import annotations

import math
from pathlib import Path

from dynabro_cli.executors.local import execute
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.store.engine import open_for_writing
from dynabro_cli.store.recorder import Recorder

METHODS = ("sgd", "momentum:beta=0.5", "dynabro")
SPECS = [
    RunSpec(task="digits", model="logistic", method=method, switching="periodic:K=4", budget=40, eval_every=10, seed=seed)
    for method in METHODS
    for seed in (0, 1)
] + [RunSpec(task="quadratic", method="momentum", attack="shift:lambda=1", aggregator="cwmed", budget=30)]


def fill(database: Path | str) -> None:
    """Run ``SPECS`` into a database, which is made."""
    recorder = Recorder(open_for_writing(str(database)))
    for spec in SPECS:
        run = resolve(spec)  # without checkpoints, however slow the machine is
        execute(run, recorder, lambda _: None, data_dir=None, device="cpu", threads=None, checkpoint_every=math.inf)
