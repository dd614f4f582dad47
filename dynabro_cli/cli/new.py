"""``dynabro new``: a component of the user's own, with its test, to start from."""

from __future__ import annotations

import importlib.resources
import importlib.util
import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from dynabro_cli.cli.options import Plugins
from dynabro_cli.cli.terminal import note, say
from dynabro_cli.errors import CannotWriteError, SpecError, did_you_mean

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
    own, test = (shlex.quote(str(path)) for path in files)
    missing = "" if importlib.util.find_spec("pytest") is not None else "pip install pytest && "
    note(f"next: {missing}pytest {test}")
    note(f"      dynabro {KINDS[kind].format(name=name)} --plugin {own}")


def rendered(kind: str, name: str, *, test: bool = False) -> str:
    """Return the file of a component called ``name``, or its test."""
    stem = kind.replace("-", "_")
    template = (
        importlib.resources.files("dynabro_cli.testing.templates")
        / f"{'test_' if test else ''}{stem}.py"
    )
    text = template.read_text(encoding="utf-8")
    return text.replace(f"my-{kind}", name).replace(f"my_{stem}", name.replace("-", "_"))
