"""The plot ``timeline``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from dynabro_cli.answers.analysis.columns import method_label, metric_of, short
from dynabro_cli.answers.analysis.diverged import DIVERGED
from dynabro_cli.answers.analysis.results import Results
from dynabro_cli.answers.figures._api import Choice, Drawn, plot
from dynabro_cli.answers.figures._panels import blank, mark_diverged
from dynabro_cli.answers.figures._style import LINES, NOTE_SIZE, note_size
from dynabro_cli.core.errors import DatabaseError, SpecError
from dynabro_cli.experiment.complete import answering

TICKS = {"round": "round", "budget": "gradient computation of each worker"}
"""Units of a switching strategy on an axis, by the column that counts them."""
ABSENT, ABSENT_BYZANTINE = 0.12, 0.55
"""Darkness of a worker that does not answer, from white 0 to black 1."""
MOST_CELLS = 100_000_000
"""Most workers times ticks, one byte each."""


@plot("timeline")
def draw(results: Results, choice: Choice) -> Drawn:
    """Byzantine workers over time in one run, the last one that --where finds, with its accuracy
    above.

    Identities are computed from the run's seed, or read from the table identities if no seed
    determines them, and compared with the stored counts. Workers that do not answer in a round are
    grey, dark grey if Byzantine. A run that counts gradient computations does not distinguish them.
    """
    for option in ("x", "hue", "facet"):
        if getattr(choice, option) is not None:
            raise SpecError(f"a timeline has no {option}. Try: no --{option}")
    if choice.free_y:
        raise SpecError("a timeline has one panel of numbers. Try: no --free-y")
    metric = metric_of(results, choice.metric, along=True)
    run = results.runs.iloc[-1]
    if int(run["workers"]) * max(int(run["rounds"]), int(run["budget_spent"])) > MOST_CELLS:
        raise SpecError(
            f"run {run['id']} has more than {MOST_CELLS:,} workers times ticks. Try: another "
            "run, with --where"
        )
    clock = "round" if run["clock"] == "round" else "budget"
    masks = masks_of(
        results, run.to_dict(), int(run["rounds"] if clock == "round" else run["budget_spent"])
    )
    answers = _answers(run.to_dict(), len(masks)) if clock == "round" else np.ones_like(masks)
    _compare(masks, results.rounds(int(run["id"])), clock)
    evaluations = results.evaluations[results.evaluations["run_id"] == run["id"]]
    figure, axes = blank(2, 1, height=3.4, sharex=True, height_ratios=(1, 1.3))
    above, below = axes[:, 0]
    line, end = evaluations[[clock, metric.along]].astype(float), len(masks) - 1
    line = line[np.isfinite(line[metric.along])]
    if lost := run["status"] == DIVERGED:
        mean = run[metric.final]
        ends = [*line[metric.along].tail(1), mean if np.isfinite(mean) else np.nan]
        ends = pd.DataFrame({clock: [end] * len(ends), metric.along: ends})
        line = pd.concat([line, ends])
        mark_diverged(above, [end], pd.DataFrame([{"mean": mean, "diverged": 1}]), LINES[0].color)
    above.plot(line[clock], line[metric.along], color=LINES[0].color)
    above.set_ylabel(metric.label)
    if metric.along == "gap":
        above.set_yscale("log", nonpositive="clip")
    place = (-0.5, len(masks) - 0.5, masks.shape[1] + 0.5, 0.5)
    shades = np.where(answers, masks, ABSENT + (ABSENT_BYZANTINE - ABSENT) * masks)
    below.imshow(
        shades.T,
        aspect="auto",
        interpolation="nearest",
        cmap="binary",
        extent=place,
        vmin=0,
        vmax=1,
    )
    below.set(xlabel=TICKS[clock], ylabel="worker", xlim=(place[0], place[1] + lost * 0.02 * end))
    below.yaxis.set_major_locator(MaxNLocator(integer=True))
    below.grid(visible=False)
    words = [
        method_label(run["spec"]["method"]),
        run["task"],
        run["rule"],
        run["attack"],
        run["switching"],
    ]
    title = (
        f"run {run['id']}: {', '.join(map(short, words))}, seed {run['seed']}\nblack: the "
        f"worker is Byzantine{'; x: the run diverged' if lost else ''}"
    )
    figure.suptitle(title, fontsize=note_size(NOTE_SIZE + 0.5), color="#333333")
    numbers = pd.DataFrame(
        masks.astype(int), columns=[f"worker_{number + 1}" for number in range(masks.shape[1])]
    )
    if not answers.all():
        numbers = numbers.assign(
            **{
                f"answers_{number + 1}": answers[:, number].astype(int)
                for number in range(len(masks.T))
            }
        )
    return Drawn(figure, numbers.rename_axis("tick").reset_index())


def masks_of(results: Results, run: Mapping[str, Any], ticks: int) -> np.ndarray[Any, Any]:
    """Return the Byzantine workers at each tick, [ticks, m]: as stored, or computed again."""
    changes = results.changes(run["id"])
    if changes.empty:
        return results.identities(run, ticks)
    masks = np.zeros((ticks, int(run["workers"])), dtype=bool)
    if (
        max((number for workers in changes["byzantine"] for number in workers), default=0)
        > masks.shape[1]
    ):
        raise DatabaseError(
            f"run {run['id']}: identities has workers that the run does not have. Try: dynabro "
            "db check"
        )
    # ticks before the first round, which measure V, have the identities of the first
    starts = [0, *changes["tick"].iloc[1:]]
    for start, end, workers in zip(starts, [*starts[1:], ticks], changes["byzantine"], strict=True):
        masks[start:end, [number - 1 for number in workers]] = True
    return masks


def _answers(run: Mapping[str, Any], rounds: int) -> np.ndarray[Any, Any]:
    """Return the workers that answered in each round, [rounds, m]."""
    answers = np.zeros((rounds, int(run["workers"])), dtype=bool)
    for round_ in range(rounds):
        answers[
            round_,
            answering(int(run["seed"]), float(run["participation"]), int(run["workers"]), round_),
        ] = True
    return answers


def _compare(masks: np.ndarray[Any, Any], rounds: pd.DataFrame, clock: str) -> None:
    """Raise DatabaseError unless identities and stored rounds have the same numbers of Byzantine
    workers.

    A round within which identities changed is skipped: only its largest number is stored.
    """
    still = rounds[rounds["dynamic"] == 0]
    ticks = still["round"] if clock == "round" else still["budget"] - still["cost"]
    if not ticks.between(0, len(masks) - 1).all():
        raise DatabaseError(
            "the rounds of the run do not agree with its row. Try: dynabro db check"
        )
    wrong = masks[ticks.to_numpy(dtype=int)].sum(1) != still["byzantine"].to_numpy()
    if wrong.any():
        raise DatabaseError(
            "identities computed from the seed differ from the run's: round "
            f"{still['round'].to_numpy()[wrong][0]} differs; "
            "was it made by another version of dynabro?"
        )
