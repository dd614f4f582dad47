"""The pages of ``plots/``: every number and verdict of it is computed by a query, and it is the
database's.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sqlite3
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest
from scipy.stats import ttest_rel

from dynabro_cli.answers.analysis.paired_tests import holm
from dynabro_cli.answers.figures._api import GRIDS, RECORDS, REGISTRY
from dynabro_cli.runs.store.open.engine import open_for_writing

ROOT = Path(__file__).parents[3]
PLOTS, EXAMPLE = ROOT / "plots", ROOT / "results.db.example"
PARAMETERS = {
    "0.9",
    "0.99",
    "0.001",
    "0.01",
    "0.02",
    "0.03",
    "0.05",
    "0.1",
    "0.10",
    "0.2",
    "0.3",
    "0.5",
    "0.7",
    "0.8",
    "3.2",
    "4.1",
}
"""Decimal numbers that the template may have: parameters, limits that its sentences name, and a
section of the paper.
"""


PAPER = os.environ.get("DYNABRO_TEST_PAPER", "")
"""The paper's LaTeX source, which does not come with the project."""
SYMBOLS = "alpha beta delta epsilon eta lambda sigma theta floor log max Jmax methodName"
"""LaTeX commands that are read as words; all others are ignored."""

WORDS = ("ahead", "behind")


def paired_p(theirs: Sequence[float], ours: Sequence[float]) -> float:
    return float(ttest_rel(ours, theirs).pvalue)


@pytest.fixture(scope="module")
def render() -> ModuleType:
    spec = importlib.util.spec_from_file_location("render", PLOTS / "render.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_many_workers_are_judged_by_the_sweeps_rule(render: ModuleType) -> None:
    """Six paired t-tests have one correction; the number of workers matters from 0.05 on."""
    random, blocks = Random(0), {name: sql for _, name, sql in render.blocks(PLOTS / "numbers.sql")}
    connection = sqlite3.connect(":memory:")
    for name, count, function in (("paired_p", 1, render.paired_p), ("cell", 2, render.cell)):
        connection.create_aggregate(name, count, render.over_rows(function))
    connection.execute(
        "CREATE TABLE counted (sweep, status, attack, participation, pre_aggregators, aggregator, "
        "workers, seed, method, final_accuracy)"
    )
    ahead = {"sgd": 0.0, "momentum": 0.02, "dynabro": 0.1}
    numbers: dict[tuple[str, ...], list[float]] = {}
    for attack, workers, rule, method in product(
        ("alie", "sf:negates=gradient"), (50, 500), ("none cwtm", "nnm cwtm", "none gm"), ahead
    ):
        mean = 0.5 + ahead[method] + (0.2 if method == "sgd" and workers == 500 else 0)
        key = (attack, str(workers), rule, method)
        numbers[key] = [mean + random.gauss(0, 0.01) for _ in range(3)]
        for seed, accuracy in enumerate(numbers[key]):
            where = (attack, 0.2, *rule.split(), workers, seed, method, accuracy)
            connection.execute(
                "INSERT INTO counted VALUES ('many-workers', 'finished', ?,?,?,?,?,?,?,?)", where
            )
    connection.executescript(blocks["many_workers_rows"])
    for attack, words in (("alie", "ALIE"), ("sf:negates=gradient", "sign flips")):
        for workers in ("50", "500"):
            pairs = [
                (rule, rival, paired_p(numbers[attack, workers, rule, rival], dynabro))
                for rule in ("none cwtm", "nnm cwtm", "none gm")
                for dynabro in (numbers[attack, workers, rule, "dynabro"],)
                for rival in ("sgd", "momentum")
            ]
            expected = {
                (rule.replace("none ", "").replace(" ", "+"), rival): corrected
                for (rule, rival, _), corrected in zip(
                    pairs, holm([p for _, _, p in pairs]), strict=True
                )
            }
            stored = {
                (rule, {"SGD": "sgd"}.get(rival, "momentum")): corrected
                for rule, rival, corrected in connection.execute(
                    "SELECT rule, rival, holm FROM many_workers_pairs "
                    "WHERE attack = ? AND workers = ?",
                    (words, int(workers)),
                )
            }
            assert stored == pytest.approx(expected)
    for *_, small, _, large, matters in connection.execute(blocks["many_workers_means"]):
        assert small.count(" / ") == large.count(" / ") == 2
        assert matters == "SGD"
    texts = [text for row in connection.execute(blocks["many_workers_tests"]) for text in row[4:]]
    (counts,) = connection.execute(blocks["many_workers_counts"]).fetchone()
    won, lost = (sum(f", {word}, " in (text or "") for text in texts) for word in WORDS)
    assert won > 0 < lost
    assert f"Of 24 tests of DynaBRO against another method, it is ahead in {won}" in counts
    assert f"behind in {lost}," in counts
    assert "In 6 of 18 cases the means" in counts


@pytest.mark.thorough
def test_the_text_is_the_databases(render: ModuleType) -> None:
    """Rendered again they are the same, byte for byte; every query is used, and every claim belongs
    to a figure.
    """
    renderer = render.Renderer(EXAMPLE)
    texts = {path: renderer.render(template) for path, template in render.pages().items()}
    assert texts == {path: (PLOTS / path).read_text(encoding="utf-8") for path in texts}
    assert {path.name for path in (PLOTS / "figures").glob("*.md")} == {
        path.name for path in texts if path.parent.name
    }
    assert renderer.unused == set()
    REGISTRY.entries()
    assert {figure for claim in renderer.claims for figure in claim.figures} <= {*GRIDS, *RECORDS}
    assert len({claim.name for claim in renderer.claims}) == len(renderer.claims)


def test_no_finding_is_typed(render: ModuleType) -> None:
    """Templates contain no typed decimal numbers about findings, except parameters; quotations of
    the paper may.
    """
    words = re.sub(r"\{\{.*?\}\}", "", "\n\n".join(render.pages().values()), flags=re.DOTALL)
    words = re.sub(r"\*\*The paper:\*\*.*?(?=\*\*Here|\n\n)", "", words, flags=re.DOTALL)
    assert set(re.findall(r"(?<![\w.])\d+\.\d+", words)) <= PARAMETERS


class Found:
    """Results of the queries of ``plots/``: first rows by query, and verdicts by claim."""

    def __init__(self, renderer: Any) -> None:
        self.tables = renderer._rows
        self.claims = {claim.name: claim for claim in renderer.claims}

    def __getattr__(self, query: str) -> Any:
        return self.tables[query][0]

    def verdicts(self, figure: str, reading: str) -> list[str]:
        """Verdicts on a figure in a reading."""
        claims = (claim for claim in self.claims.values() if figure in claim.figures)
        return sorted(claim.readings[reading][0] for claim in claims)

    def means(self, figure: str, reading: str, method: str) -> list[float]:
        """Mean accuracies of a method by switching rate, from a table."""
        return [
            float(row[name].split()[0])
            for row in self.tables["reading_means"]
            if row["figure"].startswith(figure)
            and row["reading"] == reading
            and row["method"].startswith(method)
            for name in ("K = 5", "10", "20", "100", "static")
        ]


def ratio(text: str) -> float:
    """The ratio of a text such as ``3 of 10``."""
    part, whole = text.split(" of ")
    return int(part) / int(whole)


def ends(text: str) -> list[float]:
    """Both numbers of a text such as ``0.1 to 0.2``."""
    return [float(number) for number in text.split(" to ")]


LINES: dict[str, Callable[[Found], bool]] = {
    "In this interpretation, three of the paper's four statements on Figure 1 hold on MNIST, and "
    "one is undecided. [Many other interpretations](plots/readings.md) were tried.": lambda found: (
        found.verdicts("mnist-sf-cwtm", "message") == ["agrees"] * 3 + ["undecided"]
    ),
    "If the sign flips enter where the paper's Appendix E puts them, momentum still "
    "learns.": lambda found: min(found.means("1: SF", "gradient", "momentum")) > 0.88,
    "Under the paper's attacks, DynaBRO is stable if workers switch between rounds "
    "only.": lambda found: (
        found.claims["fig1-stable"].verdict == "agrees"
        and all(
            max(means) - min(means) < 0.01
            for figure in ("1: SF", "6: ALIE")
            for means in [found.means(figure, "message", "DynaBRO")]
        )
    ),
    "If they switch often within rounds, DynaBRO fails, and the paper's filter hardly ever "
    "acts.": lambda found: (
        float(found.computations_ends["below"]) < 0.25
        and ratio(found.computations_ends["option1"]) < 0.001
    ),
    "In Figure 1, no test separates SGD at a well-chosen learning rate from "
    "DynaBRO.": lambda found: (
        float(found.level["p"]) > 0.05
        and (found.best_pairs["ahead"], found.best_pairs["behind"]) == (0, 0)
    ),
    "DynaBRO's long rounds pay in some cases: with a filter, under an attack that knows the "
    "defence, and if switches are neither rare nor frequent.": lambda found: (
        found.phase["answer"] == "yes, under `optimal-ipm` at 35, 71, 142 changes"
        and "DynaBRO (" not in found.phase["versions"]
    ),
    "Tests do not separate most defences under the strongest attacks that we found. DynaBRO's "
    "worst runs are worse than SGD's.": lambda found: (
        2 * found.board_runs["separated"] < found.board["rows"]
        and max(ends(found.board_runs["dynabro"])) < min(ends(found.board_runs["sgd"]))
    ),
    "If these attacks may also switch within rounds, only SGD behind a trimmed mean stays above "
    "0.7.": lambda found: (
        {
            row["defence"]
            for row in found.tables["board_rows"]
            if row["within"] > "0.7"  # "-" is smaller
        }
        == {"SGD, cwtm", "SGD, nnm+cwtm"}
    ),
    "Option 2 of the paper learns little on the one network tried (0.356 or less; DynaBRO without "
    "a filter 0.936 or more). CIFAR-10 was not run at full size.": lambda found: (
        (round(found.history_ends["most"], 3), round(found.history_ends["least"], 3))
        == (0.356, 0.936)
        and {found.claims[name].verdict for name in ("fig2-cifar", "fig8-cifar")} == {"not run"}
    ),
    "Runs that diverge count as guessing. Some of them [end differently]"
    "(benchmarks/README.md#the-vector-instructions) on another type of processor.": lambda found: (
        "each counts as 0.1" in found.sf_diverged["text"]
    ),
}
"""README's lines, and what makes each true. What line 10 says of processors is
in ``benchmarks/README.md``.
"""


def test_every_line_of_the_readme_has_a_finding() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Start\n")[0]
    lines = [" ".join(line.split()) for line in re.findall(r"^\d+\. (.*(?:\n +.*)*)", text, re.M)]
    assert lines == list(LINES)


@pytest.mark.thorough
def test_the_lines_of_the_readme_are_the_databases(render: ModuleType) -> None:
    found = Found(render.Renderer(EXAMPLE))
    assert [line for line, holds in LINES.items() if not holds(found)] == []
    networks = sqlite3.connect(f"file:{EXAMPLE}?mode=ro", uri=True).execute(
        "SELECT count(DISTINCT task || model) FROM runs WHERE method LIKE '%option2%' AND "
        "task <> 'quadratic'"
    )
    assert networks.fetchone() == (1,)


def words_of(text: str) -> list[str]:
    """Return words and numbers of a text or of LaTeX, without citations and commands."""
    plain = re.sub(r"\\cite\w*\{[^}]*\}", " ", text)
    plain = re.sub(
        r"\\([a-zA-Z]+)",
        lambda command: f" {command[1]} " if command[1] in SYMBOLS.split() else " ",
        plain,
    )
    return re.findall(r"[a-z]+|\d+", plain.replace("methodName", "DynaBRO").lower())


def where(quotation: str, lines: list[str]) -> int | None:
    """Return the line of LaTeX, from 1, that has the words of a quotation in this order; None if no
    line has them.
    """
    parts = [" ".join(words_of(part)) for part in re.split(r"\.\.\.|\[[^\]]*\]", quotation)]
    pattern = re.compile(" .*?".join(rf"\b{re.escape(part)}\b" for part in parts))
    for number, line in enumerate(lines, 1):
        if pattern.search(" ".join(words_of(line))):
            return number
    return None


def test_words_of_a_quotation() -> None:
    lines = [
        "",
        (
            r"Here, momentum~\citep{x} with $\beta=0.99$ and $\frac{1}{1-\beta}$ fails for "
            r"\methodName{}."
        ),
    ]
    assert where("with beta = 0.99 and 1/(1 - beta) fails", lines) == 2
    assert where("momentum ... fails [badly] for DynaBRO", lines) == 2
    assert where("with beta = 0.9", lines) is None


def test_a_quotation_has_a_place(render: ModuleType) -> None:
    """Each quotation of a claim names its line in the paper."""
    for kind, heading, _ in render.blocks(PLOTS / "claims.sql"):
        _, _, places, text, *_ = (part.strip() for part in heading.split("|"))
        lines = re.findall(r"line \d+", places)
        assert kind == "claim"
        assert not render.QUOTATION.search(text) or len(lines) == len(
            render.QUOTATION.findall(text)
        ), heading


@pytest.mark.skipif(not PAPER, reason="DYNABRO_TEST_PAPER does not name the paper's LaTeX source")
def test_quotations_are_the_papers_words(render: ModuleType) -> None:
    """Each quotation of a claim begins in its line of the paper, and each quotation of a page is in
    the paper.
    """
    lines = Path(PAPER).read_text(encoding="utf-8").splitlines()
    for _, heading, _ in render.blocks(PLOTS / "claims.sql"):
        _, _, places, text, *_ = heading.split("|")
        quotations = render.QUOTATION.findall(text)
        assert [where(quotation, lines) for quotation in quotations] == [
            int(number) for number in re.findall(r"line (\d+)", places)[: len(quotations)]
        ], heading
    for path, page in render.pages().items():
        for quotation in render.QUOTATION.findall(" ".join(page.split())):
            assert where(quotation, lines), (path, quotation)


def test_agreement(render: ModuleType) -> None:
    assert render.agreement(["agrees", "agrees"]) == "yes"
    assert render.agreement(["agrees", "not run"]) == "yes"
    assert render.agreement(["no", "no"]) == "no"
    assert render.agreement(["agrees", "no"]) == "partly"
    assert render.agreement(["under some readings"]) == "partly"
    assert render.agreement(["undecided", "no"]) == "partly"
    assert render.agreement(["not run"]) == render.agreement([]) == "not run"
    assert render.agreement(["not run", "undecided"]) == "undecided"


@pytest.mark.thorough
def test_readings_of_the_paper_are_apart(render: ModuleType) -> None:
    """Claims of Figures 1, 5, 6 and 7 are judged under each; a verdict of each is what its own runs
    give.
    """
    claims = {claim.name: claim for claim in render.Renderer(EXAMPLE).claims}
    known = {
        reading: verdict for reading, (verdict, _) in claims["fig1-break-off"].readings.items()
    }
    assert known["message"] == "agrees"
    assert known["gradient"] == known["large steps"] == known["softmax"] == "no"
    assert claims["fig1-break-off-digits"].figures == ("digits-periodic", "digits-periodic-curves")
    assert all(
        claim.verdict == claim.readings[render.MAIN][0]
        for claim in claims.values()
        if render.MAIN in claim.readings
    )


@pytest.mark.thorough
def test_without_runs_nothing_is_decided(
    render: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a database without runs, and tables without rows, only claims about formulas have a
    verdict.
    """
    connected = render.connected

    def emptied(database: Path) -> sqlite3.Connection:
        connection: sqlite3.Connection = connected(database)
        for (table,) in connection.execute(
            "SELECT name FROM main.sqlite_master WHERE name LIKE 'csv_%'"
        ).fetchall():
            connection.execute(f"DELETE FROM {table}")
        return connection

    monkeypatch.setattr(render, "connected", emptied)
    open_for_writing(str(tmp_path / "empty.db")).dispose()
    claims = render.Renderer(tmp_path / "empty.db").claims
    decided = {claim.name for claim in claims if claim.verdict != "not run"}
    assert {name for name in decided if not name.startswith("rate-")} == {"lemma", "alie-z"}


def test_overall(render: ModuleType) -> None:
    assert render.overall(["agrees", "agrees"]) == "agrees"
    assert (
        render.overall(["agrees", "no"])
        == render.overall(["undecided", "agrees"])
        == "under some readings"
    )
    assert render.overall(["undecided", "no"]) == "undecided"
    assert render.overall(["no", "no"]) == "no"


def test_a_trend_is_over_all_runs(render: ModuleType) -> None:
    """4 of 4 pairs of different k are in order: p = 1/C(4, 2); and equal numbers have no trend."""
    assert 0.01 < render.trend((5, 5, 10, 10), (0.1, 0.2, 0.3, 0.4)) < 0.1
    assert render.trend((5, 10, 20), (0.5, 0.5, 0.5)) == 1.0


def test_a_paired_difference(render: ModuleType) -> None:
    """t = 0.2/(sqrt(0.02)/sqrt(2)) = 2 with one degree of freedom: 1 - 2 atan(2)/pi; and t_{0.975}
    is 12.706.
    """
    assert render.paired_p([0.1]) is render.half_width([0.1]) is None
    assert render.paired_p([0.1, 0.3]) == pytest.approx(0.2951672353)
    assert render.half_width([0.1, 0.3]) == pytest.approx(12.7062047 * 0.1)


def test_rows_with_a_null_are_left_out(render: ModuleType) -> None:
    connection = sqlite3.connect(":memory:")
    connection.create_aggregate("total", 2, render.over_rows(lambda a, b: sum(a) + sum(b)))
    ((total, nothing),) = connection.execute(
        "SELECT total(column1, column2), total(column1, column2) FILTER (WHERE column1 > 5) "
        "FROM (VALUES (1, 2), (3, NULL))"
    )
    connection.close()
    assert (total, nothing) == (3, None)
