"""TensorBoard: event files for each run, with its hyper-parameters at its end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dynabro_cli.runs.trackers import Described, Points


class _Log:
    def __init__(self, folder: Path, run: Described) -> None:
        self._folder, self._run = str(folder), run
        self._writer: Any = None

    def points(self, points: Points, at: float) -> None:
        for budget, numbers in points:
            if self._writer is None:
                self._open(budget)
            for name, value in numbers.items():
                self._writer.add_scalar(name, value, budget)
        if self._writer is not None:
            self._writer.flush()

    def end(self, final: Mapping[str, float], at: float, status: str) -> None:
        if self._writer is None:
            self._open(None)
        if status == "FINISHED":
            values = {
                name: value if isinstance(value, int | float | bool) else str(value)
                for name, value in self._run.fields.items()
            }
            # without a name the hyper-parameters go to a folder that is named by the time
            self._writer.add_hparams(values, dict(final), run_name=".")
            if self._run.tags or self._run.note:
                self._writer.add_text("note", " ".join([*self._run.tags, self._run.note]))
        self._writer.close()

    def _open(self, first: int | None) -> None:
        """Begin a file that hides points from the step ``first`` on in earlier files: a run that
        was killed makes the rounds since its last checkpoint again.
        """
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(self._folder, purge_step=first)


def begin(run: Described, place: str, *, resumed: bool = False) -> _Log:
    """Open ``PLACE/SWEEP/RUN/events.out.tfevents...``."""
    return _Log(Path(place, run.group, run.name), run)
