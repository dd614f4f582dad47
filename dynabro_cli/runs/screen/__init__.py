"""Lines, tables and progress for the person who types a command or works in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dynabro_cli.experiment.resolve import Run
    from dynabro_cli.runs.screen.progress import RunsProgress


def runs_shown(*, quiet: bool) -> Callable[[Sequence[Run]], RunsProgress]:
    """Return a function that shows the progress of runs; it imports the display when it is
    called.
    """

    def show(runs: Sequence[Run]) -> RunsProgress:
        from dynabro_cli.runs.screen.progress import RunsProgress

        return RunsProgress(runs, quiet=quiet)

    return show
