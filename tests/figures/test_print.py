"""Figures at the widths of a paper: nothing is cut, and words do not overlap."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.table import Table
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from dynabro_cli.figures._latex import latex_table
from dynabro_cli.figures._tables import _lines
from tests.cli.conftest import Dynabro

EXAMPLE = Path(__file__).parents[2] / "results.db.example"
SLACK = 2.0
"""Pixels by which words may reach over an edge or into each other."""


def words_of(figure: Figure) -> Iterator[Text]:
    """Titles, names of axes, legends and cells; not the labels of ticks."""
    yield from figure.texts
    for legend in [
        *figure.legends,
        *(axes.get_legend() for axes in figure.axes if axes.get_legend()),
    ]:
        yield from legend.get_texts()
    for axes in figure.axes:
        if axes.axison:
            yield from (axes.title, axes.xaxis.label, axes.yaxis.label)
        for table in axes.findobj(Table):
            yield from (cell.get_text() for cell in table.get_celld().values())


def problems(figure: Figure) -> list[str]:
    """Words that leave the picture, and pairs of words that overlap."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    drawn = [text for text in words_of(figure) if text.get_visible() and text.get_text().strip()]
    boxes = [(text.get_text(), text.get_window_extent(canvas.get_renderer())) for text in drawn]
    whole = figure.bbox
    cut = [
        text
        for text, box in boxes
        if min(box.x0, box.y0) < -SLACK or box.x1 > whole.x1 + SLACK or box.y1 > whole.y1 + SLACK
    ]
    both = []
    for (one, first), (other, second) in itertools.combinations(boxes, 2):
        shared = Bbox.intersection(first, second)
        if shared is not None and min(shared.width, shared.height) > SLACK:
            both.append(f"{one} / {other}")
    return cut + both


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
    assert _lines("Dropout(0.25)-Conv(128)-ReLU", 15) == "Dropout(0.25)-\nConv(128)-ReLU"
    assert _lines("x 0.1 after 4,000\nor -0.5", 9) == "x 0.1\nafter\n4,000\nor -0.5"
    assert _lines("sf:negates=gradient, K=5", 12) == "sf:\nnegates=gradient,\nK=5"
    assert _lines("", 5) == ""
    assert _lines("-", 5) == "-"
