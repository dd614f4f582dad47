"""Weights & Biases: runs online, or offline runs, which ``wandb sync`` sends."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dynabro_cli.runs.trackers import Described, Points

STEP = "last-step"
"""A file beside those that W&B sends. An offline run does not know the steps of an earlier one."""


class _Log:
    def __init__(self, made: Any, last: int) -> None:
        self._made, self._last = made, last

    def points(self, points: Points, at: float) -> None:
        for budget, numbers in points:
            if budget > self._last:
                self._made.log(dict(numbers), step=budget)
                self._last = budget
        Path(self._made.dir).with_name(STEP).write_text(str(self._last))

    def end(self, final: Mapping[str, float], at: float, status: str) -> None:
        self._made.summary.update(dict(final))
        self._made.finish(exit_code=0 if status == "FINISHED" else 1)


def begin(run: Described, place: str, *, resumed: bool = False, offline: str | None = None) -> _Log:
    """Open a run in ``[ENTITY/]PROJECT``; the group is the sweep.

    Args:
        run: The run.
        place: Entity and project.
        resumed: True if the run resumes, after the last step that is known.
        offline: The folder of ``wandb/offline-run-...``; None for what the environment says.
    """
    import wandb

    entity, _, project = place.rpartition("/")
    made = wandb.init(
        mode=None if offline is None else "offline",
        dir=offline,
        entity=entity or None,
        project=project,
        group=run.group,
        name=run.name,
        id=run.name,
        config=run.fields,
        tags=run.tags,
        notes=run.note,
        resume="allow" if resumed else None,
        reinit="create_new",  # several runs at a time
        settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
    )
    last = made.step - 1
    if resumed:
        files = Path(made.dir).parents[1].glob(f"*run-*-{run.name}/{STEP}")
        last = max([last, *(int(file.read_text() or -1) for file in files)])
    return _Log(made, last)
