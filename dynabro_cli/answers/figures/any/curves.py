"""The plot ``curves``."""

from __future__ import annotations

import dataclasses

from dynabro_cli.answers.analysis.cells import RUNS, curves, with_std
from dynabro_cli.answers.analysis.columns import column_of, metric_of, short, with_columns
from dynabro_cli.answers.analysis.results import Results
from dynabro_cli.answers.figures._api import Choice, Drawn, plot
from dynabro_cli.answers.figures._panels import (
    APART,
    cut_at_one,
    draw_curves,
    legend,
    millions,
    panel_grid,
    write_title,
)
from dynabro_cli.answers.figures.any._choice import default_facet, panels_of, series_of, whole_rules


@plot("curves")
def draw(results: Results, choice: Choice) -> Drawn:
    """Curves of any runs along samples or budget (--x, default samples), one line per --hue, one
    panel per --facet.
    """
    metric = metric_of(results, choice.metric, along=True)
    choice = whole_rules(results.runs, choice)
    x = column_of("x", choice.x or "samples", ("samples", "budget"))
    hue = choice.hue and column_of("hue", choice.hue)
    runs = with_columns(results.runs, (hue, choice.facet))
    facet = default_facet(runs, choice.facet, (hue,))
    series = series_of(runs, choice, hue, (facet,))
    by = [name for name in (hue, facet, "series") if name]
    named = dataclasses.replace(results, runs=series.runs)
    panels_of(series.runs, series.runs, facet, choice)  # refuse before evaluations are read
    numbers = curves(named, by, metric.along)
    panels = panels_of(series.runs, numbers, facet, choice)
    figure, axes = panel_grid(len(panels), sharey=not choice.free_y)
    scattered = False
    for panel, (title, _, points) in zip(axes, panels, strict=True):
        points = with_std(points, metric.along)
        scattered |= draw_curves(panel, points, series.lines, metric.along, x=x)
        if metric.along == "gap":
            panel.set_yscale("log", nonpositive="clip")
        if x == "samples":
            panel.set_xlabel(millions(panel))
        else:
            panel.set_xlabel("budget, gradient computations of each worker")
        cut_at_one(panel, metric.final)
        panel.set(title=short(title), ylabel=metric.label)
    legend(figure, series.labels, series.lines, series.title)
    what = APART if scattered else ""
    write_title(figure, named, numbers, "std", what=what, shown=[*series.parts, facet])
    return Drawn(figure, numbers.drop(columns=RUNS))
