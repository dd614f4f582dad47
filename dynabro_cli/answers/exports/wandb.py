"""Weights & Biases: offline runs, which ``wandb sync`` sends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dynabro_cli.answers.exports import Exported


def write(runs: Sequence[Exported], part: Path, out: Path) -> None:
    """Write ``OUT/wandb/offline-run-...``; the step is the budget spent, and the group is the
    sweep. ``OUT`` is ``part`` for now.
    """
    import wandb

    part.mkdir()
    for run in runs:
        with wandb.init(
            mode="offline",
            dir=str(part),
            project="dynabro",
            group=run.group,
            name=run.name,
            id=run.name,
            config=run.fields,
            tags=run.tags,
            notes=run.note,
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        ) as made:
            for budget, numbers in run.points:
                made.log(numbers, step=budget)
            made.summary.update(run.final)
