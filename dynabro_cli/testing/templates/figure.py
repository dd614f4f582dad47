"""Seconds that runs took."""

from __future__ import annotations

from matplotlib.figure import Figure

from dynabro_cli.answers.figures._api import Choice, Drawn, Results, plot


@plot("my-figure")
def my_figure(results: Results, choice: Choice) -> Drawn:
    """Seconds that runs took, by method or another column (--x)."""
    column = choice.x or "method"
    numbers = results.runs.groupby(column, as_index=False)["wall_seconds"].mean()
    figure = Figure(figsize=(5, 3), layout="constrained")
    axes = figure.subplots()
    axes.bar(numbers[column].astype(str), numbers["wall_seconds"])
    axes.set(xlabel=column, ylabel="seconds")
    return Drawn(figure, numbers)
