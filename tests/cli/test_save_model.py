"""``dynabro run --save-model`` and ``dynabro evaluate``."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load, load_file, save_file

from dynabro_cli import RunSpec, simulate
from dynabro_cli.core import events
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.machine import host_memory
from tests.cli.conftest import Dynabro
from tests.own import fresh
from tests.runs.store.made import read

LOGISTIC = (
    "run",
    "--model",
    "logistic",
    "--budget",
    "40",
    "--eval-every",
    "10",
    "--method",
    "sgd",
    "--quiet",
)
QUADRATIC = ("run", "--task", "quadratic", "--method", "sgd", "--budget", "20", "--quiet")
SAVE = ("--save-model", "model.safetensors")
NORMED = """
from dataclasses import dataclass
from dynabro_cli.core.lazy import nn
from dynabro_cli.components.models._api import REGISTRY, any_size

@dataclass(frozen=True)
class Parameters:
    pass

@REGISTRY.register("normed", Parameters, reference="a test", check=any_size)
def normed(parameters: Parameters, shape: object) -> nn.Module:
    \"\"\"A convolution, batch norm and a linear layer; images [n, c, h, w] -> logits [n, classes].\"\"\"
    layers = nn.Conv2d(shape.channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(4 * (shape.height - 2) * (shape.width - 2), shape.classes))
"""  # noqa: E501


def about(path: Path | str) -> dict[str, str]:
    with safe_open(path, framework="pt") as file:
        return dict(file.metadata())


def models(folder: Path) -> dict[str, object]:
    """Content of all saved models; the order of metadata differs from file to file."""
    files = sorted(folder.glob("*.safetensors"))
    return {
        path.name: (
            about(path),
            {name: tensor.tolist() for name, tensor in load_file(path).items()},
        )
        for path in files
    }


def evaluated(dynabro: Dynabro, *words: str) -> dict[str, object]:
    outcome = dynabro("evaluate", *words, "--json")
    assert outcome.code == 0, outcome.err
    found: dict[str, object] = json.loads(outcome.out)
    return found


# --- what is saved


@pytest.mark.thorough
def test_each_evaluation_has_a_file_with_the_stored_numbers(dynabro: Dynabro, folder: Path) -> None:
    outcome = dynabro(*LOGISTIC, *SAVE, "--save-at", "evaluations")
    assert outcome.code == 0
    assert "model saved in model.safetensors" in outcome.out.splitlines()
    rows = read(
        folder / "results.db",
        "SELECT round, budget, test_accuracy, test_loss FROM evaluations ORDER BY round",
    )
    names = [*(f"model-{row[0]:06}.safetensors" for row in rows[:-1]), "model.safetensors"]
    assert sorted(path.name for path in folder.glob("*.safetensors")) == sorted(names)
    assert len({(folder / name).read_bytes() for name in names}) == len(rows) == 5
    for name, (round_, budget, accuracy, loss) in zip(names, rows, strict=True):
        found = evaluated(dynabro, name)
        assert (found["accuracy"], found["loss"], found["samples"]) == (accuracy, loss, 360)
        key = read(folder / "results.db", "SELECT run_key FROM runs")[0][0]
        assert found["run"] == {
            "key": key,
            "round": round_,
            "budget": budget,
            "final": name == "model.safetensors",
        }


def test_the_file_says_which_run_it_is_of(dynabro: Dynabro, folder: Path) -> None:
    assert dynabro(*LOGISTIC, "--seed", "7", *SAVE).code == 0
    key, accuracy = read(folder / "results.db", "SELECT run_key, final_accuracy FROM runs")[0]
    found = about("model.safetensors")
    spec = json.loads(found["spec"])
    assert (found["run_key"], found["round"], found["final"], float(found["accuracy"])) == (
        key,
        "40",
        "yes",
        accuracy,
    )
    assert (spec["task"], spec["model"], spec["seed"], spec["aggregator"]) == (
        "digits",
        "logistic",
        7,
        "cwtm",
    )
    assert [list(tensor.shape) for tensor in load_file("model.safetensors").values()] == [
        [10],
        [10, 64],
    ]


@pytest.fixture
def no_plugins() -> Iterator[None]:
    with fresh():
        yield


@pytest.mark.thorough
@pytest.mark.usefixtures("no_plugins")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_statistics_of_batch_norm_are_saved_too(
    precision: str, dynabro: Dynabro, folder: Path
) -> None:
    (folder / "normed.py").write_text(NORMED)
    plugin = ("--plugin", "normed.py")
    run = (
        "run",
        "--model",
        "normed",
        "--method",
        "sgd",
        "--budget",
        "30",
        "--lr",
        "0.1",
        "--attack",
        "none",
        "--quiet",
    )
    assert dynabro(*run, "--precision", precision, *SAVE, *plugin).code == 0
    sql = (
        "SELECT final_accuracy, test_loss FROM runs JOIN evaluations ON run_id = id ORDER BY "
        "round DESC"
    )
    accuracy, loss = read(folder / "results.db", sql)[0]
    saved = load_file("model.safetensors")
    assert saved["1.running_mean"].abs().max() > 0
    assert accuracy > 0.3
    found = evaluated(dynabro, "model.safetensors", *plugin)
    assert (found["accuracy"], found["loss"]) == (accuracy, loss)
    assert json.loads(about("model.safetensors")["plugins"]) == ["normed.py"]
    save_file(saved | {"1.running_mean": saved["1.running_mean"] + 1}, "other.safetensors")
    named = ("--task", "digits", "--model", "normed", *plugin)
    assert evaluated(dynabro, "other.safetensors", *named)["loss"] != loss


def test_an_objective_has_its_gap(dynabro: Dynabro, folder: Path) -> None:
    assert dynabro(*QUADRATIC, *SAVE).code == 0
    (gap,) = read(folder / "results.db", "SELECT final_gap FROM runs")[0]
    assert evaluated(dynabro, "model.safetensors")["gap"] == gap
    assert dynabro("evaluate", "model.safetensors").out.splitlines()[-1] == f"quadratic: gap {gap}"


def test_a_diverged_run_has_its_last_model(dynabro: Dynabro, folder: Path) -> None:
    assert (
        dynabro(*LOGISTIC, "--aggregator", "mean", "--attack", "none", "--lr", "1e38", *SAVE).code
        == 0
    )
    assert read(folder / "results.db", "SELECT status, final_accuracy FROM runs") == [
        ("diverged", evaluated(dynabro, "model.safetensors")["accuracy"])
    ]


def test_from_python() -> None:
    spec = RunSpec(task="quadratic", method="sgd", budget=4, eval_every=2)
    found = [
        event
        for event in simulate(spec, weights="evaluations")
        if isinstance(event, events.Weights)
    ]
    assert [(event.round, event.final) for event in found] == [(0, False), (2, False), (4, True)]
    assert load(found[-1].data)["x"].shape == load(found[0].data)["x"].shape
    assert not [event for event in simulate(spec) if isinstance(event, events.Weights)]
    with pytest.raises(SpecError, match="weights='always' is not legal"):
        simulate(spec, weights="always")  # type: ignore[arg-type]


# --- a run that is stored, killed, or interrupted


@pytest.mark.thorough
def test_a_stored_run_without_its_model_says_how_to_get_it(dynabro: Dynabro, folder: Path) -> None:
    assert dynabro(*LOGISTIC).code == 0
    outcome = dynabro(*LOGISTIC, *SAVE)
    assert (outcome.code, outcome.out) == (66, "")
    (line,) = outcome.problems
    assert line.startswith(
        "save_model=model.safetensors: run 1 is stored in results.db, and its model was not saved"
    )
    assert "--rerun" in line
    assert not (folder / "model.safetensors").exists()
    assert dynabro(*LOGISTIC, *SAVE, "--rerun").code == 0
    content = (folder / "model.safetensors").read_bytes()
    again = dynabro(*LOGISTIC, *SAVE)
    assert again.code == 0
    assert "already in results.db" in again.out
    assert (folder / "model.safetensors").read_bytes() == content
    ((name, size, digest),) = read(
        folder / "results.db", "SELECT model_file, model_size, model_sha256 FROM runs"
    )
    assert (name, size, digest) == (
        "model.safetensors",
        len(content),
        hashlib.sha256(content).hexdigest(),
    )


@pytest.mark.thorough
@pytest.mark.parametrize("change", ["cut", "flipped", "removed"])
def test_a_saved_model_that_has_changed_is_not_said_to_be_saved(
    change: str, dynabro: Dynabro, folder: Path
) -> None:
    assert dynabro(*LOGISTIC, *SAVE).code == 0
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(
        {"cut": content[:-100], "flipped": content[:-1] + bytes([content[-1] ^ 1]), "removed": b""}[
            change
        ]
    )
    if change == "removed":
        path.unlink()
    outcome = dynabro(*LOGISTIC, *SAVE)
    assert (outcome.code, outcome.out) == (66, "")
    (line,) = outcome.problems
    assert line.startswith("save_model=model.safetensors: run 1 is stored in results.db, and ")
    differs = "this file differs from its saved model"
    assert {
        "cut": f"{differs}: {len(content) - 100:,} bytes, not {len(content):,}",
        "flipped": f"{differs}. Try",
    }.get(change, "its model was not saved to this file, or the file was removed") in line
    path.write_bytes(content)
    assert dynabro(*LOGISTIC, *SAVE).code == 0


@pytest.mark.thorough
def test_a_killed_run_resumes_and_saves_the_same_models(dynabro: Dynabro, folder: Path) -> None:
    words = (
        *LOGISTIC,
        *SAVE,
        "--save-at",
        "evaluations",
        "--checkpoint-every",
        "0.01",
        "--threads",
        "1",
    )
    assert dynabro(*words, "--db", "whole.db").code == 0
    whole = models(folder)
    for path in folder.glob("*.safetensors"):
        path.unlink()
    call = [sys.executable, "-m", "dynabro_cli", *words]
    killed = subprocess.run(
        call, env=os.environ | {"DYNABRO_FAILPOINT": "after-model:3=KILL"}, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(list(folder.glob("*.safetensors"))) == 3
    assert dynabro(*words).code == 0
    log = "".join(path.read_text() for path in (folder / "results.db.d" / "logs").iterdir())
    assert "resuming after round" in log
    assert models(folder) == whole


@pytest.mark.thorough
def test_a_full_disk_leaves_a_run_to_resume(dynabro: Dynabro, folder: Path) -> None:
    outcome = dynabro(*LOGISTIC, "--save-model", "/dev/full")
    assert outcome.code == 74
    (line,) = outcome.problems
    assert (
        line
        == "/dev/full cannot be written (No space left on device). Try: make room, or another file"
    )
    assert read(folder / "results.db", "SELECT status FROM runs") == [("interrupted",)]
    assert dynabro(*LOGISTIC, *SAVE).code == 0


# --- files that are there already


@pytest.mark.thorough
def test_only_a_model_of_the_same_run_is_replaced(dynabro: Dynabro, folder: Path) -> None:
    assert dynabro(*LOGISTIC, *SAVE).code == 0
    for content in ((folder / "model.safetensors").read_bytes(), b"precious"):
        (folder / "model.safetensors").write_bytes(content)
        outcome = dynabro(*LOGISTIC, "--seed", "1", *SAVE)
        assert (outcome.code, outcome.out) == (73, "")
        (line,) = outcome.problems
        assert line.startswith(
            "model.safetensors is there already, and is not a model of this run. Try: "
        )
        assert (folder / "model.safetensors").read_bytes() == content
    assert read(folder / "results.db", "SELECT seed FROM runs") == [(0,)], (
        "found out before anything is computed"
    )
    assert dynabro(*LOGISTIC, "--seed", "1", *SAVE, "--force").code == 0
    assert json.loads(about("model.safetensors")["spec"])["seed"] == 1


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["results.db", "there/is/none", "."])
def test_places_that_are_refused_before_anything_runs(
    name: str, dynabro: Dynabro, folder: Path
) -> None:
    assert dynabro(*QUADRATIC).code == 0
    outcome = dynabro(*QUADRATIC, "--seed", "1", "--save-model", name, "--force")
    assert (outcome.code, outcome.out, len(outcome.problems)) == (73, "", 1)
    assert read(folder / "results.db", "SELECT seed FROM runs") == [(0,)]
    assert not list(folder.rglob("*.part"))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("--save-at", "evaluations"),
            "save_at=evaluations is not valid here: it requires --save-model FILE",
        ),
        (
            (*SAVE, "--save-at", "now"),
            "save_at=now is not legal. Try: --save-at end or evaluations",
        ),
    ],
)
def test_options_that_are_refused(
    words: tuple[str, ...], line: str, dynabro: Dynabro, folder: Path
) -> None:
    outcome = dynabro(*LOGISTIC, *words)
    assert (outcome.code, outcome.problems) == (2, [line])
    assert not list(folder.iterdir())


# --- evaluate


@pytest.mark.parametrize("option", ["--save-model", "--switching"])
def test_names_that_are_not_utf_8_are_refused(option: str, dynabro: Dynabro, folder: Path) -> None:
    """Before anything runs: a database stores no others."""
    name = os.fsdecode(b"b\xff.csv")
    (folder / name).write_text("tick,byzantine\n0,1\n")
    outcome = dynabro(
        *QUADRATIC, "--force", option, f"trace:file={name}" if option == "--switching" else name
    )
    assert outcome.code == 2
    assert (
        "Python does not read it as UTF-8, and a database stores nothing else. Try: another name"
        in outcome.problems[0]
    )
    assert (folder / name).read_text() == "tick,byzantine\n0,1\n"


def test_a_model_on_another_task_and_of_another_model(dynabro: Dynabro, folder: Path) -> None:
    assert dynabro(*LOGISTIC, *SAVE).code == 0
    unit = evaluated(dynabro, "model.safetensors", "--task", "digits:inputs=unit")
    assert unit["task"] == "digits:inputs=unit"
    assert unit["accuracy"] != evaluated(dynabro, "model.safetensors")["accuracy"]
    outcome = dynabro("evaluate", "model.safetensors", "--model", "mlp")
    assert outcome.code == 65
    assert outcome.problems[0].startswith(
        "model.safetensors: the tensors do not fit model 'mlp' of task 'digits': "
    )


def strange(name: str, folder: Path) -> None:
    """Write a file that is not a saved model."""
    header = b'{"__metadata__": ' + b"[" * 100_000
    contents = {
        "empty": b"",
        "text": b"precious notes",
        "zeros": bytes(100),
        "long": struct.pack("<Q", 2**60) + b"{}",
        "deep": struct.pack("<Q", len(header)) + header,
        "list": struct.pack("<Q", 2) + b"[]",
        "offsets": struct.pack("<Q", 60)
        + b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}'.ljust(60),
    }
    (folder / name).write_bytes(contents[name])


@pytest.mark.parametrize("name", ["empty", "text", "zeros", "long", "deep", "list", "offsets"])
def test_files_that_are_not_models(name: str, dynabro: Dynabro, folder: Path) -> None:
    strange(name, folder)
    outcome = dynabro("evaluate", name)
    assert (outcome.code, outcome.out) == (65, "")
    (line,) = outcome.problems
    assert line.startswith(f"{name}: not a safetensors file (")


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [torch.int32, torch.uint8, torch.bool])
def test_numbers_of_another_kind_are_not_weights(
    kind: torch.dtype, dynabro: Dynabro, folder: Path
) -> None:
    assert dynabro(*LOGISTIC, *SAVE).code == 0
    tensors, told = load_file("model.safetensors"), about("model.safetensors")
    whole = {
        name: tensor.view(torch.int32) if kind == torch.int32 else tensor.to(kind)
        for name, tensor in tensors.items()
    }
    save_file(whole, "other.safetensors", told)
    outcome = dynabro("evaluate", "other.safetensors")
    assert (outcome.code, outcome.out) == (65, "")
    assert (
        f"has numbers of type {str(kind).removeprefix('torch.')}, not float32"
        in outcome.problems[0]
    )
    save_file(
        {name: tensor.double() for name, tensor in tensors.items()}, "double.safetensors", told
    )
    assert (
        evaluated(dynabro, "double.safetensors")["accuracy"]
        == evaluated(dynabro, "model.safetensors")["accuracy"]
    )


def test_a_spec_that_is_nested_without_end(dynabro: Dynabro, folder: Path) -> None:
    assert dynabro(*LOGISTIC, *SAVE).code == 0
    save_file(load_file("model.safetensors"), "deep.safetensors", {"spec": "[" * 100_000})
    outcome = dynabro("evaluate", "deep.safetensors")
    assert (outcome.code, len(outcome.problems)) == (2, 1)


def test_a_file_that_names_no_run_needs_a_task(dynabro: Dynabro, folder: Path) -> None:
    assert dynabro(*LOGISTIC, *SAVE).code == 0
    save_file(load_file("model.safetensors"), "plain.safetensors", {"spec": "[1"})
    outcome = dynabro("evaluate", "plain.safetensors")
    assert outcome.code == 2
    assert outcome.problems == [
        "plain.safetensors: task: the file does not name a task. Try: --task NAME --model NAME"
    ]
    found = evaluated(dynabro, "plain.safetensors", "--task", "digits", "--model", "logistic")
    assert (found["accuracy"], found["run"]) == (
        evaluated(dynabro, "model.safetensors")["accuracy"],
        None,
    )


def test_a_file_that_is_larger_than_the_memory(
    dynabro: Dynabro, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes and its tensors must fit."""
    monkeypatch.setattr(host_memory, "free_host_memory", lambda: 1999)
    (folder / "large").write_bytes(bytes(1000))
    outcome = dynabro("evaluate", "large", "--task", "digits", "--model", "logistic")
    assert (outcome.code, outcome.problems) == (65, ["large is larger than the memory"])


def test_a_file_that_cannot_be_read(dynabro: Dynabro, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    for name in ("missing", ".", "pipe"):
        outcome = dynabro("evaluate", name)
        assert (outcome.code, outcome.out, len(outcome.problems)) == (66, "", 1), name


# --- the runs of a sweep

SWEEP = """
name: saved
base: {task: quadratic, method: sgd, attack: "shift:lambda=1", budget: 20}
grid: {aggregator: [cwmed, mean]}
"""


@pytest.mark.thorough
def test_every_run_of_a_sweep_has_a_file(dynabro: Dynabro, folder: Path) -> None:
    (folder / "saved.yaml").write_text(SWEEP)
    words = ("sweep", "saved.yaml", "--jobs", "2", "--quiet")
    assert dynabro(*words, "--set", "aggregator=cwmed").code == 0
    (folder / "file").touch()
    outcome = dynabro(*words, "--save-models", "file")
    assert (outcome.code, len(outcome.problems)) == (73, 1)
    outcome = dynabro(*words, "--save-models", "models")
    assert outcome.code == 0
    rows = read(
        folder / "results.db", "SELECT run_key, final_gap FROM runs ORDER BY aggregator = 'mean'"
    )
    assert outcome.problems == [
        f"models/{rows[0][0]}.safetensors: its model was not saved",
        "warning: 1 of 2 runs have no model in models; --rerun repeats runs",
    ]
    assert [path.name for path in (folder / "models").iterdir()] == [f"{rows[1][0]}.safetensors"]
    assert dynabro(*words, "--save-models", "models", "--rerun").problems == []
    assert sorted(path.name for path in (folder / "models").iterdir()) == sorted(
        f"{key}.safetensors" for key, _ in rows
    )
    for key, gap in rows:
        assert evaluated(dynabro, f"models/{key}.safetensors")["gap"] == gap
    assert dynabro(*words, "--save-models", "models").problems == []
    cut = folder / "models" / f"{rows[1][0]}.safetensors"
    os.truncate(cut, 10)
    assert (
        dynabro(*words, "--save-models", "models")
        .problems[0]
        .startswith(f"models/{cut.name}: this file differs")
    )
