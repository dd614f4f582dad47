"""Tables in LaTeX: they fit a column or a page, and the same columns can be chosen everywhere."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from dynabro_cli.answers.analysis.columns import chosen_columns
from dynabro_cli.answers.figures._latex import BOLD, TEXT_WIDTHS, _points, latex_table
from dynabro_cli.core.errors import SpecError
from tests.answers.figures.grids import SMALL, fill, planned
from tests.cli.conftest import Dynabro
from tests.runs.store import made

MEAN, TIED = "6.039 \N{PLUS-MINUS SIGN} 0.059", " \N{ALMOST EQUAL TO}"
ROWS = ["cwmed", "nnm+cwtm", "nnm+gm", "momentum \N{GREEK SMALL LETTER BETA}=0.9"]
ATTACKS = ["sf", "mimic:target=learned", "alie"]
LATEX = shutil.which("pdflatex")


def matrix(rows: list[str], attacks: list[str]) -> pd.DataFrame:
    """A table as of the plot matrix."""
    lines = [
        {"": row}
        | dict.fromkeys(attacks, MEAN + TIED)
        | {"worst": f"6.194 ({attacks[-1]})", "mean rank": "3.3"}
        for row in rows
    ]
    return pd.DataFrame(lines)


WIDE = pd.DataFrame(
    [["cwtm", "Conv(64)-ReLU-BatchNorm-" * 4, "-0.0079 to +0.0168", "1_000 & 5%"]],
    columns=["rule", "pre_aggregators", "95% t", "\N{GREEK SMALL LETTER MU}\xb2-SGD"],
)
TABLES = {
    "rules": matrix(ROWS, ATTACKS),
    "columns of two fields": matrix(ROWS[:2], ["sf, K=5", "sf, K=\N{INFINITY}"]),
    "parameters that differ": matrix(["cwtm"], ["foe:epsilon=0.1", "foe:epsilon=10"]),
    "long cells": WIDE,
}


@pytest.mark.parametrize(
    ("text", "points", "bold"),
    [
        ("0123456789", 42.50061, 49.0004),
        ("abcdefghijklmnopqrstuvwxyz", 108.43073, 125.24162),
    ],
)
def test_letters_have_the_widths_of_computer_modern(text: str, points: float, bold: float) -> None:
    """The numbers are pdfTeX's, of cmr8 and cmbx8."""
    assert points <= _points(text) <= 1.02 * points
    assert bold <= BOLD * _points(text) <= 1.02 * bold


def test_three_rules_under_three_attacks_fit_a_column() -> None:
    text = latex_table(TABLES["rules"], "a note", {(0, 1)}, "column")
    lines = text.splitlines()
    assert lines[:2] == ["% a note", "% mimic stands for mimic:target=learned"]
    assert r"\fontsize{8}" in lines[2]
    assert [line.split(" & ")[0] for line in lines if line.startswith(tuple(ROWS[:3]))] == ROWS[:3]
    assert r"\textbf{6.039} & 6.039 & 6.039 & 6.194 & 3.3 \\" in text
    assert r" & \textbf{$\pm$0.059$\approx$} & $\pm$0.059$\approx$" in text


def test_a_wider_page_has_fewer_lines() -> None:
    column, page = (latex_table(TABLES["rules"], width=width) for width in TEXT_WIDTHS)
    assert column.count("\\\\") > page.count("\\\\") == len(ROWS) + 1
    assert r"\addlinespace" in column
    assert r"\addlinespace" not in page


def test_parameters_stay_where_they_tell_components_apart() -> None:
    columns = ["foe:epsilon=0.1", "foe:epsilon=10", "sf:negates=gradient", "sf", "shift:lambda=2"]
    text = latex_table(matrix(["cwtm"], columns), width="page")
    for name in columns[:4]:
        assert name in text
    assert " & shift & " in text
    assert [line for line in text.splitlines() if line.startswith("%")] == [
        "% shift stands for shift:lambda=2"
    ]


def test_a_table_that_is_too_wide_says_how_wide_it_is() -> None:
    wide = matrix(ROWS, [f"attack-{place}" for place in range(12)])
    with pytest.raises(SpecError, match=r"width=column: .*, \d\.\d\d inches for 3\.25\. "):
        latex_table(wide, width="column")
    with pytest.raises(SpecError, match="width=poster"):
        latex_table(wide, width="poster")


def test_chosen_columns_keep_what_tells_rows_apart() -> None:
    two = pd.concat([matrix(ROWS, ATTACKS)] * 2, keys=["a", "b"], names=["matrix", None])
    two = two.reset_index("matrix")
    table, bold = chosen_columns(two, {(0, 2), (1, 4), (2, 5)}, "alie,sf")
    assert list(table) == ["matrix", "", "alie", "sf"]
    assert bold == {(0, 3), (1, 2)}
    pairs = pd.DataFrame([["nnm", "sf", "1", "2"], ["nnm", "alie", "1", "3"]], columns=[*"abAB"])
    assert list(chosen_columns(pairs, (), "B")[0]) == ["a", "b", "B"]
    assert list(chosen_columns(TABLES["columns of two fields"], (), "sf, K=5,worst")[0]) == [
        *("", "sf, K=5", "worst")
    ]
    with pytest.raises(SpecError, match=r"columns=allie: .*'alie'.* Try: sf,mimic"):
        chosen_columns(TABLES["rules"], (), "allie")


def test_commands_write_tables_for_print(dynabro: Dynabro, folder: Path) -> None:
    small = [setting for setting in SMALL if not setting.startswith("attack")]
    grid = itertools.product(("cwmed", "cwtm", "gm"), ("sf", "mimic:target=learned", "alie"))
    rows = {
        row["run_key"]: row
        for rule, attack in grid
        for row in planned(
            "digits-periodic",
            *small,
            "method=dynabro",
            "learning_rate=0.05",
            "switching=static",
            "attack_entry=gradient",
            f"aggregator={rule}",
            f"attack={attack}",
            "seeds=0..2",
        )
    }
    fill(folder / "results.db", list(rows.values()))
    made.change(folder / "results.db", "UPDATE runs SET sweep = 'mine'")
    width = ("--format", "tex", "--width", "column")
    every = dynabro("compare", "--all", "rule", *width)
    assert every.code == 0
    assert dynabro("plot", "matrix", "mine", *width).code == 0
    drawn = Path("plots/matrix-mine.tex").read_text(encoding="utf-8")
    assert drawn.partition("{\\fontsize")[2] == every.out.partition("{\\fontsize")[2] != ""
    two = ("compare", "aggregator=cwtm", "aggregator=gm")
    assert dynabro(*two, *width).code == 2
    assert dynabro(*two, *width, "--columns", "A,B,95% t,Holm t").code == 0
    assert dynabro(*two, "--columns", "A,B").out.split()[:3] == ["attack", "A", "B"]
    columns = ("--columns", "sf,worst", "--format", "tex,html", "--force")
    assert dynabro("plot", "matrix", "mine", *columns).code == 0
    assert " & sf & worst \\\\" in Path("plots/matrix-mine.tex").read_text(encoding="utf-8")
    assert Path("plots/matrix-mine.html").read_text(encoding="utf-8").count("<th>") == 3
    for options in (("--width", "page"), ("--columns", "A", "--format", "csv")):
        assert dynabro(*two, *options).code == 2


@pytest.mark.thorough
@pytest.mark.skipif(LATEX is None, reason="LaTeX is not installed")
def test_latex_measures_what_was_computed(tmp_path: Path) -> None:
    boxes, widths = [], []
    for table, width in itertools.product(TABLES.values(), TEXT_WIDTHS):
        text = latex_table(table, "a note", {(0, 1)}, width)
        boxes.append(f"\\setbox0=\\hbox{{%\n{text}}}\\typeout{{WIDTH \\the\\wd0}}")
        widths.append(TEXT_WIDTHS[width])
    commands = {
        "toprule": r"\hline",
        "midrule": r"\hline",
        "bottomrule": r"\hline",
        "addlinespace": "",
    }
    rules = "".join(rf"\newcommand\{name}{{{text}}}" for name, text in commands.items())
    package = rf"\IfFileExists{{booktabs.sty}}{{\usepackage{{booktabs}}}}{{{rules}}}"
    page = "\n".join([r"\documentclass{article}", package, r"\begin{document}", *boxes])
    (tmp_path / "table.tex").write_text(f"{page}\n\\end{{document}}\n", encoding="utf-8")
    done = subprocess.run(
        [str(LATEX), "-interaction=nonstopmode", "-halt-on-error", "table.tex"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    measured = [float(points) / 72.27 for points in re.findall(r"WIDTH ([0-9.]+)pt", done.stdout)]
    assert len(measured) == len(widths)
    assert all(0 < inches <= most for inches, most in zip(measured, widths, strict=True)), measured
