"""Check the countable part of the project's English; print a line per finding, and exit with 1 if
there are more than ``MOST``.

The first line of a docstring is an imperative or a noun phrase: it does not begin with What, It,
As, or Returns. Docstrings, comments and messages repeat the noun instead of "that of", and negate
the verb instead of the noun. So do documents, notebooks and the descriptions of sweeps. A sentence
of a document has at most 30 words and one semicolon, and a cell of a table has one sentence. A
section has at most 80 lines, which are two screens; tables and code are not counted. A line has at
most 120 characters. Pages in plots/ quote the paper, and benchmarks/ has records: rows of their
tables may be longer.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import textwrap
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("dynabro_cli", "benchmarks", "docs", "plots", ".ci")
DOCUMENTS = (
    "*.md",
    "docs/*.md",
    "docs/*.ipynb",
    "plots/*.md",
    "plots/figures/*.md",
    "sweeps/*",
    "searches/*",
    "benchmarks/*.md",
)
RECORDS = ("plots", "figures", "benchmarks")
"""Folders with documents whose tables are records or quotations."""
GENERATED = ("columns.md", "components.md")
"""Pages of one list each, made from the comments of columns and the docstrings of components."""
WIDTH = 120
LINES = 80
"""Of a section: two screens."""
FIRST = re.compile(r"(What|Whether|How|Who|Whose|Where|When|Why)\b")
SENTENCE = re.compile(
    r"(Which|This|That|These|Those|It|Its|Is|Are|Has|Does|As|If|For|From|Of|With|Within|Not|Raised|Goes|Applies"
    r"|(?:Add|Ask|Build|Choose|Close|Compare|Compute|Create|Decide|Describe|Find|Give|Handle|Keep|Let|Load|Make|Open|Print|Raise"
    r"|Read|Remove|Replace|Return|Say|Send|Stand|Stop|Take|Tell|Wrap|Write|Yield)s)\b"
)
"""First words of a docstring that make it neither an imperative nor a noun phrase."""
PHRASE = re.compile(
    r"\b(those of|that of|(?<!there )(?:is|are|was|were) (?-i:none)(?! of)\b|(?<!there )is no "
    r"(?!longer\b|larger\b)\w+"
    r"|goes on with|gone on with|signs? of life(?!`)|without a word|mourn)\b".replace(
        " ", r"\s+"
    ).replace(r"there\s+", "there "),
    re.IGNORECASE,
)
TRANSLATED = re.compile(
    r"\b(told|so many|but for|of its own|of yours|there is none|that of|those of|, as "
    r"(?:there|each|several|no|most|some))\b",
    re.IGNORECASE,
)
"""Phrases that documents and docstrings do not need; ``.ci`` and the house's style have better
ones.
"""
WORDY = re.compile(
    r"\b(beside|time to go|of late|of (?:their|one's) own|be it|least and most|goes? on|going "
    r"on|went on|begins? again"
    r"|begun|is of|are of|the like|an? own|what is known of"
    r"|(?:ms|seconds?|minutes?|images?|batch(?:es)?|gradients?|evaluations?|computations?|connections?|operations|GFLOP/s)"
    r" an? (?:worker|round|run|core|side|trial|second))\b"
    r"|, as (?:it|they|he|there|nobody|these|those|this)\b|^Where\b|^Whether\b[^?]*$".replace(
        " ", r"\s+"
    ),
    re.IGNORECASE | re.MULTILINE,
)
"""Phrases that documents do not need, such as "images a worker" for "images per worker"."""
QUOTED = re.compile("\u201c[^\u201d]*\u201d")
"""Words of the paper."""
CODE = re.compile(r"^```.*?^```|`[^`]*`", re.MULTILINE | re.DOTALL)
ITEM = re.compile(r"\s*(?:[-*]|\d+\.) ")
WORDS = 30
MOST = 0
"""Findings that are allowed for now; it only ever shrinks."""
ITSELF = "prose.py"
"""The name of this file, which has to name the phrases."""


def check_source(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and finding of each docstring, comment and text of a Python file."""
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            first = FIRST.match(node.value.value) or SENTENCE.match(node.value.value)
            if first:
                yield (
                    node.lineno,
                    f"a docstring begins with {first[1]!r}; begin with a verb or the thing's name",
                )
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _phrases(node.lineno, node.value)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from _phrases(token.start[0], token.string)


def check_document(
    text: str, *, records: bool = False, sections: bool = True
) -> Iterator[tuple[int, str]]:
    """Yield line and finding of each line, phrase, sentence, cell and section of a document that is
    not as it should be.

    Args:
        text: The document.
        records: True if the rows of its tables may be long.
        sections: False if its sections may be long.
    """
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > WIDTH and not (records and line.startswith("|")):
            yield number, f"a line has {len(line)} characters; {WIDTH} are legal"
    words = QUOTED.sub(_blank, CODE.sub(_blank, text))
    if sections:
        yield from _sections(words)
    for pattern in (TRANSLATED, WORDY):
        for found in pattern.finditer(words):
            yield (
                words[: found.start()].count("\n") + 1,
                f"{' '.join(found[0].split())!r}; use a plainer phrase, or repeat the noun",
            )
    for number, line in enumerate(words.splitlines(), 1):
        if line.startswith("|") and not records and re.search(r"[a-z)][.] +[A-Z][a-z]+ ", line):
            yield number, "a cell of a table has two sentences; one is legal"
    for number, paragraph in _paragraphs(words):
        for sentence in re.split(r"(?<=[.!?])\s", paragraph):
            count, marks = (
                len(re.findall(r"\S*\w\S*", sentence)),
                re.sub(r"\([^()]*\)|&\w+;", "", sentence).count(";"),
            )
            if count > WORDS:
                yield number, f"a sentence has {count} words; {WORDS} are legal: {sentence[:40]}..."
            if marks > 1:
                yield (
                    number,
                    f"a sentence has {marks} semicolons; make it a list: {sentence[:40]}...",
                )


def _blank(found: re.Match[str]) -> str:
    return "x" + "\n" * found[0].count("\n")


def _sections(words: str) -> Iterator[tuple[int, str]]:
    start, lines = 1, 0
    for number, line in enumerate([*words.splitlines(), "# end"], 1):
        if line.startswith("#"):
            if lines > LINES:
                yield start, f"a section has {lines} lines; {LINES} are legal"
            start, lines = number, 0
        lines += not line.startswith(("|", "#")) and bool(line.strip())


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield the first line and the text of each paragraph and list item; headings and tables are
    left out.
    """
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
            if path.name != ITSELF:
                found += [(path, *one) for one in check_source(path.read_text(encoding="utf-8"))]
    for pattern in DOCUMENTS:
        for path in sorted(ROOT.glob(pattern)):
            records, sections = path.parent.name in RECORDS, path.name not in GENERATED
            found += [
                (path, *one)
                for one in check_document(_text(path), records=records, sections=sections)
            ]
    return [f"{path.relative_to(ROOT)}:{line}: {why}" for path, line, why in found]


def _text(path: Path) -> str:
    """Return the words of a document: of a notebook its text in lines of legal width, of a sweep
    its description.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".yaml":
        text = "\n\n".join(re.findall(r"^description: (.*)$", text, re.MULTILINE))
    elif path.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    else:
        return text
    return "\n".join(
        textwrap.fill(line, WIDTH, break_long_words=False, break_on_hyphens=False)
        for line in text.splitlines()
    )


def _phrases(start: int, text: str) -> Iterator[tuple[int, str]]:
    for place, phrase in {
        found.start(): found[0] for one in (PHRASE, TRANSLATED) for found in one.finditer(text)
    }.items():
        line = start + text[:place].count("\n")
        yield (
            line,
            (
                f"{' '.join(phrase.split())!r}; repeat the noun, negate the verb, or use a shorter "
                "word"
            ),
        )


if __name__ == "__main__":
    lines = findings()
    print(*lines, sep="\n")  # noqa: T201
    sys.exit(len(lines) > MOST)
