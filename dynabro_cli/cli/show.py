"""``dynabro show``: one component, or one stored run."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from dynabro_cli.cli.output import Database, Json, emit, print_json
from dynabro_cli.components import Entry, format_value
from dynabro_cli.errors import SpecError, did_you_mean


def show(
    what: Annotated[str, typer.Argument(metavar="KIND/NAME|runs/RUN", help="Such as aggregators/cwtm, or runs/1.")],
    db: Database = "results.db",
    as_json: Json = False,
) -> None:
    """Show a component's definition, parameters and reference, or everything about a stored run.

    RUN is a run's id, or the beginning of its key.

    Example: dynabro show aggregators/cwtm
    """
    kind, _, name = what.partition("/")
    if kind == "runs" and name:
        _show_run(db, name, as_json)
        return
    from dynabro_cli.resolve import REGISTRIES

    if kind not in REGISTRIES or not name:
        legal = ", ".join([*REGISTRIES, "runs"])
        raise SpecError(f"cannot show {what!r}{did_you_mean(kind, REGISTRIES)}; type KIND/NAME with KIND one of {legal}")
    _show_component(REGISTRIES[kind].entry(name), kind, as_json)


def _show_component(entry: Entry[Any], kind: str, as_json: bool) -> None:
    rows = [
        (info.key, "required" if info.required else format_value(info.default), info.legal, info.limits["help"])
        for info in entry.infos
    ]
    columns = ("parameter", "default", "legal", "meaning")
    way = _way(entry) if kind == "models" else None
    if as_json:
        parameters = [dict(zip(columns, row, strict=True)) for row in rows]
        shown = {"kind": kind, "name": entry.name, "doc": entry.doc, "parameters": parameters, "reference": entry.reference}
        print_json(shown | ({"gradients": way} if way else {}))
        return
    print(f"{kind}/{entry.name}\n\n{entry.doc}\n")
    if rows:
        emit(columns, rows)
        print()
    if way:
        print(f"Gradients: {way}")
    print(f"Reference: {entry.reference}")


def _way(entry: Entry[Any]) -> str | None:
    """How a model's per-worker gradients are computed, with the defaults of its parameters."""
    from dynabro_cli.simulation.gradients import way_of

    if any(info.required for info in entry.infos):
        return None
    parameters = entry.parameters()
    return way_of(lambda shape: entry.factory(parameters, shape))


def _show_run(db: str, name: str, as_json: bool) -> None:
    from dynabro_cli.store.engine import open_read_only
    from dynabro_cli.store.queries import find_run, histogram, recovery, worker_labels

    engine = open_read_only(db)
    row = find_run(engine, name)
    found = recovery(engine, row["id"])
    counts, shares = histogram(engine, row["id"]), worker_labels(engine, row["id"])
    for column in ("spec", "versions"):
        row[column] = json.loads(row[column])
    if as_json:
        told = [{"worker": worker, "label": label, "count": count} for worker, label, count in shares]
        row |= {"byzantine_histogram": dict(counts), "recovery": found}
        print_json(row | ({"worker_labels": told} if told else {}))
        return
    emit(
        ("column", "value"),
        [(key, json.dumps(value) if isinstance(value, dict) else value) for key, value in row.items()],
    )
    if found is not None:
        print("\nSwitches and recovery:")
        emit(("column", "value"), list(found.items()))
    print("\nByzantine workers, by rounds:")
    most = max((rounds for _, rounds in counts), default=1)
    for byzantine, rounds in counts:
        print(f"{byzantine:4d} {rounds:7d}  {'#' * max(1, round(40 * rounds / most))}")
    if shares:
        print("\nTraining samples, by worker and label:")
        many = {(worker, label): count for worker, label, count in shares}
        labels = sorted({label for _, label, _ in shares})
        workers = sorted({worker for worker, _, _ in shares})
        rows = [(worker, *(many.get((worker, label), 0) for label in labels)) for worker in workers]
        emit(("worker", *map(str, labels)), rows)
