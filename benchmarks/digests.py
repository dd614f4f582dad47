"""Table of the digests of shipped parts that give the same numbers here and in earlier commits.

Each part is tried in a short run, here and with the code of each commit. Parts whose data are not
at hand are compared by their syntax trees. ``--write`` puts the digests of equal parts into the
table, in which commands look up the digests of stored runs.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks import same
from benchmarks.measuring import cores, table
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.registration import digests
from dynabro_cli.experiment.resolve import REGISTRIES

HERE = Path(__file__).parents[1]
BASE = {
    **same.COMMON,
    "task": "digits",
    "model": "mlp:hidden=8",
    "method": "momentum:beta=0.9",
    "aggregator": "cwmed",
    "attack": "alie",
    "budget": 40,
    "eval_every": 20,
}
FIELDS = {
    "aggregators": "aggregator",
    "attacks": "attack",
    "methods": "method",
    "models": "model",
    "partitions": "data",
    "pre_aggregators": "pre_aggregators",
    "switching": "switching",
    "tasks": "task",
}
PARAMETERS = {
    "bernoulli": "p=0.05,D=5,delta_max=0.4",
    "bucketing": "s=2",
    "bulyan": "f=1",
    "centered-clipping": "tau=1",
    "clipping": "c=1",
    "dirichlet": "alpha=0.5",
    "gamma": "similarity=0.5",
    "image-folder": "name=pictures",
    "mfm": "threshold=1",
    "mid-round": "K=3",
    "mixed": "parts=sf/ipm:epsilon=2",
    "momentum-tailored": "lambda=1",
    "npz": "file={folder}/pictures.npz,X=x_train,y=y_train,X_test=x_test,y_test=y_test",
    "on-level": "level=1",
    "periodic": "K=5",
    "round-robin": "K=5",
    "shift": "lambda=1",
    "trace": "file={folder}/trace.csv",
}
"""Parameters of the parts that need some."""
LARGE = {
    "task": f"npz:{PARAMETERS['npz']}",
    "workers": 5,
    "byzantine": 1,
    "batch_size": 1,
    "budget": 3,
    "eval_every": 3,
}
FURTHER: dict[str, dict[str, Any]] = {
    "aggregators/fltrust": {"data": "iid:server=100"},
    "attacks/momentum-tailored": {"switching": "rotating", "byzantine": 3},
    "methods/byzantine-sgd": {"aggregator": "mean"},
    "methods/safeguard": {"aggregator": "mean"},
    "models/cnn-cifar": LARGE,
    "models/cnn-mnist": LARGE,
    "models/cnn-mnist-50": LARGE,
    "models/gpt": {"task": "text-file"},
    "models/resnet18": LARGE,
    "pre_aggregators/bucketing": {"workers": 9},
    "switching/mid-round": {"method": "dynabro"},
    "switching/on-level": {"method": "dynabro"},
    "switching/rotating": {"byzantine": 3},
    "tasks/quadratic": {"model": None, "attack": "shift:lambda=1"},
}
"""Fields of the runs that ``BASE`` does not fit."""

OTHER, CHANGED = "other numbers", "changed on purpose"
RUNS = """
import dataclasses, hashlib, json, sys
from dynabro_cli import RunSpec, simulate
specs, folder = json.loads(sys.argv[1]), sys.argv[2]
for spec in specs:
    numbers, how = hashlib.sha256(), "on" if "cnn" in spec.get("model", "") else "auto"
    try:
        stream = simulate(RunSpec(**spec), data_dir=folder, device="cpu", threads=1, compile=how)
        code = json.loads(next(stream).record["code_digests"])
        for event in stream:
            fields = dataclasses.asdict(event)
            fields.pop("how", None)
            numbers.update(repr({name: fields[name] for name in fields if fields[name] not in (None, ())}).encode())
        print(json.dumps([numbers.hexdigest(), code]))
    except Exception as error:
        print(json.dumps([None, str(error).splitlines()[0]]))
"""  # noqa: E501
"""Program that makes runs with the public Python API, which every commit has. Convolutional
networks are compiled, as in runs that are not short.
"""
TREES = """
import json, pathlib, sys
from dynabro_cli.core.registration import digests
digests.ROOT = pathlib.Path(sys.argv[1])
whole = lambda file: digests._digest(map(digests._content, digests._with_imports(file)))
print(json.dumps({name: [digests.of_file(file), whole(file)] for name, file in digests._registered().items()}))
"""  # noqa: E501
"""Program that prints two digests of each part in another commit's package: of the syntax trees,
and of whole files, as in 1.1.0.
"""


def measure(
    commits: Sequence[str], changed: Iterable[str], data_dir: Path | None, write: bool
) -> str:
    """Return a table of all parts: the commits in which each gives the same numbers, or why it is
    not known.

    Args:
        commits: Earlier commits; the table's commits come first.
        changed: Parts that have changed on purpose, perhaps only with other parameters. Their other
            digests in the table's commits do not count, now or later.
        data_dir: The folder of data sets.
        write: True to write the table of digests.
    """
    before = json.loads(digests.SAME_CODE.read_text())
    commits = list(dict.fromkeys([*before.get("commits", ()), *commits]))
    names = [f"{kind}/{name}" for kind, parts in REGISTRIES.items() for name in parts.entries()]
    if unknown := [name for name in changed if name not in (*names, digests.ENGINE)]:
        raise SpecError(f"changed={unknown[0]}: no such part. Try: {names[0]}")
    other = before.get("changed", {}) | dict.fromkeys(changed, commits)
    parts = {name: [str(digests.at_hand(name))] for name in (*names, digests.ENGINE)}
    rows = {name: [name] for name in parts}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "data")
        _make_data(folder, data_dir)
        specs = [*(_spec(name, folder) for name in names), *_engine_specs()]
        checkouts = [_checkout(commit, Path(place)) for commit in commits]
        with ThreadPoolExecutor(cores()) as pool:
            ours, *others = pool.map(lambda x: _runs(x, specs, folder), (HERE, *checkouts))
        for commit, checkout, theirs in zip(commits, checkouts, others, strict=True):
            trees = _trees(checkout)
            for name, run, their_run in zip(names, ours, theirs, strict=False):
                has_changed = commit in other.get(name, ())
                verdict, old = _compared(name, run, their_run, trees.get(name), has_changed)
                rows[name].append(verdict)
                parts[name] += old
            verdict, old = _of_engine(names, list(zip(ours, theirs, strict=True)), trees)
            if commit in other.get(digests.ENGINE, ()):
                verdict, old = CHANGED, []
            rows[digests.ENGINE].append(verdict)
            parts[digests.ENGINE] += old
    table_of = {
        name: list(
            dict.fromkeys(
                [
                    *found,
                    *(() if name in other else _linked(found, before["parts"].get(name, ()))),
                ]
            )
        )
        for name, found in sorted(parts.items())
    }
    if write:
        listed = {name: row for name, row in table_of.items() if len(row) > 1 or name in other}
        _write(commits, other, listed)
    return table(["part", *commits], list(rows.values()))


def _linked(found: list[str], before: Sequence[str]) -> Sequence[str]:
    """Return the digests that the table already has, if earlier code with one of them was found to
    give the same numbers.
    """
    return before if set(found[1:]) & set(before) else ()


def _compared(
    name: str, here: list[Any], there: list[Any], trees: list[str] | None, has_changed: bool
) -> tuple[str, list[str]]:
    """Return how a part was compared with the same part of a commit, and the commit's digests of it
    if they are equal.
    """
    if trees is None:
        return "not there", []
    ran, equal = None not in (here[0], there[0]), here[0] == there[0]
    if trees[0] == digests.at_hand(name):
        return "runs" if ran and equal else "syntax", trees[1:]
    if has_changed:
        return CHANGED, []
    if not ran:
        return f"not run: {(here if here[0] is None else there)[1]}"[:40], []
    return ("runs", [there[1][name]]) if equal else (OTHER, [])


def _of_engine(
    names: list[str], runs: list[tuple[list[Any], list[Any]]], trees: dict[str, list[str]]
) -> tuple[str, list[str]]:
    """Return what ``_compared`` returns for the engine. All runs of ``same`` have to be equal, and
    all runs of parts with equal syntax trees: another engine would explain a difference.
    """
    for name, (here, there) in zip(names, runs, strict=False):
        as_before = trees.get(name, [None])[0] == digests.at_hand(name)
        if as_before and None not in (here[0], there[0]) and here[0] != there[0]:
            return f"{OTHER} in {name}", []
    further = runs[len(names) :]
    equal = all(here[0] is not None and here[0] == there[0] for here, there in further)
    return ("runs", [further[0][1][1][digests.ENGINE]]) if equal else (OTHER, [])


def _spec(name: str, folder: Path) -> dict[str, Any]:
    kind, part = name.split("/")
    text = f"{part}:{PARAMETERS[part]}" if part in PARAMETERS else part
    fields = BASE | {FIELDS[kind]: text} | FURTHER.get(name, {})
    return {
        field: value.format(folder=folder) if isinstance(value, str) else value
        for field, value in fields.items()
        if value is not None
    }


def _engine_specs() -> list[dict[str, Any]]:
    """Return the runs of ``same`` on digits and on quadratics. Convolutional networks, which take
    seconds to compile, are in the runs of these models.
    """
    specs = []
    for common, runs in ((same.COMMON, same.RUNS), (same.SMALL_COMMON, same.SMALL)):
        for task, model, method, chain, attack, budget in runs:
            if task != "mnist":
                *stages, rule = chain.split("+")
                fields = {"task": task, "method": method, "attack": attack, "aggregator": rule}
                fields |= {"model": "mlp"} if model else {}
                length = min(budget, 100)
                fields |= {"pre_aggregators": "+".join(stages) or "none"}
                specs.append(common | fields | {"budget": length, "eval_every": length})
    return specs


def _make_data(folder: Path, data_dir: Path | None) -> None:
    """Write small data sets of random pixels, and link the data sets of ``data_dir``."""
    folder.mkdir()
    for path in data_dir.resolve().iterdir() if data_dir else ():
        (folder / path.name).symlink_to(path)
    draws = np.random.Generator(np.random.PCG64(0))
    pixels, labels = draws.integers(256, size=(60, 28, 28), dtype=np.uint8), np.arange(60) % 10
    arrays = {"x_train": pixels, "y_train": labels, "x_test": pixels, "y_test": labels}
    np.savez(folder / "pictures.npz", **arrays)
    for split in ("train", "test"):
        for number, (image, label) in enumerate(zip(pixels, labels, strict=True)):
            place = folder / "pictures" / split / str(label)
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[:8, :8]).save(place / f"{number}.png")
    (folder / "trace.csv").write_text("tick,byzantine\n0,1 2\n3,2 5\n9,1 4\n")


def _checkout(commit: str, place: Path) -> Path:
    """Write the files of a commit; return their folder."""
    answer = subprocess.run(["git", "archive", commit], cwd=HERE, capture_output=True, check=False)
    if answer.returncode:
        raise SpecError(f"{commit}: no such commit. Try: git fetch --unshallow")
    with tarfile.open(fileobj=io.BytesIO(answer.stdout)) as archive:
        archive.extractall(place / commit, filter="data")
    return place / commit


def _runs(checkout: Path, specs: list[dict[str, Any]], folder: Path) -> list[list[Any]]:
    """Return for each run the digest of its numbers and its digests of code, or None and why it
    failed.
    """
    command = [sys.executable, "-c", RUNS, json.dumps(specs), str(folder)]
    return [json.loads(line) for line in _lines(command, checkout)]


def _trees(checkout: Path) -> dict[str, list[str]]:
    (line,) = _lines([sys.executable, "-c", TREES, str(checkout / digests.ROOT.name)], HERE)
    trees: dict[str, list[str]] = json.loads(line)
    return trees


def _lines(command: list[str], folder: Path) -> list[str]:
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SpecError(f"{folder}: {(ended.stderr.strip().splitlines() or ['failed'])[-1]}")
    return ended.stdout.splitlines()


def _write(commits: list[str], changed: dict[str, list[str]], parts: dict[str, list[str]]) -> None:
    lines = ",\n".join(
        f"    {json.dumps(name)}: {json.dumps(found)}" for name, found in parts.items()
    )
    about = (
        "Each part's digest today, and digests of earlier code with the same numbers: in short "
        "runs on a CPU, equal to the last bit, or by equal syntax trees. Made by python -m "
        f"benchmarks digests, with torch {torch.__version__}."
    )
    digests.SAME_CODE.write_text(
        f'{{\n  "about": {json.dumps(about)},\n  "commits": {json.dumps(commits)},\n'
        f'  "changed": {json.dumps(changed)},\n'
        f'  "parts": {{\n{lines}\n  }}\n}}\n'
    )
