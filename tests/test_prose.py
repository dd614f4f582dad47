"""The countable part of the project's English: what ``.ci/prose.py`` finds, and that it finds no more here than is allowed."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    "text",
    [
        "The kind is told by the server.",
        "It has a folder\nof its own.",
        "- a first item\n- " + "word\n" * 31 + "end.",
        "A short one. " + "Word\n" * 31 + "end.",
    ],
)
def test_phrases_and_long_sentences_of_a_document_are_found(text: str) -> None:
    assert len(list(PROSE["check_document"](text))) == 1
    assert not list(PROSE["check_document"](text, generated=True))


@pytest.mark.parametrize("text", ["`told`", "```\nso many\n```", "| " + "word " * 20 + "|", "Short.\n" * 40, "a; " * 30])
def test_what_a_document_may_have(text: str) -> None:
    assert not list(PROSE["check_document"](text.rstrip()))


def test_there_are_no_more_findings() -> None:
    found = PROSE["findings"]()
    assert len(found) <= PROSE["MOST"], "\n".join(found)
