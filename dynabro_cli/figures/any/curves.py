"""The plot ``curves``."""

from __future__ import annotations

import dataclasses

from dynabro_cli.figures._api import Choice, Drawn, plot
from dynabro_cli.figures._data import Results
from dynabro_cli.figures._numbers import curves, within
from dynabro_cli.figures._panels import draw_curves, legend, millions, panel_grid, subtitle
from dynabro_cli.figures._style import looks, short
from dynabro_cli.figures.any._choice import column_of, default_facet, few_enough, metric_of, panels_of, with_series


@plot("curves")
def draw(results: Results, choice: Choice) -> Drawn:
    """Curves of any runs along samples or budget (--x, default samples), one line per --hue, one panel per --facet."""
    metric = metric_of(results, choice.metric, along=True)
    x = column_of("x", choice.x or "samples", ("samples", "budget"))
    hue = choice.hue and column_of("hue", choice.hue)
    facet = default_facet(results.runs, choice.facet, (hue,))
    runs = with_series(results.runs, hue, (facet,))
    labels = {name: short(name) for name in few_enough(list(dict.fromkeys(runs["series"])))}
    series = looks(labels)
    by = [*([facet] if facet else []), "series"]
    numbers = curves(dataclasses.replace(results, runs=runs), by, metric.along)
    panels = panels_of(runs, facet)
    figure, axes = panel_grid(len(panels), shared=not choice.free_y)
    for panel, (title, own) in zip(axes, panels, strict=False):
        shown = numbers if facet is None else numbers[numbers[facet] == own[facet].iloc[0]]
        low, high = within(shown["mean"] - shown["std"], shown["mean"] + shown["std"], metric.along)
        edges = shown.assign(x=shown[x], low=low, high=high)
        draw_curves(panel, edges, series)
        if metric.along == "gap":
            panel.set_yscale("log", nonpositive="clip")
        if x == "samples":
            panel.set_xlabel(millions(panel))
        else:
            panel.set_xlabel("budget, gradient computations of each worker")
        panel.set(title=short(title), ylabel=metric.label)
    legend(figure, labels, series)
    subtitle(figure, runs, numbers, "std")
    return Drawn(figure, numbers)
