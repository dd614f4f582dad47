"""``references.bib``: its entries are of components, whose references name author and year."""

from __future__ import annotations

import re

from dynabro_cli.components.bibtex import FILE, KEYWORDS, bibtex
from dynabro_cli.components.registries import REGISTRIES
from tests.tables import each_row

TEXT = FILE.read_text(encoding="utf-8")
ENTRIES = TEXT.split("\n\n")[1:]
FIELDS = ("title", "author", "year", "keywords")


def field(entry: str, name: str) -> str:
    """The value of a field of an entry."""
    return re.findall(rf"^  {name} = \{{(.*)\}},?$", entry, re.MULTILINE)[0]


@each_row("entry", ENTRIES, ids=lambda entry: entry[:40])
def test_an_entry_is_what_its_components_name(entry: str) -> None:
    assert all(field(entry, name) for name in FIELDS)
    assert entry.count("{") == entry.count("}")
    first = re.sub(r"[^A-Za-z -]|\\.", "", field(entry, "author").partition(",")[0])
    for component in field(entry, "keywords").split():
        kind, _, name = component.partition("/")
        reference = REGISTRIES[kind].entry(name).reference
        assert {first, "DynaBRO"} & set(re.findall(r"El Mhamdi|[\w-]+", reference)), component
        assert field(entry, "year") in reference, component


def test_keys_are_told_apart() -> None:
    keys = re.findall(r"^@\w+\{(\w+),$", TEXT, re.MULTILINE)
    assert len(keys) == len(set(keys)) == len(ENTRIES)


def test_a_component_has_its_papers() -> None:
    papers = bibtex("attacks/alie")
    assert [paper.partition(",")[0] for paper in papers] == [
        "@inproceedings{baruch2019",
        "@inproceedings{dorfman2024dynamic",
    ]
    assert all(paper.endswith("\n}") and not KEYWORDS.search(paper) for paper in papers)
    assert bibtex("attacks/none") == []
