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
from dynabro_cli.components.aliases import ALIASES, Alias, squashed
from dynabro_cli.experiment.resolve import REGISTRIES
from dynabro_cli.experiment.spec import fields
from dynabro_cli.figures.report.site import OF_VIEWS, VIEWS
from dynabro_cli.store.tables import metadata

DOCS = Path(__file__).parent
WIDTH = 120


def columns() -> str:
    """Return the page of all tables, views and columns, from their comments."""
    lines = [
        "# Tables and columns",
        "",
        "Columns of tables are text unless another type is in brackets.",
    ]
    for table in metadata.tables.values():
        lines += ["", f"## {table.name}", "", *_wrapped(_first_upper(f"{table.comment}.")), ""]
        for column in table.columns:
            kind = _kind(column.type)
            name = f"`{column.name}`" if kind == "text" else f"`{column.name}` ({kind})"
            lines += _wrapped(f"- {name}: {column.comment}", "  ")
    for view, meaning in VIEWS.items():
        lines += ["", f"## {view}", "", *_wrapped(f"A view: {meaning}.{_shared(view)}"), ""]
        for name, about in OF_VIEWS[view].items():
            lines += _wrapped(f"- `{name}`: {about}", "  ")
    return "\n".join(lines) + "\n"


def components() -> str:
    """Return the page that lists every component: one line, and its names in other libraries."""
    lines = [
        "# Components",
        "",
        *_wrapped(
            "`dynabro show KIND/NAME` prints the definition, parameters and reference of a "
            "component. A name after *also* is the component's name in ByzFL, Blades or "
            "ByzPy, and can be typed in any spelling: `TrMean`, `tr_mean`, `tr-mean`. It means "
            "the algorithm as it is defined here. A star marks a name whose definition differs. "
            "`dynabro show NAME` says how, and what to type for the other definition."
        ),
    ]
    for kind, registry in REGISTRIES.items():
        lines += ["", f"## {kind}", ""]
        for name, entry in registry.entries().items():
            also = [_names(alias) for alias in ALIASES.get(kind, ()) if alias.text == name]
            names = f" *Also* {', '.join(also)}." if also else ""
            lines += _wrapped(_markdown(f"- `{name}`: {_about(entry)}") + names, "  ")
    lines += ["", "## Names of other libraries", ""]
    lines += ["These names stand for a component with parameters:", ""]
    missing = []
    for kind, registry in REGISTRIES.items():
        for alias in ALIASES.get(kind, ()):
            if not alias.text:
                missing.append(_names(alias))
            elif alias.text not in registry.entries():
                lines.append(f"- {kind}: {_names(alias)}: `{alias.text}`")
    lines.append("")
    lines += _wrapped(
        f"dynabro has no component for {', '.join(missing)}. `dynabro show NAME` says what is near."
    )
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


def _about(entry: Entry[Any]) -> str:
    """Return a component's line without a title that only repeats its name."""
    title, _, rest = entry.summary.partition(": ")
    return rest if squashed(title) == squashed(entry.name) else entry.summary


def _shared(view: str) -> str:
    """Return the sentence that names a view's columns that are fields of a run."""
    if view != "final_accuracy":
        return ""
    names = ", ".join(f"`{name}`" for name in fields() if name != "seed")
    return f" These columns are as in `runs`: {names}."


def _names(alias: Alias) -> str:
    """Return the names of an alias; a star marks each one whose definition differs."""
    star = r"\*" if alias.note and alias.text else ""
    return ", ".join(f"`{name.strip()}`{star}" for name in alias.names.split(","))


def _kind(type_: Any) -> str:
    return str(type_).lower().partition("(")[0].replace("varchar", "text")


def _first_upper(text: str) -> str:
    return text[:1].upper() + text[1:]


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
