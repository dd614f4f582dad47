"""The countable part of the project's English: what ``.ci/prose.py`` finds, and that it finds no
more here than is allowed.
"""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from tests.tables import each_row

PROSE = runpy.run_path(str(Path(__file__).parents[1] / ".ci" / "prose.py"))


@each_row(
    ("text", "found"),
    [
        ('"""Whether it rains."""', [(1, "begins with 'Whether'")]),
        ('"""Return the sum.\n\n    It is that\n    of both.\n"""', [(3, "'that of'")]),
        ('raise ValueError(f"the file is no database: {x}")', [(1, "'is no database'")]),
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
        "told = of_its_own",
        '"""Show what it is."""',
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
        "It has a folder\nof its own.",
        "- a first item\n- " + "word\n" * 31 + "end.",
        "| name | a first sentence. The second one |",
    ],
)
def test_what_is_found_in_a_document(text: str) -> None:
    assert len(list(PROSE["check_document"](text))) == 1


def test_what_a_document_may_have() -> None:
    text = "`told`\n\n```\nso many\n```\n\nThe paper says “so many; that of; those of”."
    assert not list(PROSE["check_document"](text))


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
