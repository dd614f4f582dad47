"""The page of a report: no text of a database is HTML or a script, and a browser may run and load
nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.answers.figures.report.conftest import EVIL, Gathered

pytest.importorskip("vl_convert", reason="vl-convert is not installed: pip install 'dynabro[web]'")

from dynabro_cli.answers.figures.report.page import charts, in_script, page
from tests.tables import each_row

ABOUT = {"database": EVIL, "where": EVIL, "made": "now", "version": "0"}


class Parsed(HTMLParser):
    """The elements and attributes of a page, its scripts, and its other text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script" and self.cdata_elem:
            self.scripts[-1] += data
        else:
            self.text += data


@pytest.fixture(scope="module")
def plain(gathered: Gathered) -> str:
    about = {"database": "results.db", "where": None, "made": "now", "version": "0"}
    return "".join(page("Plain", about, gathered()))


@pytest.mark.thorough
def test_hostile_texts_stay_texts(gathered: Gathered, hostile: Path, plain: str) -> None:
    content = gathered(hostile)
    text = "".join(page(EVIL, ABOUT, content))
    found, expected = Parsed(text), Parsed(plain)
    assert [
        tag for tag, _ in found.tags if tag in ("script", "img", "style", "iframe", "link", "form")
    ] == [
        tag
        for tag, _ in expected.tags
        if tag in ("script", "img", "style", "iframe", "link", "form")
    ]
    assert not any(name.startswith("on") for _, attributes in found.tags for name in attributes)
    data = json.loads(found.scripts[0])
    shown = {name: content[name] for name in data["content"]}
    assert data["content"] == json.loads(json.dumps(shown))
    assert data["content"]["sweeps"][0][0] == EVIL
    assert found.text.count(EVIL) >= 4  # title, heading, database, condition and sweep, as they are
    assert "owned" not in "".join(found.scripts[1:])


@pytest.mark.thorough
def test_only_the_programs_of_the_page_may_run_and_nothing_is_loaded(plain: str) -> None:
    found = Parsed(plain)
    (policy,) = [
        attributes["content"] or ""
        for tag, attributes in found.tags
        if attributes.get("http-equiv")
    ]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    digests = [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        for script in found.scripts[1:]
    ]
    assert rules["default-src"] == "'none'"
    assert rules["script-src"].split() == [f"'sha256-{digest}'" for digest in digests]
    assert len(digests) == 2
    links = [
        attributes.get(name) or ""
        for _, attributes in found.tags
        for name in ("src", "href", "action", "data", "poster")
    ]
    assert all(not link or link.startswith("#") for link in links)


@pytest.mark.thorough
def test_the_page_is_for_everybody(plain: str) -> None:
    found = Parsed(plain)
    tags: dict[str, list[dict[str, Any]]] = {}
    for tag, attributes in found.tags:
        tags.setdefault(tag, []).append(attributes)
    assert tags["html"][0]["lang"] == "en"
    assert {"width=device-width, initial-scale=1", "light dark"} <= {
        one.get("content") for one in tags["meta"]
    }
    assert len(tags["caption"]) == len(tags["table"]) >= 2
    assert all(one["scope"] in ("col", "row") for one in tags["th"])
    ids = {attributes["id"] for _, attributes in found.tags if "id" in attributes}
    assert {one["href"] for one in tags["a"]} <= {f"#{name}" for name in ids}
    assert {one["aria-labelledby"] for one in tags["section"]} <= ids


@each_row(
    "text",
    [EVIL, "</SCRIPT >", "<!--<script>", "]]>", "\u2028\u2029", "&lt;", "\\u003c", "\U0001f600"],
)
def test_json_in_a_script(text: str) -> None:
    told = "".join(in_script({text: [text]}))
    assert not re.search(r"[<>&\u2028\u2029]", told)
    assert json.loads(told) == {text: [text]}


def test_charts_are_vega_lite_without_addresses(gathered: Gathered) -> None:
    import vl_convert

    content = gathered()
    specs = charts(content)
    assert len(specs) == len(content["tasks"])
    for of_task in specs:
        assert "http" not in json.dumps(of_task)
        for spec in of_task.values():
            assert vl_convert.vegalite_to_vega(spec)["marks"]


def test_the_largest_sweep_and_what_varies_are_shown_first(gathered: Gathered) -> None:
    (scores,) = (
        {given["name"]: given for given in of_task["scores"]["params"]}
        for of_task in charts(gathered(where="task = 'digits'"))
    )
    assert (scores["colour"]["value"], scores["along"]["value"]) == ("method", "method")
    assert scores["only_method"]["bind"]["options"] == [None, *scores["orders"]["value"]["method"]]
    places = dict(
        zip(scores["orders"]["value"]["method"], scores["colours"]["value"]["method"], strict=True)
    )
    assert (places["DynaBRO"], places["SGD"]) == (0, 1)  # as in figures
    assert len(set(places.values())) == len(places)
