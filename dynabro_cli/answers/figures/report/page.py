"""The page of a report: one HTML file with its data, its style, its program and Vega-Lite in it."""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.util
import itertools
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

from dynabro_cli.core.errors import SpecError

ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
"""Characters that JSON may have in texts, and that could end or open something in HTML."""
HUES = ("method", "rule", "aggregator", "attack", "pre_aggregators", "switching")
"""Columns that are preferred for colours."""
COLOURS = 13
"""Colours of the page."""
CURVES = {"input": "range", "min": 1, "max": 12, "step": 1, "name": "curves of a colour"}
"""The control of the number of curves."""
PHONE = 60
"""Letters of a chart's title that fit a phone."""
PIECE = 10_000
"""Tokens of JSON that are written at a time: the data of a report may have many megabytes."""
LABEL = "label"
"""The column that names a cell: every cell has a colour."""

Spec = dict[str, Any]


def check_installed() -> None:
    """Raise SpecError if a library of reports is not installed."""
    for name in ("jinja2", "vl_convert"):
        if importlib.util.find_spec(name) is None:
            raise SpecError(
                f"a report needs {name}, which is not installed. Try: pip install 'dynabro[web]'"
            )


def page(title: str, about: dict[str, Any], content: dict[str, Any]) -> Iterator[str]:
    """Yield the HTML of a report in pieces.

    A browser runs only the two programs whose digests the page's policy has, and connects to
    nothing: text of a database that became HTML by mistake would be harmless.

    Args:
        title: Its title.
        about: ``database``, ``where``, ``made``, ``version``: texts about the origin of the runs.
        content: Return value of ``gather.content``.
    """
    import jinja2

    library, folder = _library(), resources.files(__package__)
    parts = {name: folder.joinpath(f"page.{name}").read_text("utf-8") for name in ("js", "css")}
    template = folder.joinpath("page.html").read_text("utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    trusted = {"library": library, "program": parts["js"], "style": parts["css"]}
    # the answers are in the HTML, which the program does not read
    data = {name: value for name, value in content.items() if name != "answers"}
    yield from environment.from_string(template).generate(
        title=title,
        about=about,
        content=content,
        policy=" ".join(f"'sha256-{_digest(trusted[name])}'" for name in ("library", "program")),
        data=map(_safe, in_script({"content": data, "charts": charts(content)})),
        **{name: _safe(text) for name, text in trusted.items()},
    )


def charts(content: Mapping[str, Any]) -> list[dict[str, Spec]]:
    """Return the Vega-Lite specifications of ``page.json`` for each task, with its columns.

    Their selections filter, sort and colour; the page gives them data, sizes and colours.
    """
    text = resources.files(__package__).joinpath("page.json").read_text("utf-8")
    rows = []
    for place, task in enumerate(content["tasks"]):
        specs = json.loads(text)
        _control(
            specs["scores"], content, task, [c for c in content["cells"] if c["task"] == place]
        )
        rows.append(specs)
    return rows


def _control(
    spec: Spec, content: Mapping[str, Any], task: Mapping[str, Any], cells: Sequence[Spec]
) -> None:
    """Give the charts of scores their controls: a filter for each column that varies, and the
    columns along the axis and of the colours.
    """
    columns = {column["name"]: (at, column) for at, column in enumerate(content["fields"])}

    def text(cell: Spec, name: str) -> str:
        at, column = columns[name]
        return str(column["values"][cell["at"][at]])

    def texts(name: str, of: Sequence[Spec]) -> list[str]:
        at, column = columns[name]
        return [column["values"][place] for place in sorted({cell["at"][at] for cell in of})]

    # runs of several sweeps in one chart are seldom comparable: the one of the answer comes first
    sweep = task["sweep"]
    first = [cell for cell in cells if sweep in (None, text(cell, "sweep"))]
    names = [*task["fields"], *(["sweep"] if len(texts("sweep", cells)) > 1 else [])]
    several = [name for name in names if len(texts(name, first)) > 1]
    hues = [*(name for name in HUES if name in several), *several]
    colour = next((name for name in hues if len(texts(name, first)) < COLOURS), LABEL)
    along = next((n for n in ("switching", "attack", *hues) if n in several and n != colour), "")
    along = along or next(iter(names), LABEL)
    orders = {name: texts(name, cells) for name in names}
    labels = (", ".join(text(cell, name) for name in task["fields"]) for cell in cells)
    orders[LABEL] = list(dict.fromkeys(label or task["name"] for label in labels))
    titles = {name: columns[name][1]["label"] for name in names} | {LABEL: "each cell"}
    spec["params"] = [
        *(
            _select(f"only_{name}", sweep if name == "sweep" else None, titles[name], choices)
            for name in names
            if (choices := {None: "all"} | {value: value or "(none)" for value in orders[name]})
        ),
        _select("along", along, "along the axis", titles),
        _select("colour", colour, "colour", titles),
        {"name": "lines", "value": 1, "bind": CURVES},
        {"name": "orders", "value": orders},
        {
            "name": "colours",
            "value": {name: _colours(values, content["looks"]) for name, values in orders.items()},
        },
    ]
    shown = [
        {"calculate": "datum[colour]", "as": "series"},
        {"filter": "!(length(data('hidden_store')) && vlSelectionTest('hidden_store', datum))"},
    ]
    color = {"field": "series", "type": "nominal", "legend": {"title": None}}
    gap = task["metric"] == "gap"
    scale: Spec = {"type": "log", "clamp": True} if gap else {"zero": False}
    lines = [part for line in task["notes"] for part in textwrap.wrap(line, PHONE)]
    spec["title"] = {"text": lines, "anchor": "start", "fontWeight": "normal"}
    for view in spec["concat"]:
        view["transform"] = shown + view["transform"]
        view["encoding"]["color"] = color
        for unit in view["layer"]:
            unit["encoding"]["y"] |= {"title": task["label"], "scale": scale}


def _select(name: str, value: str | None, title: str, choices: Mapping[Any, str]) -> Spec:
    """Return a parameter that the reader chooses from a list."""
    bind = {"input": "select", "name": title, "options": [*choices], "labels": [*choices.values()]}
    return {"name": name, "value": value, "bind": bind}


def _colours(values: Sequence[str], earlier: Mapping[str, int]) -> list[int]:
    """Return the place of each value's colour: its fixed one, or the next that is free."""
    taken = {earlier.get(value) for value in values}
    free = [place for place in range(COLOURS) if place not in taken] or [*range(COLOURS)]
    others = itertools.cycle(free)
    return [earlier[value] if value in earlier else next(others) for value in values]


def in_script(value: Any) -> Iterator[str]:
    """Yield a value, in pieces, as JSON in which no text can end the script element."""
    tokens = json.JSONEncoder(separators=(",", ":"), allow_nan=False).iterencode(value)
    escapes = str.maketrans(ESCAPES)
    while piece := "".join(itertools.islice(tokens, PIECE)):
        yield piece.translate(escapes)


@functools.cache
def _library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one program."""
    # another process, because the program that makes it keeps 100 MB
    make = "import sys, vl_convert; sys.stdout.write(vl_convert.javascript_bundle())"
    made = subprocess.run([sys.executable, "-P", "-c", make], capture_output=True, check=True)
    return made.stdout.decode().replace("</script", "<\\/script")


def _safe(text: str) -> Any:
    from markupsafe import Markup

    return Markup(text)


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
