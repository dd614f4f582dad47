"""The figure ``rate``."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from dynabro_cli.answers.analysis.results import Results, check_means
from dynabro_cli.answers.figures._api import Drawn, figure
from dynabro_cli.answers.figures._panels import mark_diverged, panel_grid, write_title
from dynabro_cli.answers.figures._style import Line, Powers, looks, note_size
from dynabro_cli.answers.theory.rate import PARTS, SWEEP, Slope, cells, measure, series, slopes
from dynabro_cli.answers.theory.slopes import power_law

FIT = ("slope", "low", "high", "left_out", "unclear", "predicted", "of_bound", "verdict")
CONTROL = ("control_slope", "control_low", "control_high")


@figure("rate", sweep=SWEEP, reference="DynaBRO (ICML 2024), the theorems of Sections 3.3, 4 and 5")
def draw(results: Results) -> Drawn:
    """Mean squared gradients against T, delta and the share of dynamic rounds, with fitted
    exponents beside theory's.

    A dashed line has the exponent of the theorem's bound over these points, and goes through the
    middle of the points. Hollow markers are the null control: the same rounds without Byzantine
    workers and without noise. A point that is not above 0 has no logarithm; a small triangle at the
    bottom marks it.
    """
    measured = measure(results.runs, results.evaluations)
    if len(measured):
        place = ["part", "setting", "control", "place"]
        check_means(results.runs.merge(measured[["id", *place]], on="id"), place)
    points = cells(measured)
    fitted = {(slope.part, slope.setting): slope for slope in slopes(points)}
    parts = list(dict.fromkeys(part for part, _ in fitted))
    picture, axes = panel_grid(max(1, len(parts)), height=3.4, across=2)
    for panel, part in zip(axes, parts, strict=False):
        for setting, line in looks({name: name for name in PARTS[part].predicted}).items():
            if (part, setting) in fitted:
                _series(panel, series(points, part, setting), line, fitted[part, setting])
        panel.set(
            xscale="log",
            yscale="log",
            xlabel=_written(PARTS[part].against),
            ylabel=_written(PARTS[part].quantity),
        )
        values = points.loc[points["part"] == part, ["mean", "control"]].to_numpy(dtype=float)
        above = values[values > 0]  # a bar that reaches 0 ends at the axis
        panel.set_ylim(above.min() / 2 if len(above) else 0.1, None if len(above) else 1.0)
        if panel.get_legend_handles_labels()[0]:
            panel.legend(
                loc="upper center",
                bbox_to_anchor=(0.45, 0),
                borderaxespad=34 / note_size(6),
                fontsize=note_size(6),
                handlelength=1.6,
            )
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(
                Powers() if axis.get_view_interval()[0] < 1e-3 else FuncFormatter(_plain)
            )
            axis.set_minor_formatter(NullFormatter())
    rows = [
        {"part": part, "setting": setting}
        | {name: getattr(slope, name) for name in FIT}
        | dict(zip(CONTROL, slope.control, strict=True))
        for (part, setting), slope in fitted.items()
    ]
    fits = pd.DataFrame(rows, columns=["part", "setting", *FIT, *CONTROL])
    numbers = points.merge(fits, on=["part", "setting"], how="left")
    title = (
        "quadratic, bounded noise; legend: exponent (of the theorem's bound, dashed; of the "
        "control without noise and Byzantine workers, hollow); triangle: not above 0"
    )
    write_title(picture, results, numbers, "std", title)
    return Drawn(picture, numbers)


def _plain(value: float, _: object) -> str:
    return f"{value:g}"


def _written(text: str) -> str:
    """Return the words of an axis with the signs of mathematics."""
    signs = {
        "|grad f|^2": "|\N{NABLA}f|\N{SUPERSCRIPT TWO}",
        "|tau_d|/T": "share of dynamic rounds",
        "excess over |tau_d| = 0": "excess over static rounds",
        "delta": "\N{GREEK SMALL LETTER DELTA}",
        "eta": "\N{GREEK SMALL LETTER ETA}",
    }
    for word, sign in signs.items():
        text = text.replace(word, sign)
    return text


def _series(axes: Axes, means: pd.DataFrame, line: Line, fitted: Slope) -> None:
    """Draw points with the standard deviation over seeds, the fitted line, a line with theory's
    exponent, and the control.
    """
    below = means[~(means["mean"] > 0)]
    axes.plot(
        below["x"],
        [0.02] * len(below),
        "v",
        color=line.color,
        markersize=3,
        transform=axes.get_xaxis_transform(),
    )
    mark_diverged(axes, means["x"], means, line.color)
    seen = means[means["mean"].between(0, np.inf, inclusive="neither")]
    if seen.empty:
        return
    axes.errorbar(
        seen["x"],
        seen["mean"],
        seen["std"].fillna(0),
        color=line.color,
        marker=line.marker,
        linestyle="none",
        elinewidth=0.8,
    )
    control = means[means["control"] > 0]
    axes.plot(
        control["x"],
        control["control"],
        line.marker,
        color=line.color,
        markerfacecolor="none",
        markeredgewidth=0.6,
    )
    ends = np.array([seen["x"].min(), seen["x"].max()])
    fit = power_law(list(means["x"]), list(means["mean"]))
    beside = f"{fitted.control[0]:.2f}" if len(control) else "0" if fitted.controlled else "not run"
    label = f"{_written(fitted.setting)}: {fitted.slope:.2f} ({fitted.of_bound:.2f}; {beside})"
    if fitted.left_out:
        label += f", without {fitted.left_out} points"
    if fit is not None:
        axes.plot(ends, np.exp(fit.intercept) * ends**fit.slope, color=line.color)
        axes.plot([], [], color=line.color, marker=line.marker, label=label)
    middle = np.log(seen[["x", "mean"]].to_numpy()).mean(0)
    axes.plot(
        ends,
        np.exp(middle[1] + fitted.of_bound * (np.log(ends) - middle[0])),
        color=line.color,
        linestyle=(0, (3, 2)),
        linewidth=0.7,
    )
