"""Check of plots of any runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynabro_cli.core.registration.plugins import load_plugin
from dynabro_cli.testing._common import require

if TYPE_CHECKING:
    import pandas as pd


def check_figure(
    name: str, folder: Path, *, plugin: str | Path | None = None, **choice: Any
) -> pd.DataFrame:
    """Check a plot of any runs: it draws two stored runs, and returns numbers.

    Args:
        name: The plot.
        folder: An empty folder for a database and the picture.
        plugin: The file that defines it.
        choice: Its options: x, hue, facet and metric.

    Returns:
        The plotted numbers.

    Raises:
        AssertionError: There are no numbers, or no picture.
    """
    from dynabro_cli.answers.analysis.results import Results, read_runs
    from dynabro_cli.answers.figures._api import REGISTRY, Choice
    from dynabro_cli.answers.theory.history import window_of
    from dynabro_cli.experiment.schedule import identities
    from dynabro_cli.experiment.spec import RunSpec
    from dynabro_cli.runs.store.open.engine import open_for_writing
    from dynabro_cli.runs.store.write.recorder import Recorder
    from dynabro_cli.simulation.setup import simulate

    if plugin is not None:
        load_plugin(plugin)
    draw = REGISTRY.entry(name).factory
    recorder = Recorder(engine := open_for_writing(str(folder / "results.db")))
    for method in ("sgd", "momentum"):
        spec: dict[str, Any] = {
            "task": "digits",
            "model": "logistic",
            "method": method,
            "budget": 20,
            "eval_every": 5,
        }
        for event in simulate(RunSpec(**spec), device="cpu"):
            recorder.record(event)
    runs = read_runs(engine, None)
    drawn = draw(Results(runs, runs, "", engine, identities, window_of), Choice(**choice))
    require(len(drawn.numbers), f"{name}: its table of numbers is empty")
    picture = folder / f"{name}.png"
    drawn.figure.savefig(picture)
    require(picture.stat().st_size, f"{name}: its picture is empty")
    numbers: pd.DataFrame = drawn.numbers
    return numbers
