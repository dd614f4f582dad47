"""Check the countable part of the project's English; print a line per finding, and exit with 1 if there are more than ``MOST``.

The first line of a docstring is an imperative or a noun phrase: it does not begin with What, It, As, or Returns. Docstrings,
comments and messages repeat the noun instead of "that of", and negate the verb instead of the noun. So do documents, whose
sentences have at most 30 words. A line of a document has at most 120 characters. Pages in plots/ quote the paper, and
benchmarks/ has records: only lines outside of their tables are measured.
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
QUOTING = ("plots", "benchmarks")
WIDTH = 120
FIRST = re.compile(r"(What|Whether|How|Who|Whose|Where|When|Why)\b")
SENTENCE = re.compile(
    r"(Which|This|That|These|Those|It|Its|Is|Are|Has|Does|As|If|For|From|Of|With|Within|Not|Raised|Goes|Applies"
    r"|(?:Add|Ask|Build|Choose|Close|Compare|Compute|Create|Decide|Describe|Find|Give|Handle|Keep|Let|Load|Make|Open|Print|Raise"
    r"|Read|Remove|Replace|Return|Say|Send|Stand|Stop|Take|Tell|Wrap|Write|Yield)s)\b"
)
"""First words of a docstring that make it neither an imperative nor a noun phrase."""
PHRASE = re.compile(
    r"\b(those of|that of|(?<!there )(?:is|are|was|were) (?-i:none)(?! of)\b|(?<!there )is no (?!longer\b|larger\b)\w+"
    r"|goes on with|gone on with|signs? of life(?!`)|without a word|mourn)\b".replace(" ", r"\s+").replace(
        r"there\s+", "there "
    ),
    re.IGNORECASE,
)
TRANSLATED = re.compile(r"\b(told|so many|but for|of its own|of yours|there is none|that of|those of)\b", re.IGNORECASE)
"""Phrases that documents and docstrings do not need; ``.ci`` and the house's style have better ones."""
CODE = re.compile(r"^```.*?^```|`[^`]*`", re.MULTILINE | re.DOTALL)
ITEM = re.compile(r"\s*(?:[-*]|\d+\.) ")
WORDS = 30
KEPT = ("CHANGELOG.md",)
"""Not checked: release notes."""
MOST = 0
"""Findings that are allowed for now; it only ever shrinks."""
LATER = re.compile(r"dynabro_cli/(cli|store|executors|figures|search|grid)/")
"""Files whose docstrings are not yet checked for ``SENTENCE`` and ``TRANSLATED``; it only ever shrinks."""
ITSELF = "prose.py"
"""The name of this file, which has to name the phrases."""


def check_source(text: str, *, strict: bool = True) -> Iterator[tuple[int, str]]:
    """Yield line and finding of each docstring, comment and text of a Python file.

    Args:
        text: The file.
        strict: True to check for ``SENTENCE`` and ``TRANSLATED``, too.
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            first = FIRST.match(node.value.value) or (strict and SENTENCE.match(node.value.value))
            if first:
                yield node.lineno, f"a docstring begins with {first[1]!r}; begin with a verb or the thing's name"
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _phrases(node.lineno, node.value, strict=strict)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from _phrases(token.start[0], token.string, strict=strict)


def check_document(text: str, *, generated: bool = False) -> Iterator[tuple[int, str]]:
    """Yield line and finding of each line of a document that is too long, and of its phrases and long sentences.

    Args:
        text: The document.
        generated: True for a page of quotations or records; rows of its tables may be long, and its sentences are not checked.
    """
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > WIDTH and not (generated and line.startswith("|")):
            yield number, f"a line has {len(line)} characters; {WIDTH} are legal"
    if generated:
        return
    words = CODE.sub(lambda code: "x" + "\n" * code[0].count("\n"), text)
    for found in TRANSLATED.finditer(words):
        yield words[: found.start()].count("\n") + 1, f"{' '.join(found[0].split())!r}; use a shorter word, or repeat the noun"
    for number, paragraph in _paragraphs(words):
        for sentence in re.split(r"(?<=[.!?])\s", paragraph):
            if len(sentence.split()) > WORDS:
                yield number, f"a sentence has {len(sentence.split())} words; {WORDS} are legal: {sentence[:40]}..."


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield the first line and the text of each paragraph and list item; headings and tables are left out."""
    start, lines = 0, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if not line.strip() or line.startswith(("|", "#")) or ITEM.match(line):
            if lines:
                yield start, " ".join(lines)
            item = ITEM.match(line)
            start, lines = number, [line[item.end() :]] if item else []
        else:
            start, lines = (start, lines) if lines else (number, lines)
            lines.append(line.strip())


def findings() -> list[str]:
    """Return all findings in the repository, with file and line."""
    found = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.name != ITSELF and not any(part in path.as_posix() for part in KEPT):
                strict = not LATER.match(path.relative_to(ROOT).as_posix())
                found += [(path, *one) for one in check_source(path.read_text(encoding="utf-8"), strict=strict)]
    for pattern in DOCUMENTS:
        for path in sorted(path for path in ROOT.glob(pattern) if path.name not in KEPT):
            found += [
                (path, *one) for one in check_document(path.read_text(encoding="utf-8"), generated=path.parent.name in QUOTING)
            ]
    return [f"{path.relative_to(ROOT)}:{line}: {why}" for path, line, why in found]


def _phrases(start: int, text: str, *, strict: bool) -> Iterator[tuple[int, str]]:
    patterns = (PHRASE, TRANSLATED) if strict else (PHRASE,)
    for place, phrase in {found.start(): found[0] for pattern in patterns for found in pattern.finditer(text)}.items():
        line = start + text[:place].count("\n")
        yield line, f"{' '.join(phrase.split())!r}; repeat the noun, negate the verb, or use a shorter word"


if __name__ == "__main__":
    lines = findings()
    print(*lines, sep="\n")  # noqa: T201
    sys.exit(len(lines) > MOST)
