"""The countable part of the project's English: what ``.ci/prose.py`` finds, and that it finds no
more here than is allowed.
"""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

PROSE = runpy.run_path(str(Path(__file__).parents[1] / ".ci" / "prose.py"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('"""Whether it rains."""', [(1, "begins with 'Whether'")]),
        ('X = 1\n"""How many."""', [(2, "begins with 'How'")]),
        ('def f():\n    """What it is."""', [(2, "begins with 'What'")]),
        ('"""Return the sum.\n\n    It is that\n    of both.\n"""', [(3, "'that of'")]),
        ('raise ValueError(f"{x} is none of these, those of {y}")', [(1, "'those of'")]),
        ('raise ValueError(f"the file is no database: {x}")', [(1, "'is no database'")]),
        ("x = 1  # its status is none", [(1, "'is none'")]),
        ('"""Returns the sum."""', [(1, "begins with 'Returns'")]),
        ('"""As the sum."""', [(1, "begins with 'As'")]),
        ("x = 1  # a folder of its own", [(1, "'of its own'")]),
    ],
)
def test_what_is_found(text: str, found: list[tuple[int, str]]) -> None:
    told = sorted(set(PROSE["check_source"](text)))
    assert [line for line, _ in told] == [line for line, _ in found]
    assert all(why in told[place][1] for place, (_, why) in enumerate(found))


@pytest.mark.parametrize(
    "text",
    [
        '"""Return the width, or None."""',
        '"""Runs at a time."""',
        '"""Copies of the weights."""',
        "told = of_its_own",
        '"""Show what it is."""',
        'raise ValueError("there is no database")',
        "x = 1  # is None until it is known, and no longer None then",
    ],
)
def test_what_is_not_found(text: str) -> None:
    assert not list(PROSE["check_source"](text))


def test_long_lines_of_documents_are_found() -> None:
    assert [line for line, _ in PROSE["check_document"]("x" * 120 + "\n" + "x" * 121)] == [2]
    row = "| " + "x" * 120 + " |"
    assert len(list(PROSE["check_document"](row))) == 1
    assert not list(PROSE["check_document"](row, records=True))


@pytest.mark.parametrize(
    "text",
    [
        "The kind is told by the server.",
        "It has a folder\nof its own.",
        "- a first item\n- " + "word\n" * 31 + "end.",
        "A short one. " + "Word\n" * 31 + "end.",
        "A pass takes 32 images a worker.",
        "The table stands beside the figure.",
        "It is left out, as it takes minutes.",
        "Text.\n\nWhere no rate learns, it has another.",
        "Whether the runs have the paper's settings.",
        "One; two; three.",
        "| name | a first sentence. The second one |",
        "# Title\n" + "Text.\n" * 81,
        "“Of its own” is the paper's; of its own is not.",
    ],
)
def test_what_is_found_in_a_document(text: str) -> None:
    assert len(list(PROSE["check_document"](text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "`told`",
        "```\nso many\n```",
        "| " + "word " * 20 + "|",
        "Short.\n" * 40,
        "a " * 30,
        "The paper says “so many; that of; those of”.",
        "Ten runs (two threads; one machine; 2 GB) took 3 s; a = b.",
        "The run where it stopped, as in the paper.",
        "# Title\n" + "Text.\n" * 80 + "# Next\n" + "| row |\n" * 90,
    ],
)
def test_what_a_document_may_have(text: str) -> None:
    assert not list(PROSE["check_document"](text.rstrip()))


def test_notebooks_and_descriptions_are_read(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["One\n", "line"]},
        {"cell_type": "code", "source": ["told"]},
    ]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}), encoding="utf-8")
    (tmp_path / "a.yaml").write_text(
        "name: told\ndescription: Three methods\nbase: {}\n", encoding="utf-8"
    )
    assert PROSE["_text"](tmp_path / "a.ipynb") == "One\nline"
    assert PROSE["_text"](tmp_path / "a.yaml") == "Three methods"


@pytest.mark.thorough
def test_there_are_no_more_findings() -> None:
    found = PROSE["findings"]()
    assert len(found) <= PROSE["MOST"], "\n".join(found)
