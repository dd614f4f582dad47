"""``dynabro list`` and ``dynabro new``: what a run can have, and a component of your own to
start from.
"""

from __future__ import annotations

import importlib.resources
import importlib.util
import re
import shlex
import textwrap
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from dynabro_cli.cli.options import Json, Plugins
from dynabro_cli.core.errors import CannotWriteError, SpecError, did_you_mean
from dynabro_cli.core.registration import Entry, format_value
from dynabro_cli.runs.screen.output import print_json, terminal_width
from dynabro_cli.runs.screen.terminal import as_line, note, say

MOST_LINES, SHORTEST = 2, 20
"""Most lines of a meaning, and fewest letters of a line of it."""
SWEEPS, SEARCHES, FIGURES = "sweeps", "searches", "figures"


KINDS = {
    "aggregator": "run --aggregator {name}",
    "pre-aggregator": "run --pre {name}",
    "attack": "run --attack {name}",
    "switching": "run --switching {name}",
    "method": "run --method {name}",
    "model": "run --model {name}",
    "task": "run --task {name}",
    "partition": "run --data {name}",
    "figure": "plot {name}",
}
"""The kinds of components, each with a command that uses one."""


def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="[tasks|models|methods|aggregators|pre_aggregators|attacks|switching|partitions|sweeps|searches|figures]",
            help="One kind only.",
        ),
    ] = None,
    as_json: Json = False,
    plugin: Plugins = None,
) -> None:
    """List the components of a run with their parameters, or the sweeps, searches or figures.

    Example: dynabro list aggregators
    """
    from dynabro_cli.components.registries import REGISTRIES

    if kind == SWEEPS:
        _list_sweeps(as_json)
        return
    if kind == SEARCHES:
        _list_searches(as_json)
        return
    if kind == FIGURES:
        _list_figures(as_json)
        return
    if kind is not None and kind not in REGISTRIES:
        legal = [*REGISTRIES, SWEEPS, SEARCHES, FIGURES]
        raise SpecError(
            f"unknown kind {kind!r}{did_you_mean(kind, legal)}; legal: {', '.join(legal)}"
        )
    kinds = [kind] if kind else list(REGISTRIES)
    entries = [(name, entry) for name in kinds for entry in REGISTRIES[name].entries().values()]
    if as_json:
        print_json([_details(name, entry) for name, entry in entries])
        return
    for name in kinds:
        _print_lines(
            name,
            [
                (_signature(entry), entry.summary)
                for registered, entry in entries
                if registered == name
            ],
        )
    say("", "'dynabro show KIND/NAME' has the definition, the parameters and the reference.")
    say("Names of ByzFL, Blades and ByzPy are known, too: dynabro show TrMean")


def _print_lines(title: str, lines: list[tuple[str, str]]) -> None:
    """Print the number of lines, and names with their meaning, in at most ``MOST_LINES`` lines of
    the terminal's width; below a name that is longer than a third of it.
    """
    columns = terminal_width()
    say(f"{title} ({len(lines)})")
    width = min(max(len(name) for name, _ in lines), columns // 3)
    for name, meaning in lines:
        label, room = f"  {as_line(name)}  ", max(columns - width - 4, SHORTEST)
        if len(name) > width:
            whole = len(label) <= columns
            say(label.rstrip() if whole else f"{label[: columns - 3].rpartition(',')[0]},...")
            label = ""
        wrap = textwrap.TextWrapper(room, max_lines=MOST_LINES, placeholder=" ...")
        for line in wrap.wrap(as_line(meaning)):
            say(label.ljust(width + 4) + line)
            label = ""


def _list_sweeps(as_json: bool) -> None:
    from dynabro_cli.experiment.grid.sweep_lookup import load_sweep, shipped

    sweeps = [load_sweep(name) for name in shipped()]  # no two of their points are one run
    if as_json:
        print_json(
            [
                {"name": sweep.name, "description": sweep.description, "runs": sweep.runs}
                for sweep in sweeps
            ]
        )
        return
    _print_lines(
        SWEEPS, [(sweep.name, f"{sweep.runs:5d} runs  {sweep.description}") for sweep in sweeps]
    )
    say("", "'dynabro sweep NAME --dry-run' shows what is to do; without it, it is done.")


def _list_searches(as_json: bool) -> None:
    from dynabro_cli.experiment.grid.search_file import load_search
    from dynabro_cli.experiment.grid.sweep_lookup import shipped

    searches = [load_search(name) for name in shipped(SEARCHES)]
    if as_json:
        listing = [
            (search.sweep.name, search.sweep.description, search.sweep.points, search.trials)
            for search in searches
        ]
        print_json(
            [
                dict(zip(("name", "description", "searches", "trials"), values, strict=True))
                for values in listing
            ]
        )
        return
    lines = [
        (search.sweep.name, f"{search.trials or 'all'} trials  {search.sweep.description}")
        for search in searches
    ]
    _print_lines(SEARCHES, lines)
    say(
        "",
        "'dynabro search NAME --dry-run' shows what is to do; without it, it is done.",
    )


def _list_figures(as_json: bool) -> None:
    from dynabro_cli.answers.figures._api import GRIDS, RECORDS, REGISTRY

    entries = list(REGISTRY.entries().values())
    if as_json:
        print_json(
            [
                {"name": entry.name, "summary": entry.summary, "reference": entry.reference}
                | {"sweep": GRIDS[entry.name].sweep if entry.name in GRIDS else None}
                for entry in entries
            ]
        )
        return
    _print_lines(
        "figures of a sweep",
        [(entry.name, entry.summary) for entry in entries if entry.name in GRIDS],
    )
    _print_lines(
        "plots of any runs",
        [(entry.name, entry.summary) for entry in entries if entry.name not in GRIDS | RECORDS],
    )
    _print_lines(
        "figures of other tables",
        [(entry.name, entry.summary) for entry in entries if entry.name in RECORDS],
    )
    say(
        "",
        "'dynabro plot NAME' draws one figure, and 'dynabro plot all' every figure of a",
        "sweep with stored runs.",
    )


def _signature(entry: Entry[Any]) -> str:
    """Return a component's name and the keys of its parameters, as in ``gm:T,nu,tolerance``."""
    return ":".join(filter(None, (entry.name, ",".join(info.key for info in entry.infos))))


def _details(kind: str, entry: Entry[Any]) -> dict[str, Any]:
    parameters = {
        info.key: None if info.required else format_value(info.default) for info in entry.infos
    }
    return {
        "kind": kind,
        "name": entry.name,
        "parameters": parameters,
        "summary": entry.summary,
        "reference": entry.reference,
    }


def new(
    kind: Annotated[
        str, typer.Argument(metavar=f"[{'|'.join(KINDS)}]", help="The kind of component.")
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name, such as my-rule.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the files.")] = Path(),
    plugin: Plugins = None,
) -> None:
    """Write a component of your own and its test, ready to run: a complete example to change.

    Example: dynabro new aggregator my-rule
    """
    if kind not in KINDS:
        raise SpecError(
            f"kind={kind}: not a kind of component{did_you_mean(kind, KINDS)}. Try: "
            f"{', '.join(KINDS)}"
        )
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise SpecError(
            f"name={name}: it must be lower-case letters, digits and hyphens. Try: my-rule"
        )
    if name in _names(kind):
        raise SpecError(
            f"name={name}: dynabro has a component of this name. Try: dynabro new {kind} my-{name}"
        )
    stem = name.replace("-", "_")
    files = {
        out / f"{stem}.py": rendered(kind, name),
        out / f"test_{stem}.py": rendered(kind, name, test=True),
    }
    present = [str(path) for path in files if path.exists()]
    if present:
        verb = "exists" if len(present) == 1 else "exist"
        raise SpecError(
            f"name={name}: {' and '.join(present)} {verb} already. Try: another name, or --out DIR"
        )
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:  # never over another file
                file.write(text)
        except OSError as error:
            raise CannotWriteError(
                f"{path} cannot be written ({error.strerror}). Try: another --out"
            ) from error
        say(str(path))
    component, test = (shlex.quote(str(path)) for path in files)
    missing = "" if importlib.util.find_spec("pytest") is not None else "pip install pytest && "
    note(f"next: {missing}pytest {test}")
    note(f"      dynabro {KINDS[kind].format(name=name)} --plugin {component}")


def _names(kind: str) -> Collection[str]:
    """Return the names of the components of a kind of ``KINDS``."""
    from dynabro_cli.components.registries import REGISTRIES

    if kind == "figure":
        from dynabro_cli.answers.figures._api import REGISTRY

        return REGISTRY.entries()
    return REGISTRIES[kind.replace("-", "_") + ("" if kind == "switching" else "s")].entries()


def rendered(kind: str, name: str, *, test: bool = False) -> str:
    """Return the file of a component called ``name``, or its test."""
    stem = kind.replace("-", "_")
    template = (
        importlib.resources.files("dynabro_cli.testing.templates")
        / f"{'test_' if test else ''}{stem}.py"
    )
    text = template.read_text(encoding="utf-8")
    return text.replace(f"my-{kind}", name).replace(f"my_{stem}", name.replace("-", "_"))
