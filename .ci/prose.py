"""Check the countable part of the project's English; print a line per finding, and exit with 1 if there are more than ``MOST``.

Docstrings do not begin with What, Whether, How or Who. Docstrings, comments and messages repeat the noun instead of "that of",
and negate the verb instead of the noun. A line of a document has at most 120 characters, except for
rows of the generated tables in plots/, which quote the paper.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("dynabro_cli", "benchmarks", "docs", ".ci")
DOCUMENTS = ("*.md", "docs/*.md", "plots/*.md", "sweeps/*.md", "benchmarks/*.md")
WIDTH = 120
FIRST = re.compile(r"(What|Whether|How|Who|Whose|Where|When|Why)\b")
PHRASE = re.compile(
    r"\b(those of|that of|(?<!there )(?:is|are|was|were) (?-i:none)(?! of)\b|(?<!there )is no (?!longer\b|larger\b)\w+"
    r"|goes on with|gone on with|signs? of life(?!`)|without a word|mourn)\b".replace(" ", r"\s+").replace(
        r"there\s+", "there "
    ),
    re.IGNORECASE,
)
KEPT = ("switching/trace.py", "CHANGELOG.md")
"""Not checked: messages that are part of a component's digest, and release notes."""
MOST = 0
"""Findings that are allowed for now; it only ever shrinks."""
ITSELF = "prose.py"
"""This file, which has to name the phrases."""


def check_source(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and finding of each docstring, comment and text of a Python file."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            first = FIRST.match(node.value.value)
            if first:
                yield node.lineno, f"a docstring begins with {first[1]!r}; begin with a verb or the thing's name"
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _phrases(node.lineno, node.value)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from _phrases(token.start[0], token.string)


def check_document(text: str, *, generated: bool = False) -> Iterator[tuple[int, str]]:
    """Yield line and finding of each line of a document that is too long; rows of a generated document's tables may be."""
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > WIDTH and not (generated and line.startswith("|")):
            yield number, f"a line has {len(line)} characters; {WIDTH} are legal"


def findings() -> list[str]:
    """Return all findings in the repository, with file and line."""
    found = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.name != ITSELF and not any(part in path.as_posix() for part in KEPT):
                found += [(path, *one) for one in check_source(path.read_text(encoding="utf-8"))]
    for pattern in DOCUMENTS:
        for path in sorted(path for path in ROOT.glob(pattern) if path.name not in KEPT):
            found += [(path, *one) for one in check_document(path.read_text(encoding="utf-8"), generated="plots" in path.parts)]
    return [f"{path.relative_to(ROOT)}:{line}: {why}" for path, line, why in found]


def _phrases(start: int, text: str) -> Iterator[tuple[int, str]]:
    for found in PHRASE.finditer(text):
        line = start + text[: found.start()].count("\n")
        yield line, f"{' '.join(found[0].split())!r}; repeat the noun, or negate the verb"


if __name__ == "__main__":
    lines = findings()
    print(*lines, sep="\n")  # noqa: T201
    sys.exit(len(lines) > MOST)
