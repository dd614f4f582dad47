"""Figures at the widths of a paper: nothing is cut, and words do not overlap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.table import Table
from matplotlib.text import Annotation, Text

from dynabro_cli.answers.figures._latex import latex_table
from dynabro_cli.answers.figures._tables import in_lines
from tests.answers.figures.grids import Row, fill, planned
from tests.cli.conftest import Dynabro

EXAMPLE = Path(__file__).parents[3] / "results.db.example"
SLACK = 2.0
"""Pixels by which words may reach over an edge or into each other."""


def ticks_of(axis: Axis) -> Iterator[Text]:
    """Labels of ticks within the limits of an axis."""
    low, high = sorted(axis.get_view_interval())
    for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
        if low - 1e-6 <= tick.get_loc() <= high + 1e-6:
            yield from (tick.label1, tick.label2)


def words_of(figure: Figure) -> Iterator[Text]:
    """Titles, names and labels of axes, legends and cells; not the notes at points."""
    yield from figure.texts
    for legend in [
        *figure.legends,
        *(axes.get_legend() for axes in figure.axes if axes.get_legend()),
    ]:
        yield from (legend.get_title(), *legend.get_texts())
    for axes in figure.axes:
        if axes.axison:
            yield from (axes.title, axes.xaxis.label, axes.yaxis.label)
            yield from (*ticks_of(axes.xaxis), *ticks_of(axes.yaxis))
            yield from (text for text in axes.texts if not isinstance(text, Annotation))
        for table in axes.findobj(Table):
            yield from (cell.get_text() for cell in table.get_celld().values())


def problems(figure: Figure) -> list[str]:
    """Words that leave the picture, and pairs of words that overlap."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    texts = [text for text in words_of(figure) if text.get_visible() and text.get_text().strip()]
    boxes = np.array([text.get_window_extent(canvas.get_renderer()).extents for text in texts])
    names = [f"{text.get_text()}" for text in texts]
    whole = figure.bbox
    cut = [
        name
        for name, (left, low, right, high) in zip(names, boxes, strict=True)
        if min(left, low) < -SLACK or right > whole.x1 + SLACK or high > whole.y1 + SLACK
    ]
    low, high = boxes[:, :2], boxes[:, 2:]
    shared = (np.minimum(high[:, None], high) - np.maximum(low[:, None], low)).min(2) > SLACK
    return cut + [
        f"{names[one]} / {names[other]}" for one, other in np.argwhere(np.triu(shared, 1))
    ]


def share_of_panels(figure: Figure) -> float:
    """The share of rows of pixels that some panel has."""
    rows = np.zeros(10_000, dtype=bool)
    for axes in figure.axes:
        box = axes.get_position()
        rows[round(box.y0 * len(rows)) : round(box.y1 * len(rows))] = True
    return float(rows.mean())


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that a command saves."""
    found: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: found.append(figure))
    return found


NAMES = ("training-details", "mnist-sf-cwtm-curves", "kappa", "cifar10-quarter")


@pytest.mark.thorough
@pytest.mark.parametrize("width", ["column", "page"])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_cut_and_words_do_not_overlap(
    name: str, width: str, drawn: list[Figure], dynabro: Dynabro
) -> None:
    assert dynabro("plot", name, "--db", str(EXAMPLE), "--width", width).code == 0
    (figure,) = drawn
    assert problems(figure) == []
    assert {text.get_fontsize() for text in words_of(figure)} == {8.0}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["rate", "momentum-fails-paths"])
def test_a_figure_too_high_for_a_column_fits_a_page(
    name: str, drawn: list[Figure], dynabro: Dynabro
) -> None:
    outcome = dynabro("plot", name, "--db", str(EXAMPLE), "--width", "column")
    assert outcome.code == 2
    assert outcome.err.endswith(". Try: --width page, or fewer values with --where\n")
    assert dynabro("plot", name, "--db", str(EXAMPLE), "--width", "page").code == 0
    (figure,) = drawn
    assert problems(figure) == []
    assert share_of_panels(figure) >= 0.6
    assert figure.get_figheight() <= 9


ONE: dict[str, Sequence[object]] = {
    "budget": [40],
    "eval_every": [10],
    "seeds": ["0..1"],
    "method": ["sgd"],
    "switching": ["static"],
    "attack": ["sf"],
    "attack_entry": ["gradient"],
    "learning_rate": [0.1],
}
"""Fields of a sweep of one point."""
LONG = (
    "mimic:target=learned",
    "momentum-tailored:lambda=1,beta=0.9,schedule=printed",
    "optimal-alie:evals=16,start=0.5",
    "fang-trimmed-mean:b=2",
    "sf",
)
RULES = ("nnm+centered-clipping:tau=0.1,L=3", "arc+cwtm:f=3", "cwtm", "sign-majority")
METHODS = ("sgd", "momentum:beta=0.99,form=heavy-ball", "dynabro:clip=4", "momentum")
RATES = tuple(round(0.001 * 1.7**power, 5) for power in range(14))
WORDS = tuple(f"centered-clipping:tau=0.{number},L=3" for number in range(11, 27))
SHORT = tuple(f"{rule}:f={number}" for rule in ("cwtm", "krum") for number in range(8))
SWEEPS: dict[str, tuple[str, dict[str, Sequence[object]]]] = {
    "one point": ("final --x attack", {}),
    "attacks": ("final --x attack --hue method", {"attack": LONG, "method": METHODS}),
    "attacks, one method": ("final --x attack", {"attack": LONG}),
    "rules along": ("final --x aggregator --hue attack", {"aggregator": RULES, "attack": LONG}),
    "methods along": ("final --x method --hue attack", {"method": METHODS, "attack": LONG}),
    "rates": ("final --x learning_rate --hue method", {"learning_rate": RATES, "method": METHODS}),
    "rates, rules": (
        "final --x learning_rate --hue aggregator",
        {"learning_rate": RATES, "aggregator": RULES},
    ),
    "16 words": ("final --x aggregator", {"aggregator": WORDS}),
    "16 short words": ("final --x aggregator", {"aggregator": SHORT}),
    "16 series": ("final --x attack --hue aggregator", {"aggregator": WORDS, "attack": LONG[:3]}),
    "16 short series": (
        "final --x attack --hue aggregator",
        {"aggregator": SHORT, "attack": LONG[:3]},
    ),
    "4 x 4 series": (
        "final --x attack",
        {"aggregator": RULES, "method": METHODS, "attack": LONG[:2]},
    ),
    "2 panels": (
        "final --x attack --hue method --facet aggregator",
        {"aggregator": RULES[:2], "method": METHODS, "attack": LONG},
    ),
    "4 panels": (
        "final --x learning_rate --hue method --facet aggregator",
        {"aggregator": RULES, "method": METHODS, "learning_rate": RATES[:5]},
    ),
    "12 panels": (
        "final --x learning_rate --facet aggregator",
        {"aggregator": SHORT[:12], "learning_rate": RATES},
    ),
    "own vertical axes": (
        "final --x learning_rate --facet aggregator --free-y",
        {"aggregator": RULES, "learning_rate": RATES[:6]},
    ),
    "budgets": (
        "final --x budget --hue method",
        {"budget": (40, 100, 300, 1000), "method": METHODS},
    ),
    "loss": ("final --x attack --hue method --metric loss", {"attack": LONG, "method": METHODS}),
    "curves": ("curves --hue method", {"method": METHODS}),
    "curves of attacks": ("curves --hue attack", {"attack": LONG}),
    "curves, panels": ("curves --hue method --facet attack", {"method": METHODS, "attack": LONG}),
    "curves, budget": ("curves --x budget --hue aggregator", {"aggregator": WORDS}),
    "curves, loss": ("curves --hue method --metric loss", {"method": METHODS}),
    "gaps": (
        "curves --hue method --metric gap",
        {"method": METHODS},
    ),
    "gaps, panels": (
        "curves --hue method --metric gap --facet attack",
        {"method": METHODS, "attack": LONG[:3]},
    ),
    "heat map": (
        "heatmap --x attack --hue aggregator",
        {"attack": LONG, "aggregator": RULES},
    ),
    "heat map of methods": (
        "heatmap --x method --hue aggregator",
        {"attack": LONG[:2], "method": METHODS, "aggregator": RULES},
    ),
    "heat map, panels": (
        "heatmap --x attack --hue aggregator --facet method",
        {"attack": LONG, "aggregator": RULES, "method": METHODS[:3]},
    ),
    "heat map of 12 rates": (
        "heatmap --x learning_rate --hue aggregator",
        {"learning_rate": RATES[:12], "aggregator": WORDS},
    ),
    "matrix": ("matrix", {"attack": LONG, "aggregator": RULES}),
    "matrix, panels": (
        "matrix --facet method",
        {"attack": LONG[:3], "aggregator": RULES, "method": METHODS[:2]},
    ),
    "matrix of 16": ("matrix", {"attack": LONG[:2], "aggregator": WORDS}),
    "histogram": ("histogram --facet aggregator", {"aggregator": RULES}),
    "timeline": ("timeline", {"attack": LONG[:1]}),
}
"""Options of a plot, and the values whose combinations are runs."""
QUICK = {"attacks", "16 words", "4 panels", "heat map"}
"""Sweeps that the usual tests draw."""
REFUSED = {
    ("16 series", "column"),
    ("4 x 4 series", "column"),
    ("4 x 4 series", "page"),
    ("12 panels", "column"),
    ("curves, budget", "column"),
    ("gaps, panels", "column"),
    ("heat map, panels", "column"),
    ("matrix", "column"),
    ("matrix, panels", "column"),
    ("matrix, panels", "page"),
    ("matrix of 16", "column"),
    ("matrix of 16", "page"),
}
"""Sweeps with too many words for a width: they may be refused."""


def sweep_of(values: dict[str, Sequence[object]], *, gaps: bool = False) -> list[Row]:
    """Rows of runs for all combinations of values, with two seeds."""
    fields = ONE | values
    return planned(
        "momentum-fails-gap" if gaps else "digits-periodic",
        *(f"{name}={value}" for name, several in fields.items() for value in several),
    )


@pytest.mark.parametrize("width", ["column", "page"])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else pytest.mark.thorough) for name in SWEEPS],
)
def test_a_sweep_fits_a_paper_or_is_refused(
    name: str, width: str, drawn: list[Figure], dynabro: Dynabro, folder: Path
) -> None:
    """Panels have most of the height, and words do not overlap; otherwise there is no file."""
    options, values = SWEEPS[name]
    fill(folder / "results.db", sweep_of(values, gaps="gap" in options))
    outcome = dynabro("plot", *options.split(), "--width", width, "--out", "drawn")
    if outcome.code == 2:
        assert (name, width) in REFUSED
        assert outcome.out == ""
        assert outcome.err.startswith(f"dynabro: width={width}: ")
        assert outcome.err.count("\n") == 1
        assert " Try: " in outcome.err
        assert not (folder / "drawn").exists()
        return
    assert (outcome.code, outcome.err) == (0, "")
    (figure,) = drawn
    assert problems(figure) == []
    assert share_of_panels(figure) >= 0.6
    assert figure.get_figwidth() == {"column": 3.3, "page": 6.8}[width]
    assert figure.get_figheight() <= 9


def test_a_figure_with_words_that_overlap_has_a_problem() -> None:
    figure = Figure(figsize=(2, 1))
    for axes in figure.subplots(1, 2):
        axes.set_title("a title that is too long")
    assert problems(figure)


def test_long_cells_of_latex_have_a_width() -> None:
    rows = [
        ["architecture", "Conv(20)-ReLU-MaxPool-Conv(20)-ReLU-MaxPool-FC(500)", "1"],
        ["m", "17", "2"],
    ]
    table = pd.DataFrame(rows, columns=["", "MNIST", "seeds"])
    head = latex_table(table).splitlines()[0]
    assert head == r"\begin{tabular}{lp{0.35\linewidth}r}"


def test_lines_of_a_cell_break_behind_hyphens() -> None:
    assert in_lines("Dropout(0.25)-Conv(128)-ReLU", 15) == "Dropout(0.25)-\nConv(128)-ReLU"
    assert in_lines("x 0.1 after 4,000\nor -0.5", 9) == "x 0.1\nafter\n4,000\nor -0.5"
    assert in_lines("sf:negates=gradient, K=5", 12) == "sf:\nnegates=gradient,\nK=5"
    assert in_lines("", 5) == ""
    assert in_lines("-", 5) == "-"
