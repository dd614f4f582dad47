"""The charts of a report as Vega-Lite specifications; the page gives them data, sizes and
colours.
"""

from __future__ import annotations

from typing import Any

import altair as alt


def charts() -> dict[str, dict[str, Any]]:
    """Return the specification of each chart by name; its data have the chart's name, too."""
    return {
        name: chart.to_dict()
        for name, chart in {
            "final": _final(),
            "curves": _curves(),
            "matrix": _matrix(),
            "bars": _bars(),
            "timeline": _timeline(),
        }.items()
    }


def _series(title: str = "") -> tuple[Any, Any]:
    """Return the selection of hidden series, by a click on the legend, and the colour of series."""
    hidden = alt.selection_point(
        name="hidden", fields=["series"], bind="legend", toggle="true", empty=False
    )
    legend = alt.Legend(title=title or None, symbolLimit=40, labelLimit=260)
    return hidden, alt.Color("series:N", sort=None, legend=legend)


def _tips(*names: str) -> list[Any]:
    return [
        alt.Tooltip(f"{name}:N" if name in ("label", "series") else f"{name}:Q", title=name)
        for name in names
    ]


def _final() -> Any:
    """Final score by a column: a point per cell, with one standard deviation over seeds."""
    hidden, color = _series()
    x = alt.X("x:N", sort=None, title=None, axis=alt.Axis(labelLimit=160))
    offset = alt.XOffset("series:N", sort=None)
    shown = alt.Chart(alt.NamedData("final")).transform_filter(f"!{_is_hidden(hidden)}")
    y = alt.Y("mean:Q", title="final score")
    bars = shown.mark_rule().encode(
        x=x, xOffset=offset, y=alt.Y("low:Q", title="final score"), y2="high:Q", color=color
    )
    points = (
        shown.mark_point(filled=True, size=55, opacity=0.95)
        .encode(
            x=x,
            xOffset=offset,
            y=y,
            color=color,
            tooltip=_tips("label", "mean", "std", "n", "diverged"),
        )
        .add_params(hidden)
    )
    return alt.layer(bars, points)


def _curves() -> Any:
    """Scores along the budget: a line per cell, and a band of one standard deviation if the lines
    are few.
    """
    hidden, color = _series()
    shown = alt.Chart(alt.NamedData("curves")).transform_filter(f"!{_is_hidden(hidden)}")
    x = alt.X("budget:Q", title="gradient computations per worker", axis=alt.Axis(format="~s"))
    y = alt.Y("mean:Q", title="score")
    band = (
        shown.transform_filter("isValid(datum.low)")
        .mark_area(opacity=0.15, tooltip=None)
        .encode(x=x, y=alt.Y("low:Q", title="score"), y2="high:Q", color=color, detail="cell:N")
    )
    lines = (
        shown.mark_line(strokeWidth=1.6)
        .encode(x=x, y=y, color=color, detail="cell:N")
        .add_params(hidden)
    )
    points = shown.mark_point(size=40, opacity=0, filled=True).encode(
        x=x, y=y, color=color, detail="cell:N", tooltip=_tips("label", "budget", "mean", "std", "n")
    )
    return alt.layer(band, lines, points)


def _is_hidden(hidden: Any) -> str:
    """Return an expression that is true for a datum of a series that the legend hides."""
    return (
        f"(length(data('{hidden.name}_store')) > 0 && "
        f"vlSelectionTest('{hidden.name}_store', datum))"
    )


def _matrix() -> Any:
    """Worst score of each aggregator under each attack."""
    base = alt.Chart(alt.NamedData("matrix")).encode(
        x=alt.X(
            "attack:N",
            sort=None,
            title=None,
            axis=alt.Axis(labelAngle=-40, labelLimit=140, orient="top"),
        ),
        y=alt.Y("aggregator:N", sort=None, title=None, axis=alt.Axis(labelLimit=150)),
        tooltip=[
            alt.Tooltip(f"{name}:N") for name in ("aggregator", "attack", "worst", "of", "label")
        ],
    )
    color = alt.Color("value:Q", scale=alt.Scale(scheme="cividis"), legend=None)
    rects = base.mark_rect().encode(color=color)
    ink = alt.condition("datum.dark", alt.value("#ffffff"), alt.value("#000000"))
    texts = base.mark_text(fontSize=10).encode(text="worst:N", color=ink)
    return alt.layer(rects, texts)


def _bars() -> Any:
    """Share of rounds by fraction of Byzantine workers."""
    return (
        alt.Chart(alt.NamedData("bars"))
        .mark_bar(width=8, tooltip=True)
        .encode(
            x=alt.X(
                "fraction:Q", title="fraction of Byzantine workers", scale=alt.Scale(domain=[0, 1])
            ),
            y=alt.Y(
                "share:Q",
                title="share of rounds",
                axis=alt.Axis(format="%"),
                scale=alt.Scale(zero=True),
            ),
            tooltip=[alt.Tooltip("fraction:Q", format=".3f"), alt.Tooltip("share:Q", format=".1%")],
        )
    )


def _timeline() -> Any:
    """Spans of time in which each worker is Byzantine."""
    return (
        alt.Chart(alt.NamedData("timeline"))
        .mark_rect()
        .encode(
            x=alt.X("start:Q", title="tick", scale=alt.Scale(nice=False)),
            x2="end:Q",
            y=alt.Y("worker:O", title="worker, coloured when Byzantine"),
            tooltip=[
                alt.Tooltip("worker:O"),
                alt.Tooltip("start:Q", title="from"),
                alt.Tooltip("end:Q", title="to"),
            ],
        )
    )
