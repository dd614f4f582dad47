"""``dynabro list``: what there is to choose from."""

from __future__ import annotations

from typing import Annotated

import typer

from dynabro_cli.cli.output import Json, emit, print_json
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
    from dynabro_cli.components import format_value
    from dynabro_cli.resolve import REGISTRIES

    if kind is not None and kind not in REGISTRIES:
        raise SpecError(f"unknown kind {kind!r}{did_you_mean(kind, REGISTRIES)}; legal: {', '.join(REGISTRIES)}")
    rows = []
    for name, registry in REGISTRIES.items():
        for entry in registry.entries().values() if kind in (None, name) else ():
            infos = {info.key: "required" if info.required else format_value(info.default) for info in entry.infos}
            rows.append((name, entry.name, infos, entry.summary, entry.reference))
    if as_json:
        columns = ("kind", "name", "parameters", "summary", "reference")
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
        return
    shown = []
    for name, component, infos, summary, _ in rows:
        parameters = ",".join(f"{key}={'' if value == 'required' else value}" for key, value in infos.items())
        shown.append((name, component + (f":{parameters}" if parameters else ""), summary))
    emit(("kind", "component", "what"), shown)
