"""Numbers and time of short runs here and in another checkout, for example of an earlier commit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measuring import machine, ratio, table
from dynabro_cli.core.errors import SpecError

HEADER = ["run", "same numbers", "CPU s here", "CPU s there", "here over there"]
COMMON = {"workers": 7, "byzantine": 2, "batch_size": 4, "switching": "periodic:K=5"}
RULES = (
    *("bulyan:f=1", "caf", "centered-clipping:tau=1", "cge", "ctma", "ctma:rule=gm", "cwmed"),
    *("dnc", "mda", "meamed", "mean", "mfm:threshold=1", "monna", "multi-krum", "nnm+cwmed"),
    *("phocas", "rfa", "sign-majority", "smea"),
)
"""The rules of the runs in ``results.db.example`` that no other run below has."""
RUNS = (
    *(("digits", "mlp", "momentum:beta=0.9", rule, "alie", 40) for rule in RULES),
    ("digits", "cnn-digits", "sgd", "cwtm", "sf", 120),
    ("digits", "cnn-digits", "momentum:beta=0.9", "gm", "sf", 120),
    ("digits", "cnn-digits", "dynabro", "nnm+cwtm", "ipm", 120),
    ("digits", "cnn-digits", "sgd", "signguard", "alie", 60),
    ("digits", "mlp", "momentum:beta=0.9", "krum", "alie", 120),
    ("digits", "mlp", "dynabro:filter=option2", "mfm", "sf", 120),
    ("digits", "cnn-cifar", "momentum:beta=0.9", "cwmed", "ipm", 6),
    ("mnist", "cnn-mnist", "momentum:beta=0.9", "cwtm", "sf", 40),
)
"""Task, model, method, pre-aggregators and rule, attack, and budget; mnist is left out without a
folder of data sets.
"""
SMALL_COMMON = {"workers": 17, "byzantine": 8, "switching": "periodic:K=5"}
SMALL = (
    ("digits", "mlp", "momentum:beta=0.9", "cwtm", "sf", 1000),
    ("digits", "mlp", "dynabro", "cwtm", "sf", 1000),
    ("digits", "mlp", "momentum:beta=0.9", "gm", "sf", 1000),
    ("digits", "mlp", "momentum:beta=0.9", "nnm+cwtm", "sf", 1000),
    ("quadratic", "", "momentum:beta=0.9", "cwmed", "shift:lambda=1", 2000),
)
"""The same of small networks, in which a round takes a few milliseconds."""

PROGRAM = """
import dataclasses, hashlib, json, sys, time
from dynabro_cli import RunSpec, simulate
spec, place, threads, compile = json.loads(sys.argv[1]), sys.argv[2] or None, int(sys.argv[3]), sys.argv[4]
digest = hashlib.sha256()
stream = simulate(RunSpec(**spec), data_dir=place, device="cpu", compile=compile, threads=threads)
next(stream)  # set-up
before = time.process_time()
for event in stream:
    fields = dataclasses.asdict(event)
    fields.pop("how", None)  # texts about how the run was made, not numbers of it
    digest.update(repr({name: fields[name] for name in fields if fields[name] not in (None, ())}).encode())
import dynabro_cli
print(json.dumps([digest.hexdigest(), time.process_time() - before, dynabro_cli.__file__]))
"""  # noqa: E501


def measure(
    other: Path,
    repeats: int,
    threads: int,
    compile_: str,
    data_dir: Path | None,
    small: bool = False,
) -> tuple[str, bool]:
    """Run each spec here and there in turn; return a table with the least times, and True if all
    numbers are the same.
    """
    here, there = Path(__file__).parents[1], other.resolve()
    if not (there / "dynabro_cli").is_dir():
        raise SpecError(f"{other}: has no folder dynabro_cli. Try: git worktree add FOLDER COMMIT")
    rows: list[Sequence[object]] = []
    for task, model, method, chain, attack, budget in SMALL if small else RUNS:
        if task == "mnist" and data_dir is None:
            continue
        *stages, rule = chain.split("+")
        fields = (SMALL_COMMON if small else COMMON) | {
            "task": task,
            "method": method,
            "attack": attack,
            "aggregator": rule,
        }
        fields |= {
            "pre_aggregators": "+".join(stages) or "none",
            "budget": budget,
            "eval_every": budget,
        }
        fields |= {"model": model} if model else {}
        found: dict[Path, list[tuple[str, float]]] = {here: [], there: []}
        for _ in range(repeats):
            for checkout, results in found.items():
                results.append(_run(checkout, fields, data_dir, threads, compile_))
        numbers = {digest for results in found.values() for digest, _ in results}
        least = [min(seconds for _, seconds in results) for results in found.values()]
        name = f"{model or task}, {method}, {chain}, {attack}"
        rows.append([name, "yes" if len(numbers) == 1 else "NO", *least, ratio(*least)])
    return f"{machine()}\n\n{table(HEADER, rows)}", all(row[1] == "yes" for row in rows)


def _run(
    checkout: Path, fields: dict[str, Any], data_dir: Path | None, threads: int, compile_: str
) -> tuple[str, float]:
    """Return the digest of a run's events and the CPU time of its rounds, in a process with a
    checkout's code.
    """
    place = str(data_dir.resolve() if data_dir else "")
    command = [sys.executable, "-c", PROGRAM, json.dumps(fields), place, str(threads), compile_]
    ended = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SpecError(
            f"{checkout}: a run failed: {(ended.stderr.strip().splitlines() or ['?'])[-1]}"
        )
    digest, seconds, file = json.loads(ended.stdout.splitlines()[-1])
    if Path(file).parents[1] != checkout:
        raise SpecError(f"{checkout}: the code of {file} was loaded instead")
    return digest, seconds
