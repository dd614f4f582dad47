"""Hooks of mkdocs: build the site of README.md, docs/, the tutorial, the other documents, and a
page for each component.

Links in the documents are relative to the repository, as a forge needs them; here they become links
of the site.
"""

from __future__ import annotations

import json
import posixpath
import re
import runpy
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from dynabro_cli.experiment.resolve import REGISTRIES

ROOT = Path(__file__).parents[1]
OTHERS = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "plots/README.md",
    "sweeps/README.md",
    "benchmarks/README.md",
)
"""Documents outside docs/ that become pages."""
TUTORIAL = ROOT / "docs" / "tutorial.ipynb"
"""A notebook without outputs, which becomes the page tutorial.md."""
LINK = re.compile(r"(?<=\]\()([^)#:]+)(#[^)]*)?(?=\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the other documents, the files that they link to, and the pages of the components."""
    generated = runpy.run_path(str(ROOT / "docs" / "generated.py"))
    for name in OTHERS:
        files.append(
            File.generated(config, _place(name), content=(ROOT / name).read_text(encoding="utf-8"))
        )
    for name in sorted({target for page in _documents() for target in _targets(page)}):
        files.append(File.generated(config, _place(name), abs_src_path=str(ROOT / name)))
    files.append(File.generated(config, "tutorial.md", content=_notebook(TUTORIAL)))
    for kind, registry in REGISTRIES.items():
        for name, entry in registry.entries().items():
            content = generated["component"](kind, entry)
            files.append(File.generated(config, f"components/{kind}/{name}.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Turn links of the repository into links of the site; link the list of components to their
    pages.
    """
    if page.file.src_uri == "components.md":
        return re.sub(r"^(## (\w+)$|- `([\w-]+)`)", _Linked(), markdown, flags=re.MULTILINE)
    if page.file.src_uri.startswith("components/"):
        return markdown
    here = _source(page.file.src_uri)
    return LINK.sub(lambda found: _link(here, found[1]) + (found[2] or ""), markdown)


class _Linked:
    """Replacement of a component's name by a link to its page; the last heading gives the kind."""

    def __init__(self) -> None:
        self.kind = ""

    def __call__(self, found: re.Match[str]) -> str:
        if found[2]:
            self.kind = found[2]
            return found[0]
        return f"- [`{found[3]}`](components/{self.kind}/{found[3]}.md)"


def _notebook(path: Path) -> str:
    """Return the cells of a notebook as markdown."""
    fences = {"markdown": "{}", "code": "```python\n{}\n```"}
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return (
        "\n\n".join(fences[cell["cell_type"]].format("".join(cell["source"])) for cell in cells)
        + "\n"
    )


def _documents() -> list[str]:
    return [*OTHERS, *(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))]


def _targets(document: str) -> list[str]:
    """Return the files outside docs/ that a document links to and that are not pages."""
    found = LINK.findall((ROOT / document).read_text(encoding="utf-8"))
    names = [
        posixpath.normpath(posixpath.join(posixpath.dirname(document), target))
        for target, _ in found
    ]
    return [
        name
        for name in names
        if name not in OTHERS and not name.startswith("docs/") and (ROOT / name).is_file()
    ]


def _place(name: str) -> str:
    """Return the place on the site of a file of the repository."""
    if name == "docs/tutorial.ipynb":
        return "tutorial.md"
    return "index.md" if name == "README.md" else name.removeprefix("docs/")


def _source(place: str) -> str:
    """Return the file of the repository of a page of the site."""
    if place == "index.md":
        return "README.md"
    return place if place in OTHERS else f"docs/{place}"


def _link(here: str, target: str) -> str:
    name = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
    return posixpath.relpath(_place(name), posixpath.dirname(_place(here)) or ".")
