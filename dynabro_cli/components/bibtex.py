"""BibTeX entries of the papers that define components, from ``references.bib``."""

from __future__ import annotations

import re
from pathlib import Path

FILE = Path(__file__).with_name("references.bib")
KEYWORDS = re.compile(r",\n  keywords = \{(.*)\}")


def bibtex(component: str) -> list[str]:
    """Return the entries of a component, ``kind/name``; none if its paper is not in the file."""
    return [
        KEYWORDS.sub("", entry).strip()
        for entry in FILE.read_text(encoding="utf-8").split("\n\n")
        for keywords in KEYWORDS.findall(entry)
        if component in keywords.split()
    ]
