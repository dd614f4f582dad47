"""The paper's figures of image tasks: each is a layout of a sweep's runs, and a row of a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dynabro_cli.analysis.results import Results
from dynabro_cli.figures._api import Drawn, Variant, figure
from dynabro_cli.figures.paper._layouts import (
    curves_by_rate,
    curves_over_fractions,
    final_against_rate,
)

JPEG = "task=image-folder:name=cifar10-jpeg,like=cifar10"
REENCODED = (Variant((JPEG,), ""),)
"""Drawn on CIFAR-10 if there are no runs on the data set itself: the images re-encoded as JPEG, in
a folder.
"""
BERNOULLI = ("p=0.01,D=10", "p=0.01,D=50", "p=0.05,D=10")
"""Strategies of a sweep in the figures of Bernoulli switching."""


class PaperFigure(NamedTuple):
    """One figure.

    Attributes:
        name: Its name.
        number: Its number in the paper.
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
    PaperFigure("digits-alie-gm", "6, on digits", FINAL.format("digits", ALIE), final_against_rate),
    PaperFigure(
        "digits-alie-gm-curves",
        "7, on digits",
        CURVES.format("digits", ALIE),
        curves_by_rate,
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
        final_against_rate,
    ),
    PaperFigure(
        "digits-periodic", "1, on digits", FINAL.format("digits", FLIPS), final_against_rate
    ),
    PaperFigure(
        "digits-periodic-curves",
        "5, on digits",
        CURVES.format("digits", FLIPS),
        curves_by_rate,
        "digits-periodic",
    ),
    PaperFigure("mnist-alie-gm", "6", FINAL.format("MNIST", ALIE), final_against_rate),
    PaperFigure(
        "mnist-alie-gm-curves", "7", CURVES.format("MNIST", ALIE), curves_by_rate, "mnist-alie-gm"
    ),
    PaperFigure(
        "mnist-best",
        "1, at chosen learning rates",
        FINAL.format("MNIST", FLIPS),
        final_against_rate,
    ),
    PaperFigure("mnist-sf-cwtm", "1", FINAL.format("MNIST", FLIPS), final_against_rate),
    PaperFigure(
        "mnist-sf-cwtm-curves", "5", CURVES.format("MNIST", FLIPS), curves_by_rate, "mnist-sf-cwtm"
    ),
)


def _register(row: PaperFigure) -> None:
    def draw(results: Results) -> Drawn:
        return row.layout(results)

    draw.__doc__ = row.shows
    shown = tuple(f"bernoulli:{rest},delta_max={row.delta_max}" for rest in BERNOULLI)
    only = {} if row.delta_max is None else {"switching": shown}
    reference = f"DynaBRO (ICML 2024), Figure {row.number}"
    figure(
        row.name, sweep=row.sweep or row.name, reference=reference, variants=row.variants, **only
    )(draw)


for _row in ROWS:
    _register(_row)
