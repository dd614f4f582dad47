"""Drawing for all commands that draw, with what figures need of components."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynabro_cli.core.errors import SpecError

if TYPE_CHECKING:
    from dynabro_cli.answers.figures._make import Studio

ALL = "all"
SWEEP_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"


def check_name(saved_as: str | None, name: str) -> None:
    """Raise SpecError if the files cannot have the name."""
    if saved_as is not None and (not re.fullmatch(SWEEP_NAME, saved_as) or name == ALL):
        why = (
            "'all' has a file per figure"
            if name == ALL
            else "not a file name of letters, digits, '.', '_' and '-'"
        )
        raise SpecError(
            f"name={saved_as}: {why}. Try: --name "
            f"{'' if name == ALL else 'my-plot, and '}--out DIR for the folder"
        )


def studio(db: str, where: str | None, out: Path, formats: str, **options: Any) -> Studio:
    """Return what draws the runs of a database for which the condition holds, with options of
    ``Studio``.
    """
    from dynabro_cli.answers.figures._make import Studio
    from dynabro_cli.runs.store.open.engine import open_read_only

    return Studio(
        open_read_only(db),
        where,
        out,
        formats.split(","),
        planned=_planned,
        identities=_identities,
        window=_window,
        **options,
    )


def _planned(sweep: str, settings: Sequence[str]) -> list[dict[str, Any]]:
    from dynabro_cli.experiment.grid.plan import plan
    from dynabro_cli.experiment.grid.sweep_lookup import load_sweep

    return plan(load_sweep(sweep, settings, run_plugins=False)).rows


def _identities(run: Any, ticks: int) -> Any:
    from dynabro_cli.experiment.schedule import identities

    return identities(run, ticks)


def _window(run: Any) -> Any:
    from dynabro_cli.answers.theory.history import window_of

    return window_of(run)
