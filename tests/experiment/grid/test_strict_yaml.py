"""YAML as mappings, lists and words with line numbers, and what of YAML is refused."""

from __future__ import annotations

from typing import Any

import pytest

from dynabro_cli.core.errors import SpecError
from dynabro_cli.experiment.grid.strict_yaml import Items, Node, Pairs, Word, read_yaml
from tests.tables import each_row


def plain(node: Node) -> Any:
    """The node as dict, list and text."""
    if isinstance(node, Pairs):
        return {key.text: plain(value) for key, value in node.pairs}
    return [plain(item) for item in node.items] if isinstance(node, Items) else node.text


def problems(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        read_yaml(text, "x.yaml")
    return caught.value.problems


@each_row(
    "word",
    [
        "1e-3",
        "off",
        "No",
        "true",
        "0.8:0.1",
        "1:30",
        "010",
        "2024-01-01",
        "periodic:K=5",
        ".inf",
        "=",
    ],
)
def test_a_word_stays_as_it_is_written(word: str) -> None:
    assert plain(read_yaml(f"a: {word}\nb: [{word}, '{word}']\n", "x")) == {
        "a": word,
        "b": [word, word],
    }


def test_nothing_is_not_a_word() -> None:
    assert plain(read_yaml("{a: , b: ~, c: null, d: '', e: 'null'}", "x")) == {
        "a": None,
        "b": None,
        "c": None,
        "d": "",
        "e": "null",
    }


def test_lines_are_those_of_the_file() -> None:
    document = read_yaml("# comment\na:\n  - x\n  -\n    y: z\n", "x")
    assert isinstance(document, Pairs)
    ((key, listed),) = document.pairs
    assert isinstance(listed, Items)
    word, inner = listed.items
    assert (document.line, key.line, listed.line, word, inner.line) == (2, 2, 3, Word("x", 3), 5)


def test_keys_given_twice_are_told_all_at_once() -> None:
    assert problems("a: 1\nb:\n  c: 1\n  c: 1\na: 2\n") == [
        "x.yaml:4: 'c' is given twice, here and in line 3. Try: one of them",
        "x.yaml:5: 'a' is given twice, here and in line 1. Try: one of them",
    ]


@each_row(
    ("text", "lines"),
    [
        (
            "a: !!python/object/apply:os.system [id]\n",
            ["x.yaml:1: tags such as 'tag:yaml.org,2002:python/object/apply:os.system'"],
        ),
        ("a: &x [1]\nb: *x\n", ["x.yaml:1: aliases (*name) are not read here"]),
        ("? [a, b]\n: 1\n", ["x.yaml:1: a key must be a word"]),
        ('a: 1\nb: "a\\0b"\n', [r"x.yaml:2: 'a\x00b' has a character that is not text"]),
        ('a: "\\uD800"\n', [r"x.yaml:1: '\ud800' has a character that is not text"]),
        ("'': 1\n", ["x.yaml:1: a key must be a word"]),
        ("a: [1\nb: 2\n", ["x.yaml:2: invalid YAML: "]),
        ("a: b: c\n", ["x.yaml:1: invalid YAML: mapping values are not allowed here"]),
        ("a: 1\n\tb: 2\n", ["x.yaml:2: invalid YAML: "]),
        ("a: 1\nb: \x07\n", ["x.yaml:2: the character '\\x07' is not allowed in YAML"]),
        ("", ["x.yaml: it is empty. Try: one document"]),
        ("a: 1\n---\nb: 2\n", ["x.yaml:2: invalid YAML: but found another document"]),
        ("[" * 100_000, ["x.yaml: it is nested too deeply. Try: a flatter file"]),
    ],
)
def test_what_is_refused(text: str, lines: list[str]) -> None:
    found = problems(text)
    assert len(found) == len(lines)
    assert all(line.startswith(start) for line, start in zip(found, lines, strict=True)), found
