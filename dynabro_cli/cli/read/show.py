"""``dynabro show`` and ``dynabro logs``: one component, or one stored run."""

from __future__ import annotations

import codecs
import inspect
import io
import json
import os
import platform
import re
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynabro_cli.cli.completion import complete, components, run_ids
from dynabro_cli.cli.options import Database, Json, Plugins
from dynabro_cli.core.errors import NotFoundError, SpecError, did_you_mean, first_line
from dynabro_cli.core.registration import USERS, Entry, format_value, plugins
from dynabro_cli.experiment.spec import COMPONENTS, fields
from dynabro_cli.runs.screen.output import duration, emit, finite, print_json, sparkline, wrapped
from dynabro_cli.runs.screen.terminal import is_terminal, say, to_type, write
from dynabro_cli.runs.screen.terminal import show as print_text

if TYPE_CHECKING:
    from sqlalchemy import Engine

DIPS = ("dip", "worst_window")
"""Columns of ``recovery`` among the scores of a run."""


def show(
    what: Annotated[
        str,
        typer.Argument(
            metavar="NAME|KIND/NAME|RUN",
            help="Such as cwtm, aggregators/cwtm, 1, runs/1.",
            autocompletion=complete(components(*COMPONENTS.values()), run_ids),
        ),
    ],
    everything: Annotated[
        bool, typer.Option("--all", help="Of a run: every column, recovery, and Byzantine workers.")
    ] = False,
    diff: Annotated[
        bool,
        typer.Option(
            "--diff",
            help="Of a run: the changes in the checkout in which it was started, as of git diff.",
        ),
    ] = False,
    db: Database = "results.db",
    as_json: Json = False,
    plugin: Plugins = None,
) -> None:
    """Show a component's definition, parameters and papers (BibTeX), or a stored run: its scores,
    its curve, and how to repeat it.

    RUN is a run's id, or the beginning of its key. --all and --json show everything that is stored,
    except rounds.

    Example: dynabro show cwtm
    """
    kind, _, name = what.partition("/")
    if not name and re.fullmatch(r"[0-9]+|[0-9a-f]{8,64}", kind):
        kind, name = "runs", kind
    if kind == "runs" and name:
        if diff:
            _show_diff(db, name)
        else:
            _show_run(db, name, everything, as_json)
        return
    from dynabro_cli.components.registries import REGISTRIES

    if not name and kind not in ("", "runs", *REGISTRIES):
        kind, name = _kind_of(kind)
    if kind not in REGISTRIES or not name:
        legal = ", ".join([*REGISTRIES, "runs"])
        hint = "" if kind in REGISTRIES else did_you_mean(kind, REGISTRIES)
        raise SpecError(f"cannot show {what!r}{hint}. Try: KIND/NAME with KIND one of {legal}")
    _show_component(REGISTRIES[kind].entry(name), kind, as_json)


def _kind_of(name: str) -> tuple[str, str]:
    """Return the kind of the only component with a name, which may be another library's, and the
    name.

    Raises:
        SpecError: No component has the name, or components of several kinds have it.
    """
    from dynabro_cli.components.registries import REGISTRIES

    kinds = [kind for kind, registry in REGISTRIES.items() if name in registry.entries()]
    kinds = kinds or [kind for kind, registry in REGISTRIES.items() if registry.knows(name)]
    if len(kinds) == 1:
        return kinds[0], name
    if kinds:
        raise SpecError(
            f"{name!r} names components of several kinds. Try: "
            f"{' or '.join(f'dynabro show {kind}/{name}' for kind in kinds)}"
        )
    places = {
        entry_name: f"{kind}/{registry.find(entry_name)}"
        for kind, registry in REGISTRIES.items()
        for entry_name in registry.suggestible()
    }
    raise SpecError(
        f"cannot show {name!r}: neither a component nor a "
        f"run{did_you_mean(name, places, places.__getitem__)}. "
        "Try: dynabro list, which names the components, dynabro runs, which lists the runs, or "
        "--plugin FILE for a component of your own"
    )


def _show_component(entry: Entry[Any], kind: str, as_json: bool) -> None:
    from dynabro_cli.components.bibtex import bibtex

    citations = bibtex(f"{kind}/{entry.name}")
    rows = [
        (
            info.key,
            "required" if info.required else format_value(info.default),
            info.legal,
            info.limits["help"],
        )
        for info in entry.infos
    ]
    columns = ("parameter", "default", "legal", "meaning")
    if as_json:
        parameters = [dict(zip(columns, row, strict=True)) for row in rows]
        shown = {
            "kind": kind,
            "name": entry.name,
            "doc": entry.doc,
            "parameters": parameters,
            "reference": entry.reference,
            "bibtex": citations,
        }
        print_json(shown)
        return
    say(f"{kind}/{entry.name}", "")
    for paragraph in entry.doc.split("\n\n"):
        lines = paragraph.split("\n")
        if not any(line.startswith((" ", "-")) for line in lines):
            lines = wrapped(" ".join(lines))
        say(*lines, "")
    if rows:
        emit(columns, rows)
        say()
    say(*wrapped(f"Reference: {entry.reference}"))
    for citation in citations:
        say("", *citation.split("\n"))
    if f"{kind}/{entry.name}" in USERS:
        say(f"Defined in: {inspect.unwrap(entry.factory).__code__.co_filename}")


def _parsed(text: str) -> Any:
    """Return the value of a JSON column; its text if it is not JSON or too deeply nested to be
    printed.
    """
    try:
        value = json.loads(text)
        json.dumps(finite(value), indent=2)
    except (ValueError, RecursionError):
        return text
    return value


def _lines(row: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each column; columns of JSON have a line for each part, the spec only
    for parameters.
    """
    for column, value in row.items():
        if column == "spec" and isinstance(value, dict):
            for field, part in value.items():
                settings = part if isinstance(part, dict) else {}
                yield from (
                    (f"{field}.{name}", setting)
                    for name, setting in settings.items()
                    if name != "name"
                )
        elif isinstance(value, dict):
            yield from (
                (f"{column}.{name}", json.dumps(part) if isinstance(part, dict) else part)
                for name, part in value.items()
            )
        else:
            yield column, value


def _summarize(engine: Engine, row: dict[str, Any], recovered: dict[str, Any] | None) -> None:
    """Print a run in a few lines: its scores and its curve, what it is, and the command that
    repeats it.
    """
    from dynabro_cli.experiment.grid.sweep_file import plugins_in
    from dynabro_cli.experiment.label import cell, command_of
    from dynabro_cli.runs.store.read.queries import query, quoted
    from dynabro_cli.runs.store.write.origin import words_of

    column = "gap" if row["final_gap"] is not None else "test_accuracy"
    sql = f"SELECT {column} FROM evaluations WHERE run_id = {int(row['id'])} ORDER BY round"
    values = [value for (value,) in query(engine, sql).rows]
    names = {"accuracy": "final_accuracy", "loss": "final_loss", "gap": "final_gap"}
    scores = [
        f"{name} {row[stored]:.4g}" for name, stored in names.items() if row[stored] is not None
    ]
    scores += [
        f"{name.replace('_', ' ')} {recovered[name]:.3g}"
        for name in DIPS
        if recovered and recovered[name] is not None
    ]
    say(f"run {row['id']}: {cell({name: row[name] for name in fields()})}", "")
    say(f"{row['status']}: {', '.join(scores) or 'no score'}")
    if values:
        numbers = [value for value in values if value is not None]
        ends = (
            f"  {numbers[0]:.3g} to {numbers[-1]:.3g} at {len(values)} evaluations"
            if numbers
            else ""
        )
        say(f"{sparkline(values)}{ends}")
    spent = min(row["budget_spent"] or 0, row["budget"])
    work = (
        f"{spent:,} of {row['budget']:,} gradient computations of each worker, "
        f"{row['rounds'] or 0:,} rounds"
    )
    took = (
        ""
        if row["wall_seconds"] is None
        else f", {duration(row['wall_seconds'])} on {row['device']}"
    )
    say(work + took)
    if row["error"]:
        say(f"error: {first_line(row['error'])}")
    made = f"; sweep {row['sweep']}" if row["sweep"] else ""
    if words := words_of(row):
        say(words)
    if row["git_diff"]:
        say(to_type(f"the checkout had changes: dynabro show {row['id']} --diff"))
    say(
        "",
        f"learning rate {row['learning_rate']:g}, batch size {row['batch_size']}, model "
        f"{row['model']}{made}",
    )
    say(f"m = {row['workers']} workers, f = {row['byzantine']} Byzantine")
    named = [plugin.name for plugin in plugins.loaded()]
    if not named and row["sweep"]:
        texts = query(engine, f"SELECT yaml FROM sweeps WHERE name = {quoted(row['sweep'])}").rows
        named = [name for (text,) in texts if text for name in plugins_in(text)]
    command = command_of(row, list(dict.fromkeys(named)))
    say(to_type(f"repeat: {command} --seed {row['seed']}"))


def _show_diff(db: str, name: str) -> None:
    from dynabro_cli.runs.store.open.engine import open_read_only
    from dynabro_cli.runs.store.read.queries import find_run
    from dynabro_cli.runs.store.write.origin import diff_of

    engine = open_read_only(db)
    print_text(diff_of(engine, find_run(engine, name)).decode(errors="replace"))


def _show_run(db: str, name: str, everything: bool, as_json: bool) -> None:
    from dynabro_cli.core.registration.digests import parse
    from dynabro_cli.runs.store.open.engine import open_read_only
    from dynabro_cli.runs.store.read.queries import find_run, histogram, recovery, worker_labels

    engine = open_read_only(db)
    row = find_run(engine, name)
    recovered = recovery(engine, row["id"])
    counts, shares = histogram(engine, row["id"]), worker_labels(engine, row["id"])
    for column in ("spec", "versions"):
        row[column] = _parsed(row[column])
    row["code_digests"] = parse(row["code_digests"])
    if as_json:
        of_workers = [
            {"worker": worker, "label": label, "count": count} for worker, label, count in shares
        ]
        row |= {"byzantine_histogram": dict(counts), "recovery": recovered}
        print_json(row | ({"worker_labels": of_workers} if of_workers else {}))
        return
    _summarize(engine, row, recovered)
    if not everything:
        say("", to_type(f"everything that is stored of it: dynabro show {row['id']} --all"))
        return
    say()
    emit(("column", "value"), list(_lines(row)))
    if recovered is not None:
        say("", "Switches and recovery:")
        emit(("column", "value"), list(recovered.items()))
    say("", "Byzantine workers, by rounds:")
    most = max((rounds for _, rounds in counts), default=1)
    for byzantine, rounds in counts:
        say(f"{byzantine:4d} {rounds:7d}  {'#' * max(1, round(40 * rounds / most))}")
    if shares:
        say("", "Training samples, by worker and label:")
        many = {(worker, label): count for worker, label, count in shares}
        labels = sorted({label for _, label, _ in shares})
        workers = sorted({worker for worker, _, _ in shares})
        rows = [(worker, *(many.get((worker, label), 0) for label in labels)) for worker in workers]
        emit(("worker", *map(str, labels)), rows)


def logs(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A run's id, or the beginning of its key.",
            autocompletion=complete(run_ids),
        ),
    ],
    tail: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Print the last N lines. [default: all]")
    ] = None,
    path: Annotated[
        bool, typer.Option("--path", help="Print the log's path, for other programs.")
    ] = False,
    db: Database = "results.db",
    plugin: Plugins = None,
) -> None:
    """Print the log of a run: its events with their times, and the output of its process.

    To follow a run in progress: tail -f "$(dynabro logs 1 --path)"

    Example: dynabro logs 1 --tail 20
    """
    file = _log_of(db, run)
    if path:
        say(str(file))
        return
    try:
        lines = file.open("rb")
    except OSError as error:
        raise NotFoundError(f"{file} cannot be read ({error.strerror})") from error
    with lines:
        _print_log(lines if tail is None else deque(lines, tail))


def _log_of(database: str, name: str) -> Path:
    """Return the log of the run whose id is ``name``, or whose key begins with it.

    Raises:
        NotFoundError: There is no such run, or its log cannot be read.
    """
    from dynabro_cli.runs.store.open.engine import open_read_only
    from dynabro_cli.runs.store.read.queries import find_run
    from dynabro_cli.runs.store.tables import RERUN_SUFFIX
    from dynabro_cli.runs.store.write.side_files import SideFiles

    engine = open_read_only(database)
    row = find_run(engine, name.removeprefix("runs/"))
    path = SideFiles.of(engine.url).log(row["run_key"].removesuffix(RERUN_SUFFIX))
    if not os.access(path, os.R_OK) or not path.is_file():
        what = "cannot be read" if path.exists() else "is not there"
        where = "here" if row["host"] == platform.node() else f"on {row['host']}"
        raise NotFoundError(
            f"run {row['id']} ran {where}, and its log {path} {what}. Try: DYNABRO_STATE=FOLDER"
        )
    return path


def _print_log(lines: Iterable[bytes]) -> None:
    """Print text unchanged; on a terminal, without sequences that would change the terminal."""
    if not is_terminal():
        for line in lines:
            write(line)
        return
    # each state of a progress bar, drawn with carriage returns, becomes a line
    decoder = io.IncrementalNewlineDecoder(
        codecs.getincrementaldecoder("utf-8")("backslashreplace"), translate=True
    )
    for line in lines:
        print_text(decoder.decode(line))
    print_text(decoder.decode(b"", final=True))
