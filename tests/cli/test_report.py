"""``dynabro report``."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Dynabro
from tests.cli.test_app import example
from tests.runs.store.made import change

EXAMPLE = Path(__file__).parents[2] / "results.db.example"
needs_web = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("vl_convert", "jinja2")),
    reason="vl-convert is not installed: pip install 'dynabro[web]'",
)


@pytest.mark.thorough
@needs_web
def test_the_example_writes_a_report_that_replaces_itself(dynabro: Dynabro, results: Path) -> None:
    words = example(dynabro, ["report"])
    for _ in range(2):
        outcome = dynabro(*words)
        assert (outcome.code, outcome.out) == (0, "")
        assert outcome.err.startswith("6 runs written to report.html (")
    text = Path("report.html").read_text(encoding="utf-8")
    assert "<title>digits - dynabro report</title>" in text
    assert "task = &#39;digits&#39;" in text
    assert len(text) < 1_200_000


@pytest.mark.thorough
@needs_web
def test_a_report_of_runs_of_which_some_have_no_code_digests(
    dynabro: Dynabro, results: Path
) -> None:
    change(results, "UPDATE runs SET code_digests = NULL WHERE id = 1")
    outcome = dynabro("report")
    assert outcome.code == 0
    assert "7 runs written to report.html (" in outcome.err
    change(
        results,
        'UPDATE runs SET code_digests = \'{"data/digits":"000000000000"}\' WHERE id IN (1, 2)',
    )
    assert dynabro("report").err.splitlines()[:2] == [
        "dynabro: warning: stored runs made with other data: 2 of 7 (digits: 2)",
        (
            "dynabro: warning: these runs were made with 2 versions of the data of digits, which "
            "no mean or comparison should mix"
        ),
    ]


@needs_web
@pytest.mark.thorough
def test_the_report_of_thousands_of_runs_is_small_and_silent(dynabro: Dynabro) -> None:
    outcome = dynabro("report", "digits-worst-case", "--db", str(EXAMPLE))
    assert outcome.code == 0
    assert outcome.err.startswith("2736 runs written to report.html (")
    assert outcome.err.count("\n") == 1  # no warning, such as about differences that are equal
    assert 1_000_000 < Path("report.html").stat().st_size < 5_000_000


@pytest.mark.thorough
@needs_web
def test_a_report_for_a_pipe(dynabro: Dynabro, results: Path, folder: Path) -> None:
    outcome = dynabro("report", "--out", "-")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("<!DOCTYPE html>")
    assert outcome.out.rstrip().endswith("</html>")
    assert not list(folder.glob("*.html"))


@needs_web
@pytest.mark.parametrize(
    ("where", "code", "problem"),
    [
        (
            "task = 'mnist'",
            66,
            "where=task = 'mnist': it holds for no run that has a result. Try: another condition",
        ),
        ("tusk = 1", 2, "SQL: no such column: tusk"),
        ("1) UNION SELECT (1", 2, "SQL: "),
    ],
)
def test_conditions_that_find_nothing(
    where: str, code: int, problem: str, dynabro: Dynabro, results: Path
) -> None:
    outcome = dynabro("report", "--where", where)
    assert (outcome.code, outcome.out) == (code, "")
    assert problem in outcome.err
    assert not Path("report.html").exists()


@pytest.mark.parametrize("missing", ["jinja2", "vl_convert"])
def test_without_the_extra(
    missing: str, dynabro: Dynabro, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name == missing else find(name, *more),
    )
    outcome: Any = dynabro("report")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.problems[-1].endswith("is not installed. Try: pip install 'dynabro[web]'")
