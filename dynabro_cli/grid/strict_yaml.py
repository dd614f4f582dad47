"""Read YAML as plain text with line numbers: mappings, lists and words only.

The reader decides the meaning of a word: unlike in YAML 1.1, ``1e-3`` is not a text and ``off`` is
not a truth value here. Nothing is constructed or executed: tags, anchors, aliases and merge keys
are refused, and so are keys given twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from dynabro_cli.errors import SpecError
from dynabro_cli.limits import CONTROL

DEEPEST = 8
MOST_PROBLEMS = 100
NULLS = ("", "~", "null", "Null", "NULL")


@dataclass(frozen=True)
class Word:
    """A scalar as written, without quotes; None for an empty one, ``~`` and ``null``."""

    text: str | None
    line: int


@dataclass(frozen=True)
class Items:
    """A list."""

    items: tuple[Node, ...]
    line: int


@dataclass(frozen=True)
class Pairs:
    """A mapping in the order of the file; no key occurs twice."""

    pairs: tuple[tuple[Word, Node], ...]
    line: int


Node = Word | Items | Pairs


def read_yaml(text: str, source: str) -> Node:
    """Read the single document in ``text``.

    Args:
        text: The document.
        source: Its name in errors, such as the file's name.

    Raises:
        SpecError: It is not valid YAML, or uses more of YAML than this module reads; each line
            begins with ``source:line:``.
    """
    reader = _Reader(source)
    try:
        documents = list(
            itertools.islice(reader.documents(yaml.parse(text, Loader=yaml.SafeLoader)), 2)
        )
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        context = f" ({error.context})" if error.context else ""
        raise SpecError(f"{source}:{line}: invalid YAML: {error.problem}{context}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise SpecError(
            f"{source}:{line}: the character {chr(error.character)!r} is not allowed in YAML"
        ) from error
    if len(documents) != 1:
        raise SpecError(
            f"{source}: {'it is empty' if not documents else 'it has several documents'}. Try: "
            "one document"
        )
    if reader.problems:
        raise SpecError(reader.problems)
    return documents[0]


class _Reader:
    """Combine the parser's events, and collect problems."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.problems: list[str] = []

    def documents(self, happenings: Iterator[Any]) -> Iterator[Node]:
        for event in happenings:
            if isinstance(event, yaml.DocumentStartEvent):
                yield self._node(happenings, next(happenings), 1)

    def _node(self, happenings: Iterator[Any], event: Any, depth: int) -> Node:
        """Return the node that begins with ``event``; read on to its end."""
        line = event.start_mark.line + 1
        if depth > DEEPEST:
            raise SpecError(
                f"{self.source}:{line}: this is nested more than {DEEPEST} levels deep. Try: a "
                "flatter file"
            )
        if event.anchor is not None:
            self._refuse(
                line, "anchors and aliases (& and *) are not read here. Try: the values written out"
            )
        if isinstance(event, yaml.AliasEvent):
            return Word(None, line)
        if event.tag is not None:
            self._refuse(line, f"tags such as {event.tag!r} are not read here. Try: without it")
        if isinstance(event, yaml.ScalarEvent):
            plain = event.style is None
            if CONTROL.search(event.value):
                self._refuse(
                    line, f"{event.value!r} has a character that is not text. Try: without it"
                )
                return Word(None, line)
            return Word(None if plain and event.value in NULLS else event.value, line)
        if isinstance(event, yaml.SequenceStartEvent):
            items = []
            while not isinstance(event := next(happenings), yaml.SequenceEndEvent):
                items.append(self._node(happenings, event, depth + 1))
            return Items(tuple(items), line)
        return Pairs(tuple(self._pairs(happenings, depth)), line)

    def _pairs(self, happenings: Iterator[Any], depth: int) -> Iterator[tuple[Word, Node]]:
        lines: dict[str, int] = {}
        while not isinstance(event := next(happenings), yaml.MappingEndEvent):
            key = self._node(happenings, event, depth + 1)
            value = self._node(happenings, next(happenings), depth + 1)
            if not isinstance(key, Word) or not key.text:
                self._refuse(key.line, "a key must be a word")
            elif key.text in lines:
                self._refuse(
                    key.line,
                    f"{key.text!r} is given twice, here and in line {lines[key.text]}. Try: "
                    "one of them",
                )
            else:
                lines[key.text] = key.line
                yield key, value

    def _refuse(self, line: int, problem: str) -> None:
        self.problems.append(f"{self.source}:{line}: {problem}")
        stop_at_many(self.problems, self.source)


def stop_at_many(problems: list[str], source: str) -> None:
    """Raise SpecError with ``problems`` if there are too many to read."""
    if len(problems) >= MOST_PROBLEMS:
        raise SpecError([*problems, f"{source}: reading stops after {len(problems)} problems"])
