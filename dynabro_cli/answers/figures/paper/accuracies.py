"""Figures of accuracies: each is a layout of a sweep's runs, and a row of a table."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import pandas as pd

from dynabro_cli.answers.analysis.cells import RUNS, curves, fractions, with_std
from dynabro_cli.answers.analysis.columns import DELTA_MAX
from dynabro_cli.answers.analysis.results import Results
from dynabro_cli.answers.figures._api import Choice, Drawn, Variant, figure
from dynabro_cli.answers.figures._panels import (
    ACCURACY,
    APART,
    blank,
    draw_curves,
    draw_fractions,
    legend,
    method_labels,
    millions,
    write_title,
)
from dynabro_cli.answers.figures._style import looks, narrow
from dynabro_cli.answers.figures.any import curves as along
from dynabro_cli.answers.figures.any import final, matrix

DYNABRO, OWN = "DynaBRO (ICML 2024)", "dynabro's own"

JPEG = "task=image-folder:name=cifar10-jpeg,like=cifar10"
REENCODED = (Variant((JPEG,), ""),)
"""Drawn on CIFAR-10 if there are no runs on the data set itself: the images re-encoded as JPEG, in
a folder.
"""
BERNOULLI = ("p=0.01,D=10", "p=0.01,D=50", "p=0.05,D=10")
"""Strategies of a sweep in the figures of Bernoulli switching."""


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
    shown, value, scattered = with_std(numbers, "test_accuracy"), "test_accuracy", False
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
        points = shown[shown["switching"] == row["switching"]]
        scattered |= draw_curves(above, points, series, value, series="method")
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
    legend(figure, labels, series)
    most = first.iloc[0]["spec"]["switching"]["delta_max"]
    what = f"{DELTA_MAX} = {most:g}{f', {APART}' if scattered else ''}"
    write_title(figure, results, numbers, "std", what=what)
    return Drawn(figure, pd.concat([numbers.drop(columns=RUNS), bars], ignore_index=True))


FINAL_BY_RATE = functools.partial(
    final.draw, choice=Choice(x="switching", hue="method", spread="std")
)
"""Figures 1 and 6."""
CURVES_BY_RATE = functools.partial(along.draw, choice=Choice(hue="method", facet="switching"))
"""Figures 5 and 7."""


class PaperFigure(NamedTuple):
    """One figure.

    Attributes:
        name: Its name.
        number: Its number in the paper; empty for dynabro's own.
        shows: What it shows, in a line.
        layout: The function that draws it.
        sweep: The sweep whose runs it shows; None for the sweep with the figure's name.
        variants: What is drawn if the database has no run of the sweep.
        delta_max: Of the strategies that it shows; None for all runs of the sweep.
    """

    name: str
    number: str
    shows: str
    layout: Callable[[Results], Drawn]
    sweep: str | None = None
    variants: tuple[Variant, ...] = ()
    delta_max: float | None = None


FINAL = "Final accuracy on {} against the switching rate K: {}."
CURVES = "Accuracy curves on {} for each switching rate K: {}."
FRACTIONS = (
    "Accuracy and Byzantine fractions on {} under Bernoulli switching, at most {} of "
    "25: IPM against CWMed."
)
QUARTER = "CIFAR-10, with a quarter of the channels and batches of 16,"
ALIE, FLIPS = "ALIE against the geometric median", "sign flips against CWTM"

ROWS = (
    PaperFigure(
        "cifar10-ipm-cwmed",
        "2",
        FRACTIONS.format("CIFAR-10", 18),
        curves_over_fractions,
        variants=REENCODED,
        delta_max=0.72,
    ),
    PaperFigure(
        "cifar10-ipm-cwmed-dmax048",
        "8",
        FRACTIONS.format("CIFAR-10", 12),
        curves_over_fractions,
        "cifar10-ipm-cwmed",
        variants=REENCODED,
        delta_max=0.48,
    ),
    PaperFigure(
        "cifar10-quarter",
        "2, with a quarter of the channels",
        FRACTIONS.format(QUARTER, 18),
        curves_over_fractions,
        variants=REENCODED,
        delta_max=0.72,
    ),
    PaperFigure(
        "cifar10-quarter-dmax048",
        "8, with a quarter of the channels",
        FRACTIONS.format(QUARTER, 12),
        curves_over_fractions,
        "cifar10-quarter",
        variants=REENCODED,
        delta_max=0.48,
    ),
    PaperFigure("digits-alie-gm", "6, on digits", FINAL.format("digits", ALIE), FINAL_BY_RATE),
    PaperFigure(
        "digits-alie-gm-curves",
        "7, on digits",
        CURVES.format("digits", ALIE),
        CURVES_BY_RATE,
        "digits-alie-gm",
    ),
    PaperFigure(
        "digits-bernoulli",
        "2, on digits",
        FRACTIONS.format("digits", 18),
        curves_over_fractions,
        delta_max=0.72,
    ),
    PaperFigure(
        "digits-bernoulli-dmax048",
        "8, on digits",
        FRACTIONS.format("digits", 12),
        curves_over_fractions,
        "digits-bernoulli",
        delta_max=0.48,
    ),
    PaperFigure(
        "digits-best",
        "1, on digits, at chosen learning rates",
        FINAL.format("digits", FLIPS),
        FINAL_BY_RATE,
    ),
    PaperFigure("digits-periodic", "1, on digits", FINAL.format("digits", FLIPS), FINAL_BY_RATE),
    PaperFigure(
        "digits-periodic-curves",
        "5, on digits",
        CURVES.format("digits", FLIPS),
        CURVES_BY_RATE,
        "digits-periodic",
    ),
    PaperFigure("mnist-alie-gm", "6", FINAL.format("MNIST", ALIE), FINAL_BY_RATE),
    PaperFigure(
        "mnist-alie-gm-curves", "7", CURVES.format("MNIST", ALIE), CURVES_BY_RATE, "mnist-alie-gm"
    ),
    PaperFigure(
        "mnist-best",
        "1, at chosen learning rates",
        FINAL.format("MNIST", FLIPS),
        FINAL_BY_RATE,
    ),
    PaperFigure("mnist-sf-cwtm", "1", FINAL.format("MNIST", FLIPS), FINAL_BY_RATE),
    PaperFigure(
        "mnist-sf-cwtm-curves", "5", CURVES.format("MNIST", FLIPS), CURVES_BY_RATE, "mnist-sf-cwtm"
    ),
    PaperFigure(
        "digits-worst-case",
        "",
        "Final accuracy on digits of every aggregator under every attack, with identities fixed "
        "and changing.",
        functools.partial(
            matrix.draw, choice=Choice(x="attack", hue="aggregator", facet="method,switching")
        ),
    ),
    PaperFigure(
        "many-workers",
        "",
        "Final accuracy of each method and rule on MNIST with 50 to 500 workers.",
        functools.partial(matrix.draw, choice=Choice(x="participation,workers", facet="attack")),
    ),
    PaperFigure(
        "text-switching",
        "",
        "Test loss of a transformer on a text, with identities fixed and changing.",
        functools.partial(
            along.draw, choice=Choice(hue="method", facet="switching", metric="loss")
        ),
    ),
)


def _register(row: PaperFigure) -> None:
    def draw(results: Results) -> Drawn:
        return row.layout(results)

    draw.__doc__ = row.shows
    shown = tuple(f"bernoulli:{rest},delta_max={row.delta_max}" for rest in BERNOULLI)
    only = {} if row.delta_max is None else {"switching": shown}
    reference = f"{DYNABRO}, Figure {row.number}" if row.number else OWN
    figure(
        row.name, sweep=row.sweep or row.name, reference=reference, variants=row.variants, **only
    )(draw)


for _row in ROWS:
    _register(_row)
