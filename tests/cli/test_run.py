"""``dynabro run``."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from dynabro_cli.core import events
from dynabro_cli.core.machine import checkout
from dynabro_cli.core.registration import digests
from dynabro_cli.runs.screen.progress import RunsProgress
from dynabro_cli.runs.store.environments import VERSIONS
from dynabro_cli.runs.store.open import engine as engine_module
from dynabro_cli.runs.store.tables import metadata
from dynabro_cli.simulation import setup
from tests.cli.conftest import Dynabro, Outcome
from tests.runs.store.made import change, read

DIGITS = ("run", "--model", "logistic", "--budget", "40", "--eval-every", "10", "--method", "sgd")
ROOT = Path(__file__).parents[2]
QUADRATIC = ("run", "--task", "quadratic", "--method", "sgd", "--budget", "20", "--quiet")


# --- what it prints and stores


def test_the_result_on_standard_output_and_progress_on_standard_error(
    dynabro: Dynabro, folder: Path
) -> None:
    outcome = dynabro(*DIGITS)
    assert outcome.code == 0
    (accuracy,) = read(folder / "results.db", "SELECT final_accuracy FROM runs")[0]
    what, result, where = outcome.out.splitlines()
    assert what == "digits: sgd, cwtm, sf, periodic:K=10, seed 0"
    assert result.startswith(
        f"finished: test accuracy {accuracy:.4f} after 40 rounds and 40 gradient computations "
        "per worker (3 "
    )
    assert where == "run 1, stored in results.db"
    first, *lines = outcome.err.splitlines()
    assert first.startswith(
        "digits, sgd, cwtm, sf, periodic:K=10, seed 0, model=logistic, budget=40, "
    )
    assert [line.split(":")[0] for line in lines] == ["0/40", "10/40", "20/40", "30/40", "40/40"]
    assert all(re.search(r": accuracy 0\.\d{4}, .*samples/s", line) for line in lines)


def test_json_is_the_stored_run(dynabro: Dynabro, folder: Path) -> None:
    outcome = dynabro(*DIGITS, "--json")
    assert outcome.code == 0
    names = [*(column.name for column in metadata.tables["runs"].columns), "versions"]
    (stored,) = read(folder / "results.db", f"SELECT *, {VERSIONS} FROM runs")
    assert json.loads(outcome.out) == dict(zip(names, stored, strict=True))


def test_quiet_is_silent(dynabro: Dynabro) -> None:
    outcome = dynabro(*DIGITS, "--quiet")
    assert (outcome.code, outcome.err) == (0, "")
    assert "finished" in outcome.out


def test_an_objective_reports_its_gap(dynabro: Dynabro, folder: Path) -> None:
    outcome = dynabro(*QUADRATIC)
    (gap,) = read(folder / "results.db", "SELECT final_gap FROM runs")[0]
    assert f"finished: gap {gap:.4g} after 20 rounds" in outcome.out
    assert read(folder / "results.db", "SELECT final_accuracy, model FROM runs") == [(None, None)]


@pytest.mark.parametrize(
    ("option", "most"),
    [
        ("--eval-every", 2**31 - 1),
        ("--budget", 2_000_000_000),
        ("--batch-size", 2**31 - 1),
        ("--byzantine", 2**31 - 1),
    ],
)
def test_a_number_that_no_column_holds_is_refused(
    option: str, most: int, dynabro: Dynabro, folder: Path
) -> None:
    for value in (str(most + 1), "3e9", "1e12"):
        outcome = dynabro("run", "--task", "quadratic", option, value)
        assert (outcome.code, outcome.out) == (2, "")
        assert f"<= {most}" in outcome.err
        assert not (folder / "results.db").exists()


def test_the_largest_number_that_a_column_holds_is_stored(dynabro: Dynabro) -> None:
    assert dynabro(*QUADRATIC, "--eval-every", str(2**31 - 1)).code == 0
    assert json.loads(dynabro("show", "runs/1", "--json").out)["eval_every"] == 2**31 - 1
    assert dynabro("db", "check").code == 0


def test_a_run_that_diverges_is_a_result(dynabro: Dynabro, folder: Path) -> None:
    outcome = dynabro(
        *DIGITS, "--aggregator", "mean", "--attack", "none", "--lr", "1e38", "--quiet"
    )
    assert outcome.code == 0
    assert "\ndiverged: test accuracy 0." in outcome.out
    assert read(folder / "results.db", "SELECT status FROM runs") == [("diverged",)]
    assert (
        "already in results.db"
        in dynabro(
            *DIGITS, "--aggregator", "mean", "--attack", "none", "--lr", "1e38", "--quiet"
        ).out
    )


def test_every_option_reaches_the_database(dynabro: Dynabro, folder: Path) -> None:
    options = {
        "--task": "digits",
        "--model": "logistic",
        "--method": "momentum:beta=0.5",
        "--aggregator": "cwtm:f=2",
        "--attack": "ipm:epsilon=0.5",
        "--attack-entry": "message",
        "--switching": "periodic:K=3",
        "--clock": "computation",
        "--workers": "11",
        "--byzantine": "4",
        "--budget": "12",
        "--batch-size": "7",
        "--lr": "0.125",
        "--lr-rule": "fixed",
        "--lr-drop": "0.25:0.5",
        "--weight-decay": "0.001",
        "--eval-every": "6",
        "--seed": "1234",
        "--precision": "bf16",
        "--participation": "0.75",
        "--data": "gamma:similarity=0.5",
        "--validation": "0.25",
    }
    outcome = dynabro(
        "run", *itertools.chain(*options.items()), "--pre", "nnm", "--pre", "nnm:f=3", "--json"
    )
    row = json.loads(outcome.out)
    fields = {
        name.lstrip("-").replace("-", "_").replace("lr", "learning_rate", name == "--lr"): value
        for name, value in options.items()
    }
    assert {name: str(row[name]) for name in fields} == fields
    assert row["pre_aggregators"] == "nnm+nnm:f=3"


@pytest.mark.thorough
def test_precision_and_compile_are_stored_and_shown(dynabro: Dynabro, folder: Path) -> None:
    commands: list[tuple[str, ...]] = [
        (),
        ("--compile", "off"),
        ("--precision", "bf16"),
        ("--precision", "fp32"),
    ]
    ids = [
        json.loads(dynabro(*DIGITS, *options, "--json", "--quiet").out)["id"]
        for options in commands
    ]
    assert ids == [1, 1, 2, 1]  # compile does not make another run, but precision does
    assert read(folder / "results.db", "SELECT precision FROM runs") == [("fp32",), ("bf16",)]
    assert [run["precision"] for run in json.loads(dynabro("runs", "--json").out)] == [
        "fp32",
        "bf16",
    ]
    assert (
        json.loads(dynabro("show", "runs/2", "--json").out)["versions"]["compile"]
        == "off: too little work"
    )
    for what in ("curves", "final", "rounds"):
        header, *rows = [
            line.split(",") for line in dynabro("export", what, "--csv", "-").out.splitlines()
        ]
        assert {row[header.index("precision")] for row in rows} == {"fp32", "bf16"}


@pytest.mark.thorough
def test_compile_reaches_the_simulation(dynabro: Dynabro, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    real = setup.simulate_run

    def simulate(*arguments: Any, **options: Any) -> Iterator[events.Event]:
        given.append(options["compile"])
        return real(*arguments, **options)

    monkeypatch.setattr(setup, "simulate_run", simulate)
    for options in ((), ("--compile", "off"), ("--compile", "auto")):
        assert dynabro(*QUADRATIC, "--rerun", *options).code == 0
    assert given == ["auto", "off", "auto"]
    # as it is for any objective
    assert json.loads(dynabro("show", "runs/1", "--json").out)["versions"]["compile"] == "off"


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["script", "module"])
def test_files_of_the_working_folder_do_not_run(way: str, folder: Path) -> None:
    """Nor in worker processes. ``python -m`` imports some modules before it gives the word to the
    program.
    """
    program = folder / "bin" / "dynabro"
    program.parent.mkdir()
    program.write_text("from dynabro_cli.cli.app import main\nmain()\n")
    command = {
        "script": [sys.executable, str(program)],
        "module": [sys.executable, "-m", "dynabro_cli"],
    }[way]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    names = sys.stdlib_module_names | {"numpy", "torch", "sqlalchemy", "yaml"}
    if way == "module":
        early = [sys.executable, "-c", "import runpy, sys; print(*sys.modules)"]
        names -= set(
            subprocess.run(
                early, env=environment, capture_output=True, text=True, check=True
            ).stdout.split()
        )
    assert {"enum", "signal", "select", "socket", "pickle"} < names
    for name in names:
        (folder / f"{name}.py").write_text(f"raise SystemExit('{name}.py has run')\n")
    ended = subprocess.run(
        [*command, *QUADRATIC],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.thorough
def test_a_compiled_run_ends_in_silence(folder: Path) -> None:
    """Python has no semaphore of a killed worker to warn of."""
    command = [
        sys.executable,
        "-m",
        "dynabro_cli",
        *DIGITS,
        "--device",
        "cpu",
        "--compile",
        "on",
        "--quiet",
    ]
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert read(
        folder / "results.db",
        "SELECT json_extract(versions, '$.compile') LIKE 'on%' FROM environments",
    ) == [(1,)]


@pytest.mark.parametrize("model", ["mlp", "cnn-digits", "logistic"])
@pytest.mark.parametrize("cxx", [None, "nosuch-c++"])
def test_compiling_without_a_compiler(
    model: str, cxx: str | None, dynabro: Dynabro, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A convolution needs it before the run's other functions are compiled."""
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    if cxx is not None:
        monkeypatch.setenv("CXX", cxx)
    outcome = dynabro(*DIGITS[:2], model, *DIGITS[3:], "--compile", "on", "--device", "cpu")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.problems == [
        "compile=on needs a C++ compiler, which was not found. Try: install it, or --compile off"
    ]
    assert read(folder / "results.db", "SELECT COUNT(*) FROM runs") == [(0,)]


@pytest.mark.thorough
def test_large_seeds_are_kept_apart(dynabro: Dynabro, folder: Path) -> None:
    seeds = [2**53 + 1, 2**53, 2**63 - 1]  # a double has no room for the first and the last
    for seed in seeds:
        assert dynabro(*QUADRATIC, "--seed", str(seed)).code == 0
    assert read(folder / "results.db", "SELECT seed FROM runs ORDER BY id") == [
        (seed,) for seed in seeds
    ]


@pytest.mark.thorough
def test_a_pre_aggregator_changes_the_numbers(dynabro: Dynabro, folder: Path) -> None:
    assert dynabro(*DIGITS, "--quiet").code == 0
    assert dynabro(*DIGITS, "--pre", "nnm", "--quiet").code == 0
    (plain, mixed) = read(
        folder / "results.db", "SELECT pre_aggregators, final_loss FROM runs ORDER BY id"
    )
    assert (plain[0], mixed[0]) == ("none", "nnm")
    assert plain[1] != mixed[1]


def test_a_chain_is_joined_or_repeated(dynabro: Dynabro, folder: Path) -> None:
    """Options of both names give the same run."""
    name, parts = "nnm+clipping:c=2+bucketing:s=1", ("nnm", "clipping:c=2", "bucketing:s=1")
    for given in (
        ("--pre", name),
        ("--pre-aggregators", name),
        [word for part in parts for word in ("--pre", part)],
    ):
        assert dynabro(*QUADRATIC, *given).code == 0
    assert read(folder / "results.db", "SELECT pre_aggregators FROM runs") == [(name,)]


def test_a_chain_that_leaves_too_few_messages_is_refused(dynabro: Dynabro) -> None:
    outcome = dynabro(
        *DIGITS, "--workers", "17", "--byzantine", "4", "--pre", "nnm", "--pre", "bucketing:s=3"
    )
    assert (outcome.code, outcome.out) == (2, "")
    assert (
        "s=3 makes 6 messages of 17, and f=4 Byzantine workers could be in half of them. Try: "
        "'bucketing:s=2'" in outcome.err
    )


def test_the_number_of_threads_is_set(dynabro: Dynabro, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    assert dynabro(*QUADRATIC, "--threads", "2").code == 0
    assert asked == [2]


@pytest.mark.thorough
def test_the_commit_of_the_folder_is_noted(
    dynabro: Dynabro, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(code: int, text: str) -> Callable[..., Any]:
        return lambda *_, **__: subprocess.CompletedProcess([], code, text.encode(), b"")

    def no_git(*_: object, **__: object) -> None:
        raise FileNotFoundError("git")

    expected = []
    for seed, (run, commit) in enumerate(
        [(answer(0, "a" * 40 + "\n"), "a" * 40), (answer(128, "HEAD\n"), None), (no_git, None)]
    ):
        monkeypatch.setattr(checkout.subprocess, "run", run)
        assert dynabro(*QUADRATIC, "--seed", str(seed)).code == 0
        expected.append((commit,))
    assert read(folder / "results.db", "SELECT git_commit FROM runs ORDER BY seed") == expected


# --- where


def test_the_database_is_named_by_the_option_or_the_environment(
    dynabro: Dynabro, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNABRO_DB", "from environment.db")
    assert "stored in from environment.db" in dynabro(*QUADRATIC).out
    assert read(folder / "from environment.db", "SELECT COUNT(*) FROM runs") == [(1,)]
    assert "stored in option.db" in dynabro(*QUADRATIC, "--db", "option.db").out
    assert read(folder / "option.db", "SELECT COUNT(*) FROM runs") == [(1,)]
    assert not (folder / "results.db").exists()


# --- where it computes


@pytest.mark.thorough
def test_a_process_of_its_own_and_this_one_store_the_same(dynabro: Dynabro, folder: Path) -> None:
    columns = "rounds, budget_spent, final_accuracy, final_loss, run_key, spec, dimension"
    tables = [f"SELECT {columns} FROM runs", "SELECT * FROM rounds", "SELECT * FROM evaluations"]
    found = []
    for jobs in ("0", "1"):
        words = ("--jobs", jobs, "--threads", "1", "--db", f"{jobs}.db", "--quiet")
        outcome = dynabro(*DIGITS[:-1], "dynabro", *words)
        assert (outcome.code, outcome.err) == (0, "")
        found.append([read(folder / f"{jobs}.db", sql) for sql in tables])
    assert found[0] == found[1]


@pytest.mark.thorough
def test_a_run_that_takes_too_long_fails(dynabro: Dynabro, folder: Path) -> None:
    outcome = dynabro(
        "run",
        "--task",
        "quadratic",
        "--budget",
        "1000000",
        "--timeout",
        "1",
        "--jobs",
        "1",
        "--quiet",
    )
    assert outcome.code == 70
    (line,) = outcome.problems
    assert line.startswith(
        "the run failed (timeout: it took longer than 1 s) and is stored as failed. "
    )
    assert read(folder / "results.db", "SELECT status FROM runs") == [("failed",)]


@pytest.mark.thorough
def test_problems_of_the_process_have_their_exit_codes(dynabro: Dynabro, folder: Path) -> None:
    for words, code, problem in (
        (
            ("--task", "image-folder:name=pets", "--model", "logistic", "--data-dir", "data"),
            66,
            "no images under ",
        ),
        (("--task", "quadratic:dimension=999999999"), 2, "memory: a run here needs "),
    ):
        outcome = dynabro("run", *words, "--budget", "1", "--quiet", "--jobs", "1")
        assert (outcome.code, outcome.out) == (code, "")
        (line,) = outcome.problems
        assert line.startswith(problem)
    assert read(folder / "results.db", "SELECT COUNT(*) FROM runs") == [(0,)]


# --- again


def test_what_is_stored_is_not_run_again(
    dynabro: Dynabro, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = dynabro(*DIGITS)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("it ran")

    monkeypatch.setattr(setup, "simulate_run", never)
    before = read(folder / "results.db", "SELECT * FROM runs")
    second = dynabro(*DIGITS)
    assert (second.code, len(second.err.splitlines())) == (0, 1)  # what was asked for
    assert second.out.splitlines()[:2] == first.out.splitlines()[:2]
    assert second.out.splitlines()[2] == "run 1, already in results.db; --rerun repeats it"
    assert json.loads(dynabro(*DIGITS, "--json").out)["id"] == 1
    assert read(folder / "results.db", "SELECT * FROM runs") == before


@pytest.mark.thorough
def test_other_code_is_told(dynabro: Dynabro, folder: Path) -> None:
    assert dynabro(*QUADRATIC, "--quiet").err == ""
    (text,) = read(folder / "results.db", "SELECT code_digests FROM runs")[0]
    assert {"methods/sgd", "aggregators/cwtm", "engine"} <= set(json.loads(text))
    assert dynabro(*QUADRATIC, "--quiet").err == ""
    other = json.dumps(json.loads(text) | {"aggregators/cwtm": "0" * digests.DIGITS})
    change(folder / "results.db", "UPDATE runs SET code_digests = ?", other)
    outcome = dynabro(*QUADRATIC, "--quiet")
    assert (outcome.code, outcome.problems) == (
        0,
        [
            (
                "warning: stored runs made with other code: 1 of 1 (aggregators/cwtm: 1); --rerun "
                "repeats it"
            )
        ],
    )
    assert json.loads(dynabro("show", "runs/1", "--json").out)["code_digests"] == json.loads(other)
    assert dynabro(*QUADRATIC, "--quiet", "--rerun").err == ""
    assert read(folder / "results.db", "SELECT code_digests FROM runs") == [(text,)]


@pytest.mark.thorough
def test_other_data_are_told(
    dynabro: Dynabro, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is overwritten: the stored run, its repetition, its copy in another database, and
    without the file.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    x, y = np.random.default_rng(0).standard_normal((60, 4)), np.arange(60) % 2
    command = ("run", "--task", "npz:file=d.npz", "--method", "sgd", "--budget", "20", "--quiet")
    np.savez("d.npz", X=x, y=y)
    assert dynabro(*command).err == dynabro(*command).err == ""
    shutil.copy("results.db", "old.db")
    np.savez("d.npz", X=x, y=y[::-1])
    warning = "warning: stored runs made with other data: 1 of 1 (npz:file=d.npz: 1)"
    assert dynabro(*command).problems == [f"{warning}; --rerun repeats it"]
    assert dynabro("runs").problems == [warning]
    assert dynabro(*command, "--rerun").err == dynabro(*command).err == dynabro("runs").err == ""
    mixed = (
        "warning: these runs were made with 2 versions of the data of npz:file=d.npz, "
        "which no mean or comparison should mix"
    )
    for dry in ((), ("--dry-run",)):
        assert dynabro("db", "merge", "old.db", *dry).problems[-1] == mixed
    change(
        folder / "results.db",
        'UPDATE runs SET code_digests = \'{"data/npz:file=d.npz":"000000000000"}\'',
    )
    Path("d.npz").unlink()
    assert (dynabro(*command).err, dynabro("runs").err) == ("", "")


def test_one_run_has_many_spellings(dynabro: Dynabro, folder: Path) -> None:
    spellings = [
        (),
        ("--method", "sgd", "--seed", "0", "--clock", "round", "--batch-size", "1"),
        ("--lr", "5e-3", "--budget", "2e1"),
        (
            "--lr",
            "0.0050",
            "--aggregator",
            "cwtm",
            "--pre",
            "none",
            "--switching",
            "periodic:K=10",
            "--weight-decay",
            "0",
        ),
        (
            "--task",
            "quadratic:sigma=0.5,dimension=2",
            "--workers",
            "3",
            "--byzantine",
            "1",
            "--threads",
            "1",
        ),
        ("--method", "SGD", "--aggregator", "TrMean", "--attack", "sign_flip"),
    ]
    usual = {"--task": "quadratic", "--method": "sgd", "--budget": "20"}
    for spelling in spellings:
        given = usual | dict(zip(spelling[::2], spelling[1::2], strict=True))
        assert dynabro("run", *itertools.chain(*given.items())).code == 0
    assert read(folder / "results.db", "SELECT COUNT(*) FROM runs") == [(1,)]


@pytest.mark.thorough
def test_a_repetition_gives_the_same_numbers(dynabro: Dynabro, folder: Path) -> None:
    path = folder / "results.db"
    tables = [
        "SELECT * FROM rounds",
        "SELECT * FROM evaluations",
        "SELECT final_accuracy, final_loss, run_key FROM runs",
    ]
    command = (*DIGITS[:-1], "dynabro", "--quiet")
    dynabro(*command)
    # made recognisable, so that a repetition that does nothing is seen; and ids are equal, as a new
    # run takes the next one
    change(path, "UPDATE runs SET sweep = 'first'")
    first = [read(path, sql.replace("*", _without_run(path, sql))) for sql in tables]
    outcome = dynabro(*command, "--rerun")
    assert outcome.code == 0
    assert "stored in results.db" in outcome.out
    assert [read(path, sql.replace("*", _without_run(path, sql))) for sql in tables] == first
    assert read(path, "SELECT sweep FROM runs") == [(None,)]


def _without_run(path: Path, sql: str) -> str:
    """The columns of the table that ``sql`` reads, except the run's id."""
    columns = read(
        path, "SELECT name FROM pragma_table_info(?) WHERE name <> 'run_id'", sql.split()[-1]
    )
    return ", ".join(name for (name,) in columns)


# --- what is wrong with it

REFUSED: list[tuple[str, list[str]]] = [
    ("--aggregator cwmt", ["unknown aggregator 'cwmt' (did you mean 'cwtm'?); legal: bulyan, "]),
    ("--task mnits", ["unknown task 'mnits' (did you mean 'mnist'?); legal: "]),
    ("--pre nmm", ["'nmm' (did you mean 'nnm'?)"]),
    (
        "--method momentum:bta=0.9",
        ["has no parameter 'bta' (did you mean 'beta'?); legal: beta, form"],
    ),
    ("--method momentum:beta=1", ["method 'momentum': beta=1 is not legal"]),
    ("--method momentum:beta", ["'beta' is not of the form key=value"]),
    ("--method momentum:beta=0.9,beta=0.9", ["beta is given twice"]),
    ("--switching bernoulli:p=0.1,D=3,delta_max=1.5", ["delta_max=1.5 is not legal"]),
    ("--switching periodic", ["needs K="]),
    (
        "--workers 4 --byzantine 2",
        ["byzantine=2 of workers=4 is not legal: 2f < m must hold, so f is at most 1"],
    ),
    ("--batch-size 1438", ["batch_size=1438 is larger than the 1437 training samples of 'digits'"]),
    ("--workers 0", ["workers=0 is not legal"]),
    ("--budget many", ["budget=many is not legal"]),
    ("--lr nan", ["learning_rate=nan is not legal"]),
    ("--lr-drop 2:0.1", ["lr_drop=2:0.1 is not legal"]),
    ("--clock hour", ["clock=hour is not legal"]),
    (
        "--data dirichlet",
        ["partition 'dirichlet' needs alpha=. Try: 'dirichlet:alpha=VALUE' (a number > 0)"],
    ),
    (
        "--data dirichlt",
        [
            (
                "unknown partition 'dirichlt' (did you mean 'dirichlet'?); legal: dirichlet, "
                "gamma, iid, sorted"
            )
        ],
    ),
    (
        "--task quadratic --data sorted --validation 0.1",
        [
            "task 'quadratic' has no samples to share out, and data=sorted. Try: --data iid",
            "task 'quadratic' has no samples to hold out, and validation=0.1. Try: --validation 0",
        ],
    ),
    (
        "--validation 0.999",
        [
            (
                "batch_size=16 is larger than the 1 training samples of 'digits' that "
                "validation=0.999 leaves. Try: --batch-size 1"
            )
        ],
    ),
    (
        "--workers 2000 --data sorted",
        ["data=sorted cannot share 1437 training samples among workers=2000. Try: fewer --workers"],
    ),
    (
        "--task quadratic --precision bf16",
        [
            (
                "task 'quadratic' is computed in double precision, and precision=bf16. Try: "
                "--precision fp32"
            )
        ],
    ),
    (
        "--precision tf32 --device cpu",
        [
            (
                "precision=tf32 is not legal on device cpu: only CUDA GPUs have TensorFloat-32. "
                "Try: --precision fp32 or bf16"
            )
        ],
    ),
    ("--compile maybe", ["compile=maybe is not legal. Try: --compile with auto or on or off"]),
    (
        "--task quadratic --model mlp",
        ["task 'quadratic' has no model, and model=mlp. Try: no --model"],
    ),
    ("--device cuda:7", ["device=cuda:7 is not here; legal on this machine: auto, cpu"]),
    ("--threads 0", ["--threads"]),
    ("--threads some", ["--threads"]),
    ("--agregator cwtm", ["--agregator"]),
    ("--budget", ["--budget"]),
    ("digits", ["digits"]),
    (
        (
            "--aggregator foo --method momentum:bta=1,beta=2 --attack ipm:e=1 --switching periodic "
            "--pre nope --workers 0 --lr -1"
        ),
        [
            "workers=0 is not legal",
            "learning_rate=-1 is not legal",
            "no parameter 'bta'",
            "beta=2 is not legal",
            "no parameter 'e'",
            "needs K=",
            "'nope'",
            "unknown aggregator 'foo'",
        ],
    ),
    (
        "--workers 4 --byzantine 2 --batch-size 2000 --lr-drop x --aggregator foo",
        [
            "2f < m must hold",
            "batch_size=2000 is larger",
            "lr_drop=x is not legal",
            "unknown aggregator 'foo'",
        ],
    ),
]


@pytest.mark.parametrize(("options", "expected"), REFUSED, ids=[options for options, _ in REFUSED])
def test_every_problem_is_a_line_and_nothing_runs(
    options: str,
    expected: list[str],
    dynabro: Dynabro,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcome = dynabro("run", "--db", "new.db", *options.split())
    assert outcome.code == 2
    assert outcome.out == ""
    assert len(outcome.problems) == len(expected)
    for fragment in expected:
        assert any(fragment in line for line in outcome.problems), (fragment, outcome.err)
    if "--device" not in options:
        assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("database", "code", "problem"),
    [
        ("notes.txt", 65, "notes.txt is not a dynabro database. Try: another --db"),
        (".", 65, "is a folder"),
        ("missing/results.db", 73, "Try: mkdir -p missing"),
        ("/proc/results.db", 73, "/proc/results.db cannot be created"),
        ("sqlite://", 65, "names no file"),
        ("nosuch://host/results", 65, "its driver is not installed"),
    ],
)
def test_a_database_that_cannot_be(
    database: str, code: int, problem: str, dynabro: Dynabro, folder: Path
) -> None:
    (folder / "notes.txt").write_text("not a database\n")
    outcome = dynabro(*QUADRATIC, "--db", database)
    assert (outcome.code, outcome.out) == (code, "")
    (line,) = outcome.problems
    assert problem in line
    assert (folder / "notes.txt").read_text() == "not a database\n"


def test_data_that_cannot_be_had(
    dynabro: Dynabro, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchvision.datasets import MNIST

    def unreachable(_: object) -> None:
        raise RuntimeError(
            "Error downloading train-images-idx3-ubyte.gz:\nTried http://..., got:\nName or "
            "service not known"
        )

    monkeypatch.setattr(MNIST, "download", unreachable)
    monkeypatch.setenv("DYNABRO_DATA", "from environment")
    for data, options in (("from environment", ()), ("option", ("--data-dir", "option"))):
        outcome = dynabro("run", "--task", "mnist", "--budget", "1", *options)
        assert (outcome.code, outcome.out) == (66, "")
        (line,) = outcome.problems
        assert line.startswith(
            f"MNIST was not found under {folder / data} and could not be downloaded (Name or "
            "service not known)"
        )
        assert "--data-dir or DYNABRO_DATA" in line
    assert read(folder / "results.db", "SELECT COUNT(*) FROM runs") == [(0,)]


def test_images_of_ones_own_that_are_not_there(dynabro: Dynabro, folder: Path) -> None:
    outcome = dynabro(
        "run",
        "--task",
        "image-folder:name=pets",
        "--model",
        "logistic",
        "--data-dir",
        "data",
        "--budget",
        "1",
    )
    assert (outcome.code, outcome.out) == (66, "")
    (line,) = outcome.problems
    assert line.startswith(f"no images under {folder / 'data' / 'pets' / 'train'}")


SMALL = ("--method", "sgd", "--workers", "3", "--budget", "6", "--batch-size", "2", "--jobs", "0")


@pytest.mark.thorough
def test_a_data_set_has_one_name_which_may_have_blanks_and_commas(
    dynabro: Dynabro, folder: Path
) -> None:
    names = "a.npz", "./a.npz", f"../{folder.name}/a.npz", ".//a.npz"
    for file in ("a.npz", 'bob\'s "set", 2.npz'):
        np.savez(folder / file, X=np.arange(20.0).reshape(10, 2), y=np.arange(10) % 2)
    for name in names:
        assert dynabro("run", "--task", f"npz:file={name}", *SMALL).code == 0
    assert (
        dynabro(
            "run", "--task", """npz:file="bob's ""set"", 2.npz\"""", *SMALL, "--db", "other.db"
        ).code
        == 0
    )
    assert read(folder / "results.db", "SELECT task FROM runs") == [("npz:file=a.npz",)]
    (task,) = read(folder / "other.db", "SELECT task FROM runs")[0]
    shown = dynabro("show", "1", "--db", "other.db").out
    repeat = next(line for line in shown.splitlines() if line.startswith("repeat: ")).removeprefix(
        "repeat: dynabro "
    )
    assert "run 1, already in other.db" in dynabro(*shlex.split(repeat)).out
    points = yaml.safe_dump([*(f"npz:file={name}" for name in names), task])
    base = "name: s\nbase: {method: sgd, workers: 3, budget: 6, batch_size: 2}"
    (folder / "s.yaml").write_text(f"{base}\ngrid:\n  task:\n{textwrap.indent(points, '    ')}")
    assert dynabro("sweep", "s.yaml", "--jobs", "1").code == 0
    assert read(folder / "results.db", "SELECT task FROM runs ORDER BY id") == [
        ("npz:file=a.npz",),
        (task,),
    ]
    typed = dynabro("compare", f"task={task}", "task=npz:file=./a.npz")
    assert (typed.code, "with 1 pair in a row" in typed.err) == (0, True)


@pytest.mark.parametrize(("label", "code"), [(2_000_000_000, 2), (None, 66)])
def test_bad_data_are_one_line_and_no_run(
    label: int | None, code: int, dynabro: Dynabro, folder: Path
) -> None:
    np.savez(folder / "a.npz", X=np.ones((10, 2)), y=np.full(10, label or 0))
    if label is None:
        (folder / "a.npz").write_bytes((folder / "a.npz").read_bytes()[:-50])
    outcome = dynabro("run", "--task", "npz:file=a.npz", *SMALL)
    assert (outcome.code, len(outcome.problems)) == (code, 1)
    assert read(folder / "results.db", "SELECT COUNT(*) FROM runs") == [(0,)]


@pytest.mark.thorough
def test_classes_without_samples_are_one_line(dynabro: Dynabro, folder: Path) -> None:
    np.savez(folder / "a.npz", X=np.ones((20, 2)), y=np.arange(20) % 2 * 3)
    outcome = dynabro("run", "--task", "npz:file=a.npz", *SMALL)
    assert (
        outcome.err.count("npz:file=a.npz: no training sample has the label 1, 2, of 4 classes")
        == 1
    )
    (folder / "s.yaml").write_text(
        "name: s\nbase: {task: 'npz:file=a.npz', method: sgd, workers: 3, budget: 4, "
        "batch_size: 2}\nseeds: 0..2\n"
    )
    outcome = dynabro("sweep", "s.yaml", "--jobs", "0")
    assert outcome.err.count("no training sample has the label 1, 2, of 4 classes") == 1


def test_a_run_that_another_process_works_on(dynabro: Dynabro, folder: Path) -> None:
    dynabro(*QUADRATIC)
    lately = "strftime('%Y-%m-%d %H:%M:%f', 'now')"
    sql = (
        "UPDATE runs SET status = 'running', host = 'elsewhere', owner = 'elsewhere:1:2:3', "
        f"heartbeat_at = {lately}"
    )
    change(folder / "results.db", sql)
    outcome = dynabro(*QUADRATIC)
    assert (outcome.code, outcome.out) == (75, "")
    (line,) = outcome.problems
    assert "in progress in process" in line
    assert "elsewhere" in line


# --- what goes wrong in it


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def bang() -> None:
    raise ValueError("bang")


def broken_off(fault: Callable[[], None], after: int) -> Callable[..., Iterator[events.Event]]:
    """A simulation that goes wrong in place of its event number ``after``."""
    real = setup.simulate_run

    def simulate(*arguments: Any, **options: Any) -> Iterator[events.Event]:
        yield from itertools.islice(real(*arguments, **options), after)
        fault()

    return simulate


def check_interrupted(
    outcome: Outcome, dynabro: Dynabro, path: Path, rounds: int, evaluations: int
) -> None:
    """The run is kept as interrupted, and the same command completes it."""
    assert (outcome.code, outcome.out) == (130, "")
    assert outcome.problems == [
        "interrupted; runs stored as interrupted: 1; the same command resumes from here"
    ]
    assert read(path, "SELECT status, rounds, final_accuracy FROM runs") == [
        ("interrupted", rounds, None)
    ]
    assert read(path, "SELECT COUNT(*) FROM rounds") == [(rounds,)]
    assert read(path, "SELECT COUNT(*) FROM evaluations") == [(evaluations,)]
    again = dynabro(*DIGITS, "--quiet")
    assert again.code == 0
    assert "stored in results.db" in again.out
    assert read(path, "SELECT status, rounds FROM runs") == [("finished", 40)]
    assert read(path, "SELECT COUNT(*) FROM rounds") == [(40,)]
    assert read(path, "SELECT COUNT(*) FROM evaluations") == [(5,)]


def test_ctrl_c_in_the_simulation(
    dynabro: Dynabro, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        # the start, an evaluation, ten rounds, an evaluation, six rounds
        patch.setattr(setup, "simulate_run", broken_off(ctrl_c, after=5))
        outcome = dynabro(*DIGITS, "--quiet")
    check_interrupted(outcome, dynabro, folder / "results.db", rounds=16, evaluations=2)


def test_ctrl_c_while_progress_is_shown(
    dynabro: Dynabro, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_self: RunsProgress, _slot: int, _run: object, event: events.Event) -> None:
        if isinstance(event, events.Evaluated) and event.round == 10:
            ctrl_c()

    with monkeypatch.context() as patch:
        patch.setattr(RunsProgress, "event", stop)
        outcome = dynabro(*DIGITS, "--quiet")
    # what was shown, or was about to be, is stored
    check_interrupted(outcome, dynabro, folder / "results.db", rounds=10, evaluations=2)


@pytest.mark.thorough
def test_an_exception_in_the_simulation(
    dynabro: Dynabro, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "results.db"
    with monkeypatch.context() as patch:
        patch.setattr(setup, "simulate_run", broken_off(bang, after=5))
        outcome = dynabro(*DIGITS, "--quiet")
    assert (outcome.code, outcome.out) == (70, "")
    (line,) = outcome.problems
    assert line.startswith(
        "the run failed (ValueError: bang) and is stored as failed. Try: dynabro query "
    )
    ((status, rounds, error),) = read(path, "SELECT status, rounds, error FROM runs")
    assert (status, rounds) == ("failed", 16)
    assert error.startswith("Traceback")
    assert error.endswith("ValueError: bang\n")

    # what the message says to type
    advice = re.search(r'dynabro query "(.*)", which shows where', line)
    assert advice
    assert "ValueError: bang" in dynabro("query", advice[1]).out

    assert dynabro(*DIGITS, "--quiet").code == 0
    assert read(path, "SELECT status, rounds, error FROM runs") == [("finished", 40, None)]


def test_an_exception_of_many_lines_is_told_in_one(
    dynabro: Dynabro, monkeypatch: pytest.MonkeyPatch
) -> None:
    def several_lines() -> None:
        raise RuntimeError("CUDA error: no\nCompile with\n  this\n")

    monkeypatch.setattr(setup, "simulate_run", broken_off(several_lines, after=3))
    outcome = dynabro(*DIGITS, "--quiet")
    assert outcome.code == 70
    assert len(outcome.problems) == 1


@pytest.mark.parametrize(
    ("fault", "code", "message"),
    [(bang, 70, "is stored as failed"), (ctrl_c, 130, "runs stored as interrupted: 0")],
)
def test_what_is_said_to_be_stored_is_stored(
    fault: Callable[[], None],
    code: int,
    message: str,
    dynabro: Dynabro,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before its first event, a run that fails gets a row, but an interrupted run does not."""
    monkeypatch.setattr(setup, "simulate_run", broken_off(fault, after=0))
    outcome = dynabro(*DIGITS, "--quiet")
    assert outcome.code == code
    (line,) = outcome.problems
    assert message in line
    assert read(folder / "results.db", "SELECT status FROM runs") == (
        [("failed",)] if code == 70 else []
    )


def test_what_comes_after_the_end_does_not_undo_it(
    dynabro: Dynabro, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_self: RunsProgress, _slot: int, _run: object, event: events.Event) -> None:
        if isinstance(event, events.Finished):
            ctrl_c()

    monkeypatch.setattr(RunsProgress, "event", stop)
    outcome = dynabro(*DIGITS, "--quiet")
    assert read(folder / "results.db", "SELECT status, rounds FROM runs") == [("finished", 40)]
    assert (outcome.code, "runs stored as interrupted: 0" in outcome.err) == (130, True)


def test_ctrl_c_before_anything_runs(
    dynabro: Dynabro, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_database: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine_module, "open_for_writing", stop)
    outcome = dynabro(*DIGITS)
    assert (outcome.code, outcome.out) == (130, "")
    assert outcome.problems == ["interrupted"]


@pytest.mark.thorough
def test_a_repetition_that_goes_wrong_keeps_the_result(
    dynabro: Dynabro, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "results.db"
    dynabro(*DIGITS, "--quiet")
    before = read(path, "SELECT * FROM runs"), read(path, "SELECT * FROM rounds")
    with monkeypatch.context() as patch:
        patch.setattr(setup, "simulate_run", broken_off(bang, after=5))
        assert dynabro(*DIGITS, "--quiet", "--rerun").code == 70
    assert read(path, "SELECT * FROM runs WHERE id = 1") == before[0]
    assert read(path, "SELECT * FROM rounds WHERE run_id = 1") == before[1]
    assert "already in results.db" in dynabro(*DIGITS, "--quiet").out
    assert dynabro(*DIGITS, "--quiet", "--rerun").code == 0
    assert read(path, "SELECT status, COUNT(*) FROM runs") == [("finished", 1)]


@pytest.mark.parametrize("utf8", [True, False])
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("--db", "ü.db"), marks=pytest.mark.thorough),
        ("--db", "ß/ü.db"),
        pytest.param(("--save-model", "ü.pt"), marks=pytest.mark.thorough),
    ],
)
def test_a_name_that_python_does_not_read_as_utf8(
    words: tuple[str, str], utf8: bool, folder: Path
) -> None:
    """Without a locale, Python may read names as ASCII; the name itself is UTF-8."""
    (folder / "ß").mkdir()
    option, name = words
    command = (*(DIGITS if option == "--save-model" else QUADRATIC), *words)
    environment = os.environ | {
        "LC_ALL": "C",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONUTF8": str(int(utf8)),
    }
    ended = subprocess.run(
        [sys.executable, "-m", "dynabro_cli", *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if utf8:
        assert ended.returncode == 0, ended.stderr
        assert (folder / name).exists()
    else:
        assert ended.returncode in (2, 73)
        line = ended.stderr.splitlines()[-1]
        assert "Python does not read " in line
        assert line.endswith("is UTF-8, PYTHONUTF8=1")
