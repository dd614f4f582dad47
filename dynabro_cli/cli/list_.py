"""``dynabro list``: what there is to choose from."""

from __future__ import annotations

import shutil
from typing import Annotated, Any

import typer

from dynabro_cli.cli.output import Json, print_json
from dynabro_cli.components import Entry, format_value
from dynabro_cli.errors import SpecError, did_you_mean


def list_(
    kind: Annotated[
        str | None,
        typer.Argument(metavar="[tasks|models|methods|aggregators|pre_aggregators|attacks|switching]", help="One kind only."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the components that a run is put together from, with their parameters.

    Example: dynabro list aggregators
    """
    from dynabro_cli.resolve import REGISTRIES

    if kind is not None and kind not in REGISTRIES:
        raise SpecError(f"unknown kind {kind!r}{did_you_mean(kind, REGISTRIES)}; legal: {', '.join(REGISTRIES)}")
    kinds = [kind] if kind else list(REGISTRIES)
    entries = [(name, entry) for name in kinds for entry in REGISTRIES[name].entries().values()]
    if as_json:
        print_json([_details(name, entry) for name, entry in entries])
        return
    columns = shutil.get_terminal_size((120, 50)).columns
    for name in kinds:
        print(name)
        lines = [(_signature(entry), entry.summary) for own, entry in entries if own == name]
        width = max(len(signature) for signature, _ in lines)
        for signature, summary in lines:
            line = f"  {signature.ljust(width)}  {summary}"
            print(line if len(line) <= columns else line[: columns - 3] + "...")
    print("\n'dynabro show KIND/NAME' has the definition, the parameters and the reference.")


def _signature(entry: Entry[Any]) -> str:
    """A component's name and the keys of its parameters, as in ``gm:T,nu,tolerance``."""
    return ":".join(filter(None, (entry.name, ",".join(info.key for info in entry.infos))))


def _details(kind: str, entry: Entry[Any]) -> dict[str, Any]:
    parameters = {info.key: None if info.required else format_value(info.default) for info in entry.infos}
    return {
        "kind": kind,
        "name": entry.name,
        "parameters": parameters,
        "summary": entry.summary,
        "reference": entry.reference,
    }
