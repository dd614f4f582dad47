"""Write the pages of docs/ that are generated: ``columns.md`` of the tables, ``components.md`` of
the registries.

Run it from the repository's root after a change of either: ``python docs/generated.py``.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

from dynabro_cli.components import Entry, format_value
from dynabro_cli.components.aliases import ALIASES
from dynabro_cli.experiment.resolve import REGISTRIES
from dynabro_cli.experiment.spec import fields
from dynabro_cli.figures.report.site import OF_VIEWS, VIEWS
from dynabro_cli.store.tables import metadata

DOCS = Path(__file__).parent
WIDTH = 120


def columns() -> str:
    """Return the page of all tables, views and columns, from their comments."""
    sources = "`dynabro_cli/store/tables.py` and `dynabro_cli/experiment/spec.py`"
    lines = ["# Tables and columns", "", f"Generated from the comments of {sources}."]
    for table in metadata.tables.values():
        lines += ["", f"## {table.name}", "", *_wrapped(f"`{table.name}`: {table.comment}."), ""]
        lines += ["| column | type | meaning |", "| --- | --- | --- |"]
        lines += [
            f"| `{column.name}` | {_kind(column.type)} | {column.comment} |"
            for column in table.columns
        ]
    for view, meaning in VIEWS.items():
        lines += [
            "",
            f"## {view}",
            "",
            *_wrapped(f"`{view}`, a view: {meaning}."),
            "",
            "| column | meaning |",
            "| --- | --- |",
        ]
        shared = [name for name in fields() if name != "seed"] if view == "final_accuracy" else []
        lines += [f"| `{name}` | as in `runs` |" for name in shared]
        lines += [f"| `{column}` | {about} |" for column, about in OF_VIEWS[view].items()]
    return "\n".join(lines) + "\n"


def components() -> str:
    """Return the page that lists every component, with one line and its reference, and the names of
    other libraries.
    """
    lines = [
        "# Components",
        "",
        "Generated from the registries. `dynabro show KIND/NAME` has definitions and parameters.",
    ]
    for kind, registry in REGISTRIES.items():
        lines += ["", f"## {kind}", ""]
        for name, entry in registry.entries().items():
            lines += _wrapped(
                _markdown(f"- `{name}`: {entry.summary} Reference: {_sentence(entry.reference)}"),
                "  ",
            )
    lines += ["", "## Names of other libraries", ""]
    lines += _wrapped(
        "Names of ByzFL, Blades and ByzPy can be typed, too, in any spelling: `TrMean`, "
        "`tr_mean`, `tr-mean`. A name means the "
        "algorithm as it is defined here. A star marks definitions that differ. `dynabro show "
        "NAME` says how, and what to type "
        "for the other definition."
    )
    for kind, rows in ALIASES.items():
        lines.append("")
        for alias in rows:
            names = ", ".join(f"`{name.strip()}`" for name in alias.names.split(","))
            star = r" \*" if alias.note else ""
            meaning = f"`{alias.text}`{star}" if alias.text else "no component"
            lines += _wrapped(f"- {kind}, {names}: {meaning}", "  ")
    return "\n".join(lines) + "\n"


def component(kind: str, entry: Entry[Any]) -> str:
    """Return the page of one component: definition, parameters, reference and source."""
    source = Path(inspect.getsourcefile(entry.factory) or "").name
    lines = [f"# {entry.name}", "", *map(_markdown, entry.doc.split("\n")), ""]
    if entry.infos:
        lines += ["| parameter | default | legal | meaning |", "| --- | --- | --- | --- |"]
    for info in entry.infos:
        default = "required" if info.required else format_value(info.default)
        lines.append(
            f"| `{info.key}` | {default} | {_markdown(info.legal)} | "
            f"{_markdown(info.limits['help'])} |"
        )
    lines += [
        "",
        f"**Reference:** {_markdown(_sentence(entry.reference))}",
        "",
        f"**Source:** `dynabro_cli/{kind}/{source}`",
    ]
    return "\n".join(lines) + "\n"


def _kind(type_: Any) -> str:
    return str(type_).lower().partition("(")[0].replace("varchar", "text")


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _markdown(text: str) -> str:
    """Return a line of a docstring as Markdown: text in backticks and indented lines stay code."""
    if text.startswith("    "):
        return text
    parts = re.split(r"(`+[^`]+`+)", text)
    parts[::2] = [re.sub(r"([\\*_|])", r"\\\1", part).replace("<", "&lt;") for part in parts[::2]]
    return "".join(parts)


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


if __name__ == "__main__":
    (DOCS / "columns.md").write_text(columns(), encoding="utf-8")
    (DOCS / "components.md").write_text(components(), encoding="utf-8")
