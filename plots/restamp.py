#!/usr/bin/env python3
"""Give stored runs the digests of today's code, if runs drawn from all sweeps give the same numbers
with this code.

plots/restamp.py DATABASE [--check 20] [--longest 120] [--against CHECKOUT] [--data-dir DIR] makes
runs again, and compares all of their evaluations with the stored ones. On the machine that made
them, all numbers are equal to the last bit. Another version of torch, or a processor with other
vector instructions, rounds in another way, which grows along a run. Runs that are known to be made
with other vector instructions (cpu_capability of their environment) are therefore not drawn; of
older runs it is unknown. There, --against makes each run with the code of a checkout as well,
such as one of the commit that made them, and compares the two. If the checkout lacks a component of
the run, the stored numbers count. If all are equal, the column code_digests of every run with a
result is written anew. Run it after a change of the code that leaves numbers as they are. Runs
without a digest of their data get the digest of the data at hand.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, bindparam, select, update

from dynabro_cli import RunSpec, simulate
from dynabro_cli.components.digests import DATA, data_at_hand, digests_of, parse
from dynabro_cli.errors import DynabroError, SpecError
from dynabro_cli.events import Evaluated
from dynabro_cli.experiment.resolve import Run, resolve
from dynabro_cli.experiment.spec import fields
from dynabro_cli.simulation.setup import versions
from dynabro_cli.store.environments import VERSIONS
from dynabro_cli.store.open.engine import open_for_writing
from dynabro_cli.store.read.rows import json_object
from dynabro_cli.store.tables import HAS_RESULT, evaluations, runs

COMPARED = (
    "round",
    "test_accuracy",
    "test_loss",
    "train_loss",
    "gap",
    "validation_accuracy",
    "validation_loss",
)


def given(row: dict[str, Any]) -> dict[str, str]:
    """Return the fields of a row's run, as text."""
    return {name: str(row[name]) for name in fields() if row[name] is not None}


def resolved(row: dict[str, Any]) -> Run | None:
    """Return the run of a row; None if today's code would give it another key, or cannot make
    it.
    """
    try:
        run = resolve(RunSpec.from_text(given(row)))
    except DynabroError:
        return None
    return run if run.key == row["run_key"] else None


def capability(row: dict[str, Any]) -> str | None:
    """Return the vector instructions that a row's run was made with; None if they are unknown."""
    return (json_object(row["versions"]) or {}).get("cpu_capability")


def drawn(rows: list[dict[str, Any]], number: int, longest: float) -> list[dict[str, Any]]:
    """Return runs drawn from all sweeps in turn, without those made on a GPU or in more than
    ``longest`` seconds.

    A diverging run ends differently on another device, whatever the code.
    """
    sweeps: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if (
            row["wall_seconds"] is not None
            and row["wall_seconds"] <= longest
            and row["device"] == "cpu"
        ):
            sweeps[str(row["sweep"])].append(row)
    chance, chosen = random.Random(0), list[dict[str, Any]]()
    while any(sweeps.values()) and len(chosen) < number:
        chosen += [own.pop(chance.randrange(len(own))) for _, own in sorted(sweeps.items()) if own]
    return chosen[:number]


def stored(engine: Engine, number: int) -> list[tuple[Any, ...]]:
    statement = select(*(evaluations.c[name] for name in COMPARED)).where(
        evaluations.c.run_id == number
    )
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(statement.order_by(evaluations.c.round))]


def made(spec: RunSpec, data_dir: Path | None) -> list[tuple[Any, ...]]:
    """Return the evaluations of a run that is made again, as they would be stored: SQLite has NULL
    instead of NaN.
    """
    events = [
        event
        for event in simulate(spec, data_dir=data_dir, device="cpu")
        if isinstance(event, Evaluated)
    ]
    rows = [tuple(getattr(event, name) for name in COMPARED) for event in events]
    return [tuple(None if value != value else value for value in row) for row in rows]


PROGRAM = f"""
import json, sys
from pathlib import Path
from dynabro_cli import RunSpec, simulate
from dynabro_cli.errors import SpecError
from dynabro_cli.events import Evaluated
given, folder = json.loads(sys.argv[1])
try:
    stream = list(simulate(RunSpec.from_text(given), data_dir=folder and Path(folder), device="cpu"))
except SpecError:  # a component that this checkout does not have
    sys.exit(SpecError.exit_code)
print(json.dumps([[getattr(event, name) for name in {COMPARED}] for event in stream if isinstance(event, Evaluated)]))
"""  # noqa: E501


def made_by(
    checkout: Path, given: dict[str, str], data_dir: Path | None
) -> list[tuple[Any, ...]] | None:
    """Return what ``made`` returns, with the code of a checkout; None if the checkout lacks a
    component of the run.
    """
    words = [sys.executable, "-c", PROGRAM, json.dumps([given, data_dir and str(data_dir)])]
    answer = subprocess.run(
        words, env=os.environ | {"PYTHONPATH": str(checkout)}, capture_output=True, text=True
    )
    if answer.returncode == SpecError.exit_code:
        return None
    answer.check_returncode()
    return [
        tuple(None if value != value else value for value in row)
        for row in json.loads(answer.stdout)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Give stored runs the digests of today's code, after a check of some."
    )
    parser.add_argument("database", type=Path)
    parser.add_argument("--check", type=int, default=20, help="runs that are made again (20)")
    parser.add_argument(
        "--longest", type=float, default=120, help="seconds of the longest of these runs (120)"
    )
    parser.add_argument(
        "--against",
        type=Path,
        help="a checkout whose numbers the runs must have, instead of the stored ones",
    )
    parser.add_argument("--data-dir", type=Path, help="folder of the data sets")
    args = parser.parse_args()
    if not args.database.is_file():
        parser.error(
            f"there is no database at {args.database}; give the path of one, such as "
            "results.db.example"
        )
    engine = open_for_writing(str(args.database))
    with engine.connect() as connection:
        rows = [
            dict(row._mapping)
            for row in connection.exec_driver_sql(
                f"SELECT *, {VERSIONS} FROM runs WHERE {HAS_RESULT} ORDER BY id"
            )
        ]
    known = {row["id"]: run for row in rows if (run := resolved(row)) is not None}
    here = versions()["cpu_capability"]
    usable = [
        row
        for row in rows
        if row["id"] in known and (args.against or capability(row) in (None, here))
    ]
    chosen = drawn(usable, args.check, args.longest)
    if not chosen:
        raise SystemExit(
            f"no run was made again with {here}, so no digest was changed. Try: a larger --check "
            "or --longest, or --against, which does not need the same vector instructions"
        )
    unequal = 0
    for row in chosen:
        again = made(known[row["id"]].spec, args.data_dir)
        before = None if args.against is None else made_by(args.against, given(row), args.data_dir)
        before = stored(engine, row["id"]) if before is None else before
        unequal += repr(again) != repr(before)
        unknown = "" if capability(row) else f" (vector instructions: unknown then, {here} now)"
        print(
            f"run {row['id']} of {row['sweep']}: "
            f"{'equal' if repr(again) == repr(before) else f'other numbers{unknown}'}",
            flush=True,
        )
    if unequal:
        raise SystemExit(f"{unequal} runs have other numbers; no digest was changed")
    look, values = data_at_hand(args.data_dir), list[dict[str, Any]]()
    for row in rows:
        if row["id"] in known:
            run = known[row["id"]]
            task = run.spec.task
            # a known digest stays
            data = (parse(row["code_digests"]) or {}).get(f"{DATA}{task}") or look(task)
            values.append(
                {"number": row["id"], "digests": digests_of(run.components, {task: data})}
            )
    with engine.begin() as connection:
        connection.execute(
            update(runs)
            .where(runs.c.id == bindparam("number"))
            .values(code_digests=bindparam("digests")),
            values,
        )
    print(f"{len(values)} of {len(rows)} runs have the digests of today's code")


if __name__ == "__main__":
    main()
