"""Write the pages of docs/ that are generated, ``columns.md`` (tables) and ``components.md``
(registries), and the folder ``build/docs`` that the website is built from.

Run ``python docs/generated.py`` after a change of tables or components, and before a build of the
website.
"""

from __future__ import annotations

import inspect
import json
import re
import shutil
import textwrap
from pathlib import Path
from typing import Any

from dynabro_cli.answers.figures.report.site import OF_VIEWS, VIEWS
from dynabro_cli.components.bibtex import bibtex
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.registration import Entry, format_value
from dynabro_cli.core.registration.aliases import ALIASES, Alias, squashed
from dynabro_cli.experiment.spec import fields
from dynabro_cli.runs.store.tables import metadata

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
SITE = ROOT / "build" / "docs"
WIDTH = 120
LINK = re.compile(r"(?:\]\(|src=\")([^)\"#:]+)")
FENCES = {"markdown": "{}", "code": "```python\n{}\n```"}
"""Markdown of a notebook's cell, by its type."""


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


def components(link: str = "`{name}`") -> str:
    """Return the page that lists every component: one line, and its names in other libraries.

    Args:
        link: Markdown of a component's name, a format with ``kind`` and ``name``.
    """
    lines = [
        "# Components",
        "",
        *_wrapped(
            "`dynabro show KIND/NAME` prints a component's definition, parameters and papers "
            "(BibTeX). Names after *also* come from ByzFL, Blades or ByzPy. They can be typed in "
            "any spelling (`TrMean`, `tr_mean`, `tr-mean`), and mean the algorithm as it is "
            "defined here. A star marks another definition there. `dynabro show NAME` says how it "
            "differs, and what to type for it."
        ),
    ]
    for kind, registry in REGISTRIES.items():
        lines += ["", f"## {kind}", ""]
        for name, entry in registry.entries().items():
            also = [_names(alias) for alias in ALIASES.get(kind, ()) if alias.text == name]
            names = f" *Also* {', '.join(also)}." if also else ""
            label = link.format(kind=kind, name=name)
            lines += _wrapped(f"- {label}: {_markdown(_about(entry))}{names}", "  ")
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
    """Return the page of one component: definition, parameters, reference, source and BibTeX."""
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
        f"**Source:** `dynabro_cli/components/{kind}/{source}`",
    ]
    for citation in bibtex(f"{kind}/{entry.name}"):
        lines += ["", "```bibtex", citation, "```"]
    return "\n".join(lines) + "\n"


def site() -> None:
    """Write the website's folder: README.md, docs/, the files that they link to, directly or not,
    the tutorial, and a page for each component.

    Each file keeps its place in the repository, so that all links stay valid.
    """
    shutil.rmtree(SITE, ignore_errors=True)
    files = [ROOT / "README.md", *DOCS.glob("*.md")]
    for file in files:  # grows
        place = SITE / file.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            text = file.read_text(encoding="utf-8")
            place.write_text(text.replace("tutorial.ipynb)", "tutorial.md)"), encoding="utf-8")
            for target in LINK.findall(text):
                path = (file.parent / target).resolve()
                if path.is_file() and path not in files:
                    files.append(path)
        elif file.suffix == ".ipynb":
            cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
            parts = [FENCES[cell["cell_type"]].format("".join(cell["source"])) for cell in cells]
            place.with_suffix(".md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
        else:
            shutil.copy(file, place)
    pages = SITE / "docs" / "components"
    linked = components("[`{name}`](components/{kind}/{name}.md)")
    pages.with_suffix(".md").write_text(linked, encoding="utf-8")
    for kind, registry in REGISTRIES.items():
        (pages / kind).mkdir(parents=True)
        for name, entry in registry.entries().items():
            (pages / kind / f"{name}.md").write_text(component(kind, entry), encoding="utf-8")


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
    site()
