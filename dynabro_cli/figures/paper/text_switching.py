"""The figure ``text-switching``: a transformer on characters."""

from __future__ import annotations

import dataclasses
import math

from dynabro_cli.analysis.cells import curves
from dynabro_cli.analysis.columns import method_label
from dynabro_cli.analysis.results import Results
from dynabro_cli.figures._api import Drawn, figure
from dynabro_cli.figures._panels import SAMPLES, blank, draw_curves, entitle, legend, memory, rates
from dynabro_cli.figures._style import looks, narrow


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
    names = {
        (row["method"], row["pre_aggregators"]): method_label(row["spec"]["method"])
        + ("" if row["pre_aggregators"] == "none" else f", {row['pre_aggregators'].upper()}")
        for _, row in results.planned.iterrows()
    }
    named = results.runs.assign(
        series=[
            names[key]
            for key in zip(results.runs["method"], results.runs["pre_aggregators"], strict=True)
        ]
    )
    labels, places = {name: name for name in names.values()}, rates(results)
    series = looks(labels)
    numbers = curves(dataclasses.replace(results, runs=named), ("series", "switching"), "test_loss")
    numbers[["mean", "std", "low", "high"]] /= math.log(2)
    edges = numbers.assign(
        x=numbers["samples"] / 1000,
        low=numbers["mean"] - numbers["std"],
        high=numbers["mean"] + numbers["std"],
    )
    rows = len(places) if narrow() else 1
    picture, axes = blank(rows, len(places) // rows, height=0.9 + 2.2 * rows, sharey=True)
    for panel, (switching, label) in zip(axes.flat, places.items(), strict=True):
        draw_curves(panel, edges[edges["switching"] == switching], series)
        panel.set(title=f"K = {label}", xlabel=f"{SAMPLES}, thousands")
    for panel in axes[:, 0]:
        panel.set_ylabel("test loss, bits per character")
    legend(picture, labels, series)
    row = results.planned.iloc[0]
    title = f"a text, {row['spec']['attack']['name'].upper()} against CWTM{memory(results)}"
    entitle(picture, results, title, numbers, "std")
    return Drawn(picture, numbers)
