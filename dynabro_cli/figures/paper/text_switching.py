"""The figure ``text-switching``: a transformer on characters."""

from __future__ import annotations

import math

from dynabro_cli.analysis.cells import curves, with_std
from dynabro_cli.analysis.columns import method_label
from dynabro_cli.analysis.results import Results
from dynabro_cli.figures._api import Drawn, figure
from dynabro_cli.figures._panels import (
    draw_curves,
    legend,
    matrix_of_panels,
    memory_words,
    millions,
    switching_labels,
    write_plan_title,
)
from dynabro_cli.figures._style import looks


@figure(
    "text-switching",
    sweep="text-switching",
    reference="dynabro's own; DynaBRO (ICML 2024), Figure 1, on a text",
)
def draw(results: Results) -> Drawn:
    """Test loss of a transformer on a text, in bits per character, along the samples; a panel per
    switching rate.

    Bands are one standard deviation: a 95% interval of two seeds is nine times as wide.
    """
    results = results.named(
        lambda runs: runs.assign(
            series=[
                method_label(spec["method"]) + ("" if chain == "none" else f", {chain.upper()}")
                for spec, chain in zip(runs["spec"], runs["pre_aggregators"], strict=True)
            ]
        )
    )
    labels, places = {name: name for name in results.planned["series"]}, switching_labels(results)
    series = looks(labels)
    numbers = curves(results, ("series", "switching"), "test_loss")
    numbers[["mean", "std", "low", "high"]] /= math.log(2)
    shown = with_std(numbers, "test_loss")
    picture, axes = matrix_of_panels(1, len(places), height=2.2, rest=0.9, sharey=True)
    for panel, (switching, label) in zip(axes.flat, places.items(), strict=True):
        draw_curves(panel, shown[shown["switching"] == switching], series)
        panel.set(title=f"K = {label}", xlabel=millions(panel))
    for panel in axes[:, 0]:
        panel.set_ylabel("test loss, bits per character")
    legend(picture, labels, series)
    row = results.planned.iloc[0]
    title = f"a text, {row['spec']['attack']['name'].upper()} against CWTM{memory_words(results)}"
    write_plan_title(picture, results, title, numbers, "std")
    return Drawn(picture, numbers)
