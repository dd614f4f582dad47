"""The plot ``final``."""

from __future__ import annotations

import dataclasses

from dynabro_cli.answers.analysis.cells import final_values
from dynabro_cli.answers.analysis.columns import (
    axis_label,
    column_of,
    having,
    is_number,
    metric_of,
    ordered,
    short,
    tick,
    with_columns,
)
from dynabro_cli.answers.analysis.results import Results
from dynabro_cli.answers.figures._api import Choice, Drawn, plot
from dynabro_cli.answers.figures._panels import (
    SCATTERED,
    cut_at_one,
    draw_finals,
    legend,
    panel_grid,
    write_title,
)
from dynabro_cli.answers.figures._tables import as_table
from dynabro_cli.answers.figures.any._choice import (
    apart,
    default_facet,
    panels_of,
    series_of,
    whole_rules,
)


@plot("final")
def draw(results: Results, choice: Choice) -> Drawn:
    """Final numbers of any runs against a column (--x, default switching), one colour per --hue,
    one panel per --facet.

    Numbers along the axis are joined by lines; words are not. At most two places have bars.
    """
    metric = metric_of(results, choice.metric)
    results = having(results, metric)
    choice = whole_rules(results.runs, choice)
    x = column_of("x", choice.x or "switching")
    hue = choice.hue and column_of("hue", choice.hue)
    runs = with_columns(results.runs, (x, hue, choice.facet))
    facet = default_facet(runs, choice.facet, (x, hue))
    apart(x=x, facet=facet)
    series = series_of(runs, choice, hue, (x, facet))
    by = [*([facet] if facet else []), x, "series"]
    named = dataclasses.replace(results, runs=series.runs)
    kept = filter(None, (hue, *by))
    numbers = final_values(named, list(kept), metric.final, interval=choice.spread != "std")
    panels = panels_of(series.runs, numbers, facet, choice)
    figure, axes = panel_grid(len(panels), sharey=not choice.free_y)
    line, scattered = is_number(runs, x), False
    for panel, (title, part, points) in zip(axes, panels, strict=True):
        values = set(part[x])
        places = choice.arranged([place for place in ordered(runs, x) if place in values])
        ticks = {place: choice.label(place, tick(part, x, place)) for place in places}
        scattered |= draw_finals(
            panel, points, part, ticks, series.lines, x=x, value=metric.final, line=line
        )
        cut_at_one(panel, metric.final)
        panel.set(title=short(title), xlabel=axis_label(part, x), ylabel=metric.title)
    legend(figure, series.labels, series.lines, series.title)
    what = SCATTERED if scattered else ""
    write_title(figure, named, numbers, choice.spread, what=what, shown=[*series.parts, x, facet])
    return Drawn(figure, numbers, as_table(numbers, by))
