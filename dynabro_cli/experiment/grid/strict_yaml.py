"""Read YAML as plain text with line numbers: mappings, lists and words only.

The reader decides the meaning of a word: unlike in YAML 1.1, ``1e-3`` is not a text and ``off`` is
not a truth value here. Nothing is constructed or executed: tags, aliases and merge keys are
refused, and so are keys given twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.limits import CONTROL

NULLS = ("", "~", "null", "Null", "NULL")
PLAIN = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))
"""The tags of values that are written without one."""


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
        document = yaml.compose(text, Loader=yaml.BaseLoader)
        if document is None:
            raise SpecError(f"{source}: it is empty. Try: one document")
        root = reader.node(document)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        context = f" ({error.context})" if error.context else ""
        raise SpecError(f"{source}:{line}: invalid YAML: {error.problem}{context}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise SpecError(
            f"{source}:{line}: the character {chr(error.character)!r} is not allowed in YAML"
        ) from error
    except RecursionError:
        raise SpecError(f"{source}: it is nested too deeply. Try: a flatter file") from None
    if reader.problems:
        raise SpecError(reader.problems)
    return root


def as_yaml(document: Mapping[str, Any]) -> str:
    """Return a document as a file's text, which ``read_yaml`` reads."""
    # PyYAML would fold long lines otherwise
    return str(yaml.safe_dump(dict(document), sort_keys=False, width=math.inf))


def plain_yaml(text: str) -> Any:
    """Return a document that ``read_yaml`` has read as mappings, lists and texts."""
    return yaml.load(text, Loader=yaml.BaseLoader)


class _Reader:
    """Turn the nodes of PyYAML into words, lists and mappings, and collect problems."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.problems: list[str] = []
        # ids of nodes: the caller keeps the document, so that no id is used a second time
        self._visited: set[int] = set()

    def node(self, node: yaml.Node) -> Node:
        line = node.start_mark.line + 1
        # an alias is its node a second time: a file could contain itself, or grow without end
        if id(node) in self._visited:
            return self._refuse(line, "aliases (*name) are not read here. Try: the values in full")
        self._visited.add(id(node))
        if node.tag not in PLAIN:
            return self._refuse(
                line, f"tags such as {node.tag!r} are not read here. Try: without it"
            )
        if isinstance(node, yaml.SequenceNode):
            return Items(tuple(map(self.node, node.value)), line)
        if isinstance(node, yaml.MappingNode):
            return self._pairs(node, line)
        if CONTROL.search(node.value):
            return self._refuse(
                line, f"{node.value!r} has a character that is not text. Try: without it"
            )
        plain = isinstance(node, yaml.ScalarNode) and node.style is None
        return Word(None if plain and node.value in NULLS else node.value, line)

    def _pairs(self, node: yaml.MappingNode, line: int) -> Pairs:
        pairs: dict[str, tuple[Word, Node]] = {}
        for key, value in ((self.node(key), self.node(value)) for key, value in node.value):
            if not isinstance(key, Word) or not key.text:
                self._refuse(key.line, "a key must be a word")
            elif key.text in pairs:
                first = pairs[key.text][0].line
                self._refuse(
                    key.line,
                    f"{key.text!r} is given twice, here and in line {first}. Try: one of them",
                )
            else:
                pairs[key.text] = key, value
        return Pairs(tuple(pairs.values()), line)

    def _refuse(self, line: int, problem: str) -> Word:
        self.problems.append(f"{self.source}:{line}: {problem}")
        return Word(None, line)
