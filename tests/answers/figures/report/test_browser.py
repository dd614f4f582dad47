"""The report in a real browser: charts are drawn, the table sorts and filters, nothing fails,
nothing is loaded.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dynabro_cli.answers.figures.report.page import page
from tests.answers.figures.report.browser import Watched, browser, opened
from tests.answers.figures.report.conftest import EVIL, Gathered
from tests.runs.store.made import change

pytestmark = pytest.mark.thorough

DESK = {"viewport": {"width": 1280, "height": 800}}
PHONE = {"viewport": {"width": 390, "height": 844}}


def make_page(title: str, about: dict[str, Any], content: dict[str, Any]) -> str:
    return "".join(page(title, about, content))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def report(gathered: Gathered, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report of the real runs."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(
        make_page(
            "Runs",
            {"database": "results.db", "where": None, "made": "now", "version": "0"},
            gathered(),
        ),
        encoding="utf-8",
    )
    return path.as_uri()


def drawn(watched: Watched) -> Watched:
    """Open all parts, and wait until all charts are drawn."""
    watched.page.wait_for_selector('body[data-drawn="yes"]')
    watched.page.get_by_role("button", name="Open all").click()
    watched.page.wait_for_timeout(200)
    watched.page.wait_for_selector('body[data-drawn="yes"]')
    return watched


def column(watched: Watched, name: str) -> list[str]:
    """The cells of a column of the table of runs."""
    heads = [text.strip() for text in watched.page.locator("#table thead th").all_inner_texts()]
    place = heads.index(name) + 1
    texts: list[str] = watched.page.locator(
        f"#table tbody tr:not(.more) > :nth-child({place})"
    ).all_inner_texts()
    return texts


def choose(watched: Watched, label: str, value: str) -> None:
    """Choose a value of a control."""
    controls = watched.page.locator("#controls label, #controls .vega-bind", has_text=label)
    controls.first.locator("select").select_option(label=value)


def clean(watched: Watched) -> None:
    assert watched.problems == []
    assert watched.requests == []


@pytest.mark.parametrize(
    ("scheme", "size"), [("light", {}), ("dark", PHONE)], ids=["light desk", "dark phone"]
)
def test_charts_are_drawn(scheme: str, size: dict[str, Any], chromium: Any, report: str) -> None:
    watched = drawn(opened(chromium, report, color_scheme=scheme, **size))
    for name in ("scores", "who"):
        chart = watched.page.locator(f"#{name} svg.marks")
        assert chart.count() == 1, name
        box = chart.bounding_box()
        assert box["width"] > 250, name
        assert box["height"] > 100, name
        marks = [f".mark-{kind} path" for kind in ("symbol", "line", "area", "rect")]
        assert chart.locator(", ".join(marks)).count() > 10, name
        assert watched.page.locator(f"#{name} .chart-wrapper").get_attribute("aria-label"), name
    assert watched.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    background = watched.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
    clean(watched)


def test_the_answer_comes_first(chromium: Any, report: str) -> None:
    """On the first screen are the contents, the sentence and the charts, then a matrix; all else is
    folded, and nothing is cut.
    """
    for size in (DESK, PHONE):
        watched = opened(chromium, report, **size)
        watched.page.wait_for_selector('body[data-drawn="yes"]')
        sentence = watched.page.locator(".sentence:visible")
        assert sentence.inner_text().startswith("no test separates the best two: DynaBRO with ")
        first = (
            ["#answer .sentence", "#scores svg.marks"] if size is DESK else ["#answer .sentence"]
        )
        for name in ("nav a >> nth=-1", *first):
            box = watched.page.locator(name).bounding_box()
            assert box["y"] + box["height"] < size["viewport"]["height"], name
        matrix = watched.page.locator("table:visible")
        assert matrix.count() == 1
        assert set(matrix.locator("tbody th").all_inner_texts()) >= {"SGD", "DynaBRO"}
        assert matrix.locator("td.best").count() == 1
        open_parts = watched.page.locator("details.fold[open]")
        assert [part.get_attribute("id") for part in open_parts.all()] == ["along", "cells"]
        assert watched.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        clean(watched)


def test_the_names_of_sweeps_are_folded(
    chromium: Any, gathered: Gathered, real_database: Path, tmp_path: Path
) -> None:
    """Charts begin with the sweep of the answer, not with a larger one that has no answer."""
    path = tmp_path / "sweeps.db"
    shutil.copy(real_database, path)
    change(path, "UPDATE runs SET sweep = iif(method = 'sgd', 'lone', 'pair')")
    page = tmp_path / "report.html"
    about = {"database": "results.db", "where": None, "made": "now", "version": "0"}
    content = gathered(path, "task = 'digits' AND (method = 'sgd' OR seed = 0)")
    content["about"] = [
        {"name": f"sweep {number}", "description": "long " * 40, "text": "name: x"}
        for number in range(40)
    ]
    page.write_text(make_page("Runs", about, content), encoding="utf-8")
    watched = opened(chromium, page.as_uri(), **DESK)
    watched.page.wait_for_selector('body[data-drawn="yes"]')
    assert watched.page.get_by_text("sweep 0").first.is_hidden()
    assert watched.page.locator("#scores svg.marks").bounding_box()["y"] < 500
    assert "sweep pair" in watched.page.locator("#answer h2").inner_text()
    assert watched.page.locator("#count").inner_text() == "2 of 4 runs on digits, in 2 cells"
    watched.page.locator("nav a", has_text="Sweeps").click()
    assert watched.page.get_by_text("sweep 0").first.is_visible()
    clean(watched)


def test_filters_fit_a_phone(chromium: Any, report: str) -> None:
    watched = drawn(opened(chromium, report, **PHONE))
    boxes = [box.bounding_box() for box in watched.page.locator(".vega-bind:visible").all()]
    assert len(boxes) > 3
    assert all(box["height"] < 90 for box in boxes)


def test_the_legend_has_what_is_drawn(chromium: Any, report: str) -> None:
    """A filter draws the charts again, and keeps the focus."""
    watched = drawn(opened(chromium, report))
    legend = watched.page.locator("#scores .role-legend-label text")
    assert legend.count() == 3
    watched.page.locator('[name="only_method"]').focus()
    choose(watched, "method", "SGD")
    lines(watched, 1)
    assert legend.all_text_contents() == ["SGD"]
    assert watched.page.evaluate("document.activeElement.name") == "only_method"
    clean(watched)


LINES = "#scores .mark-line path[aria-roledescription='line mark']"


def lines(watched: Watched, number: int) -> None:
    """Wait for a number of curves."""
    watched.page.wait_for_function(
        "([lines, left]) => document.querySelectorAll(lines).length === left", arg=[LINES, number]
    )


def test_the_reader_chooses_colours(chromium: Any, report: str) -> None:
    """The charts are drawn again, with the filters as they were."""
    watched = drawn(opened(chromium, report))
    lines(watched, 3)
    choose(watched, "method", "SGD")
    lines(watched, 1)
    choose(watched, "colour", "each cell")
    lines(watched, 1)
    choose(watched, "method", "all")
    lines(watched, 3)
    clean(watched)


def test_sorting(chromium: Any, report: str) -> None:
    watched = drawn(opened(chromium, report))
    assert column(watched, "run") == [str(number) for number in range(1, 7)]
    sort = watched.page.locator("#table thead button", has_text="accuracy")
    sort.click()
    rising = [float(text) for text in column(watched, "accuracy")]
    assert rising == sorted(rising)
    assert rising[0] < rising[-1]
    assert watched.page.locator('th[aria-sort="ascending"]').inner_text().strip() == "accuracy"
    sort.click()
    assert [float(text) for text in column(watched, "accuracy")] == rising[::-1]
    assert watched.page.locator('th[aria-sort="descending"]').inner_text().strip() == "accuracy"
    clean(watched)


def test_filters_apply_to_the_table_and_to_the_charts(chromium: Any, report: str) -> None:
    watched = drawn(opened(chromium, report))
    lines(watched, 3)
    choose(watched, "method", "SGD")
    lines(watched, 1)
    assert set(column(watched, "method")) == {"SGD"}
    assert watched.page.locator("#count").inner_text() == "2 of 6 runs on digits, in 1 cells"
    choose(watched, "method", "all")
    lines(watched, 3)
    for words, count, methods in (("dynabro SEED", 2, {"DynaBRO"}), ("no such words", 0, set())):
        watched.page.locator("#words").fill(words)
        assert watched.page.locator("#count").inner_text().startswith(f"{count} of 6 runs")
        assert set(column(watched, "method")) == methods
    clean(watched)


def test_another_task_has_its_own_metric(chromium: Any, report: str) -> None:
    watched = drawn(opened(chromium, report))
    choose(watched, "task", "quadratic")
    lines(watched, 1)
    assert "quadratic" in watched.page.locator("#count").inner_text()
    assert len(column(watched, "gap")) == 1
    clean(watched)


def test_the_legend_hides_a_series(chromium: Any, report: str) -> None:
    watched = drawn(opened(chromium, report))
    for left in (2, 3):
        watched.page.locator("#scores .role-legend-symbol path").first.click()
        lines(watched, left)
    clean(watched)


def test_a_run_shows_how_to_repeat_it(chromium: Any, report: str) -> None:
    watched = drawn(opened(chromium, report))
    button = watched.page.get_by_role("button", name="Run 3: how to repeat it")
    button.click()
    assert button.get_attribute("aria-expanded") == "true"
    assert (
        watched.page.locator("tr.more code")
        .inner_text()
        .startswith("dynabro run --task digits --model logistic")
    )
    button.click()
    assert watched.page.locator("tr.more").count() == 0
    clean(watched)


def test_a_strangers_texts_do_nothing(
    chromium: Any, gathered: Gathered, hostile: Path, tmp_path: Path
) -> None:
    content = gathered(hostile)
    for field in content["fields"]:
        field["values"] = [f"{value}{EVIL}" for value in field["values"]]
        field["label"] = field["meaning"] = EVIL
    path = tmp_path / "evil.html"
    path.write_text(
        make_page(EVIL, {"database": EVIL, "where": EVIL, "made": EVIL, "version": EVIL}, content),
        encoding="utf-8",
    )
    watched = drawn(opened(chromium, path.as_uri()))
    watched.page.locator("#table tbody button").first.click()
    watched.page.locator("#scores .mark-symbol path").first.hover()
    assert watched.page.title() == f"{EVIL} - dynabro report"
    assert watched.page.locator("img").count() == 0
    assert watched.page.locator("script").count() == 3
    clean(watched)


def test_an_injected_script_would_not_run(
    chromium: Any, gathered: Gathered, tmp_path: Path
) -> None:
    """The page's policy holds even if a text became HTML."""
    text = make_page(
        "Runs", {"database": "results.db", "where": None, "made": "now", "version": "0"}, gathered()
    )
    bad = (
        "<script>document.title='owned'</script><img src='http://127.0.0.1:9/x.png' "
        "onerror=\"document.title='owned'\">"
    )
    path = tmp_path / "injected.html"
    path.write_text(text.replace("<main>", f"<main>{bad}"), encoding="utf-8")
    watched = drawn(opened(chromium, path.as_uri()))
    assert watched.page.title() == "Runs - dynabro report"
    assert len(watched.problems) >= 2
    assert all("Content Security Policy" in problem for problem in watched.problems)
