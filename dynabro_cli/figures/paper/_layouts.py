"""Layouts of several figures of the paper, for different tasks."""

from __future__ import annotations

import pandas as pd

from dynabro_cli.analysis.cells import curves, final_values, fractions, with_std
from dynabro_cli.analysis.columns import DELTA_MAX, switching_axis
from dynabro_cli.analysis.results import Results
from dynabro_cli.figures._api import Drawn
from dynabro_cli.figures._panels import (
    ACCURACY,
    blank,
    draw_curves,
    draw_finals,
    draw_fractions,
    legend,
    method_labels,
    millions,
    plan_words,
    switching_labels,
    write_plan_title,
)
from dynabro_cli.figures._style import COLUMN, looks, narrow, note_size


def final_against_rate(results: Results) -> Drawn:
    """Draw final test accuracy against the switching rate K, with infinity at the right, as in
    Figures 1 and 6.
    """
    labels = method_labels(results)
    numbers = final_values(results, ("method", "switching"))
    figure, ((panel,),) = blank(1, 1, width=COLUMN, height=2.7)
    series = looks(labels)
    draw_finals(panel, numbers, results.runs, switching_labels(results), series, series="method")
    panel.set(xlabel=switching_axis(results.planned["clock"]), ylabel=f"final {ACCURACY}")
    legend(figure, labels, series, planned=results.planned)
    write_plan_title(figure, results, plan_words(results), numbers, "std")
    return Drawn(figure, numbers)


def curves_by_rate(results: Results) -> Drawn:
    """Draw test accuracy against the samples of all workers, one panel per switching rate K, as in
    Figures 5 and 7.
    """
    labels, places = method_labels(results), switching_labels(results)
    series = looks(labels)
    numbers = curves(results, ("method", "switching"))
    shown = with_std(numbers, "test_accuracy")
    columns = 2 if narrow() else 3
    rows = -(-(len(places) + 1) // columns)
    figure, axes = blank(rows, columns, height=2.0 * rows, sharex=True, sharey=True)
    panels = list(axes.flat)
    for panel, (switching, label) in zip(panels, places.items(), strict=False):
        draw_curves(panel, shown[shown["switching"] == switching], series, series="method")
        panel.set_title(f"K = {label}")
    for panel in panels[len(places) :]:
        panel.set_axis_off()
    for panel in panels[: len(places)]:
        panel.tick_params(labelbottom=True)
        samples = millions(panel)
    if narrow():  # a label of the whole picture would be under the legend
        panels[len(places) - 1].set_xlabel(samples.replace(", ", ",\n"))
    else:
        figure.supxlabel(samples, fontsize=note_size(7.5))
    for panel in axes[:, 0]:
        panel.set_ylabel(ACCURACY)
    legend(figure if narrow() else panels[len(places)], labels, series, planned=results.planned)
    write_plan_title(figure, results, plan_words(results), numbers, "std")
    return Drawn(figure, numbers)


def curves_over_fractions(results: Results) -> Drawn:
    """Draw test accuracy against samples above the histogram of Byzantine fractions, one column per
    p and D, as in Figure 2.

    The histogram counts the rounds of the planned method with the most rounds: with one seed, all
    methods face the same identities round by round, and methods with fewer rounds see the first of
    them.
    """
    labels = method_labels(results)
    series = looks(labels)
    numbers = curves(results, ("method", "switching"))
    shown = with_std(numbers, "test_accuracy")
    bars = fractions(results, ("method", "switching"))
    longest = results.runs.groupby("method", sort=False)["rounds"].mean().idxmax()
    bars = bars[bars["method"] == longest]
    first = results.planned.drop_duplicates("switching")
    figure, axes = blank(
        2, len(first), height=3.9, sharex="row", sharey="row", height_ratios=(1.5, 1)
    )
    labelled, break_ = ((len(first) // 2,), "\n") if narrow() else (range(len(first)), " ")
    most_samples = numbers["samples"].max()
    settled = numbers[numbers["samples"] > most_samples / 4]["mean"].min()
    for column, (_, row) in enumerate(first.iterrows()):
        above, below = axes[:, column]
        strategy = row["spec"]["switching"]
        draw_curves(above, shown[shown["switching"] == row["switching"]], series, series="method")
        above.set_title(f"p = {strategy['p']:g},{break_}D = {strategy['D']}")
        if settled > 0.5:  # differences near the top are what is to be seen
            above.set_ylim(max(0.0, settled - 0.1), 1.0)
        draw_fractions(below, bars[bars["switching"] == row["switching"]], row["workers"])
        below.set_xlim(-0.03, max(0.55, strategy["delta_max"] + 0.05))
    for above in axes[0]:  # panels without a run have the others' range, which is known now
        samples = millions(above)
    for column in labelled:
        axes[0, column].set_xlabel(samples)
        axes[1, column].set_xlabel("fraction of Byzantine workers")
    axes[0, 0].set_ylabel(ACCURACY)
    axes[1, 0].set_ylabel("share of rounds")
    legend(figure, labels, series, planned=results.planned)
    most = first.iloc[0]["spec"]["switching"]["delta_max"]
    write_plan_title(
        figure, results, f"{plan_words(results)}, {DELTA_MAX} = {most:g}", numbers, "std"
    )
    return Drawn(figure, pd.concat([numbers, bars], ignore_index=True))
