"""The figures of the number of dynamic rounds: rounds within which identities change."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd

from dynabro_cli.answers.analysis.cells import final_values
from dynabro_cli.answers.analysis.columns import RULES, TASKS
from dynabro_cli.answers.analysis.diverged import mark_note
from dynabro_cli.answers.analysis.results import Results, rows_with
from dynabro_cli.answers.figures._api import Drawn, figure
from dynabro_cli.answers.figures._panels import (
    ACCURACY,
    SCATTERED,
    draw_finals,
    legend,
    matrix_of_panels,
    method_labels,
    write_title,
)
from dynabro_cli.answers.figures._style import looks
from dynabro_cli.answers.figures.any.heatmap import draw_cells
from dynabro_cli.components.methods._levels import planned

CHANGES = {"mid-round": "changes mid-round", "periodic": "changes by computations"}
"""Titles of the two schedules, by their strategies."""
BORNE, WORST, LEARNT = 0.05, 0.10, 0.5
"""Largest mean loss of accuracy over the seeds and largest loss of one seed with which dynamic
rounds are borne, and the least mean without dynamic rounds.
"""

NUMBERS = 0, 4, 8, 17, 35, 71, 142, 285
"""Changes of identities in ``digits-phase-diagram``, as its rule has them: floor(T/K) for DynaBRO.

The sweep has them in this order, first for one round per computation, then for DynaBRO.
"""


def draw(results: Results) -> Drawn:
    """Final accuracy against the number of dynamic rounds, from none to all of T; a line marks
    sqrt(T).

    A row of panels per attack, a column per schedule of the changes. The axis has the mean number
    of dynamic rounds of DynaBRO under a schedule; SGD and momentum meet the same schedule, and
    their rounds have one computation. A number of dynamic rounds is ``borne`` if, at it and all
    smaller numbers, the mean over the seeds is at most 0.05 below the mean of the same seeds
    without dynamic rounds, no seed is more than 0.10 below, and that mean is at least 0.5.
    """
    results = results.named(_named)
    plan, runs = results.planned, results.runs
    by = ("attack_name", "method", "switching")
    numbers = _losses(final_values(results, by), runs)
    # others ended early, or have none
    whole = runs[(runs["status"] == "finished") & runs["method"].str.startswith("dynabro")]
    dynamic = whole.groupby("switching")["dynamic_rounds"].mean()
    numbers = numbers.assign(dynamic_rounds=numbers["switching"].map(dynamic))
    attacks, labels = list(dict.fromkeys(plan["attack_name"])), method_labels(results)
    series = looks(labels)
    picture, axes = matrix_of_panels(len(attacks), len(CHANGES), height=2.1, rest=0.9, sharey=True)
    row = plan.iloc[0]
    root = math.sqrt(
        planned(
            row["budget"], plan["spec"].map(lambda spec: spec["method"].get("jmax")).dropna().max()
        )[0]
    )
    kinds, scattered = itertools.product(attacks, CHANGES), False
    for panel, (attack, strategy) in zip(axes.flat, kinds, strict=True):
        places = [
            text
            for text in dict.fromkeys(plan["switching"])
            if text.partition(":")[0] in ("static", strategy)
        ]
        counts = [float(dynamic.get(text, np.nan)) for text in places]
        ticks = {
            text: (text.partition(":")[2] or "0") if np.isnan(count) else f"{count:.0f}"
            for text, count in zip(places, counts, strict=True)
        }
        shown, shown_runs = (rows_with(frame, attack_name=attack) for frame in (numbers, runs))
        scattered |= draw_finals(panel, shown, shown_runs, ticks, series, series="method")
        if all(count > 0 for count in counts[1:]):  # False for unknown numbers, too
            # between the places: points of a place are drawn beside it
            at = sum(count < root for count in counts) - 0.5
            panel.axvline(at, color="#000000", linestyle=(0, (3, 2)), linewidth=0.8)
        panel.set(title=f"{attack}: {CHANGES[strategy]}", xlabel="dynamic rounds", ylim=(0, 1))
    for panel in axes[:, 0]:
        panel.set_ylabel(f"final {ACCURACY}")
    legend(picture, labels, series)
    rule = RULES[row["aggregator"]]
    title = (
        f"{TASKS[row['task']]}, {rule}, m = {row['workers']}, f = {row['byzantine']}, T = "
        f"{root**2:.0f}; dashed: \N{SQUARE ROOT}T = {root:.1f}"
    )
    write_title(picture, results, numbers, "std", title, SCATTERED if scattered else "")
    return Drawn(picture, numbers)


def _named(runs: pd.DataFrame) -> pd.DataFrame:
    """Add the name of the attack, which is written differently for methods without a memory."""
    return runs.assign(attack_name=[spec["attack"]["name"].upper() for spec in runs["spec"]])


def _losses(numbers: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Add ``worst``, the lowest accuracy of a seed, and the losses: ``loss`` (mean), ``most``
    (largest), and ``borne``.

    ``borne`` is not False only because a smaller number of dynamic rounds has no runs yet.
    """
    place = ["attack_name", "method"]
    still = runs[runs["switching"] == "static"].set_index([*place, "seed"])["final_accuracy"]
    places = pd.MultiIndex.from_frame(runs[[*place, "seed"]])
    lost = runs.assign(lost=still.reindex(places).to_numpy() - runs["final_accuracy"].to_numpy())
    groups = lost.groupby([*place, "switching"], sort=False)
    losses = groups["final_accuracy"].min().rename("worst").to_frame()
    losses = losses.assign(loss=groups["lost"].mean(), most=groups["lost"].max()).reset_index()
    learnt = groups["final_accuracy"].mean().reset_index(drop=True) + losses["loss"] >= LEARNT
    losses["borne"] = learnt & (losses["loss"] <= BORNE) & (losses["most"] <= WORST)
    losses["strategy"] = losses["switching"].str.partition(":")[0]
    # the sweep lists the schedules by the number of dynamic rounds, so that a smaller number comes
    # first
    losses["borne"] = losses.groupby([*place, "strategy"], sort=False)["borne"].cummin()
    return numbers.merge(losses.drop(columns="strategy"), on=[*place, "switching"])


def phases(results: Results) -> Drawn:
    """Final accuracy as colour, by method and number of changes of identities, a panel per attack.

    A column has the number of dynamic rounds that DynaBRO makes on average. SGD and momentum meet
    as many changes, between their rounds. Under a mean is the number of diverged runs.
    """
    labels, texts = method_labels(results), results.planned["switching"].unique()
    numbers = final_values(results, ("attack", "method", "switching"))
    changes = dict(zip(texts, NUMBERS + NUMBERS[1:], strict=True))
    numbers["changes"] = numbers["switching"].map(changes)
    picture, axes = matrix_of_panels(2, 2, height=1.7, rest=0.8)
    for panel, (attack, part) in zip(
        axes.flat, numbers.groupby("attack", sort=False), strict=False
    ):
        cells = part.round(2).set_index(["method", "changes"])
        draw_cells(panel, cells, [*labels], NUMBERS, (), (0, 1))
        panel.set_xticks(range(len(NUMBERS)), NUMBERS)
        panel.set_yticks(range(len(labels)), labels.values())
        panel.tick_params(labelleft=panel in axes[:, 0])
        panel.set(title=attack, xlabel="changes of identities")
    what = f"final {ACCURACY}; {mark_note(numbers['diverged'].sum())}"
    write_title(picture, results, numbers.assign(diverged=0), what=what)
    return Drawn(picture, numbers)


REFERENCE = "dynabro's own; DynaBRO (ICML 2024), Theorem 4.1 and its corollary"
figure("digits-phase-diagram", sweep="digits-phase-diagram", reference=REFERENCE)(phases)
figure("digits-dynamic-rounds", sweep="digits-dynamic-rounds", reference=REFERENCE)(draw)
figure("mnist-dynamic-rounds", sweep="mnist-dynamic-rounds", reference=REFERENCE)(draw)
