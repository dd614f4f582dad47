"""TensorBoard: an event file for each run, with its hyper-parameters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dynabro_cli.answers.exports import Exported


def write(runs: Sequence[Exported], part: Path, out: Path) -> None:
    """Write ``OUT/SWEEP/RUN/events.out.tfevents...``; the step is the budget spent. ``OUT`` is
    ``part`` for now.
    """
    from torch.utils.tensorboard import SummaryWriter

    for run in runs:
        with SummaryWriter(str(part / run.group / run.name)) as writer:
            for budget, numbers in run.points:
                for name, value in numbers.items():
                    writer.add_scalar(name, value, budget)
            values = {
                name: value if isinstance(value, int | float | bool) else str(value)
                for name, value in run.fields.items()
            }
            # without a name the hyper-parameters go to a folder that is named by the time
            writer.add_hparams(values, run.final, run_name=".")
            if run.tags or run.note:
                writer.add_text("note", " ".join([*run.tags, run.note]))
