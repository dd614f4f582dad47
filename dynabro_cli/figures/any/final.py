"""The plot ``final``."""

from __future__ import annotations

import dataclasses

from dynabro_cli.figures._api import Choice, Drawn, plot
from dynabro_cli.figures._data import Results
from dynabro_cli.figures._numbers import final_values, points_of
from dynabro_cli.figures._panels import draw_finals, legend, panel_grid, subtitle
from dynabro_cli.figures._style import looks, short
from dynabro_cli.figures._tables import as_table
from dynabro_cli.figures.any._choice import (
    apart,
    axis_label,
    column_of,
    default_facet,
    few_enough,
    having,
    metric_of,
    ordered,
    panels_of,
    tick,
    with_series,
)


@plot("final")
def draw(results: Results, choice: Choice) -> Drawn:
    """Final numbers of any runs against a column (--x, default switching), one line per --hue, one panel per --facet."""
    metric = metric_of(results, choice.metric)
    results = having(results, metric)
    x = column_of("x", choice.x or "switching")
    hue = choice.hue and column_of("hue", choice.hue)
    facet = default_facet(results.runs, choice.facet, (x, hue))
    apart(x=x, facet=facet)
    runs = with_series(results.runs, hue, (x, facet))
    labels = {name: short(name) for name in few_enough(list(dict.fromkeys(runs["series"])))}
    series = looks(labels)
    by = [*([facet] if facet else []), x, "series"]
    named = dataclasses.replace(results, runs=runs)
    numbers = final_values(named, by, metric.final)
    panels = panels_of(runs, facet)
    figure, axes = panel_grid(len(panels), shared=not choice.free_y)
    for panel, (title, own) in zip(axes, panels, strict=False):
        shown = numbers if facet is None else numbers[numbers[facet] == own[facet].iloc[0]]
        places = ordered(own, x)
        points = points_of(dataclasses.replace(named, runs=own), x, "series", metric.final)
        draw_finals(panel, shown.assign(x=shown[x]) if x != "series" else shown, places, series, points)
        panel.set_xticklabels([tick(own, x, place) for place in places])
        panel.set(title=short(title), xlabel=axis_label(own, x), ylabel=metric.title)
    legend(figure, labels, series)
    subtitle(figure, runs, numbers, "std")
    return Drawn(figure, numbers, as_table(numbers, by))
