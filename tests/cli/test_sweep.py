"""``dynabro sweep``."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.registration.digests import DIGITS
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.runs.executors import backends
from dynabro_cli.runs.executors import sweep as executed
from dynabro_cli.runs.executors._api import Listener, Options, Outcome, Status
from dynabro_cli.runs.executors.backend import Places
from dynabro_cli.runs.executors.backends import local
from dynabro_cli.runs.executors.backends.local.pool import Pool
from tests.cli.conftest import Dynabro
from tests.runs.executors.made_runs import children
from tests.runs.store.made import change, read

SMALL = """
name: small
description: Two methods on the quadratic
base: {task: quadratic, budget: 20}
grid: {method: [sgd, momentum]}
seeds: 0..1
"""


@pytest.fixture
def small(folder: Path) -> str:
    (folder / "small.yaml").write_text(SMALL)
    return "small.yaml"


Asked = list[tuple[Sequence[Run], Options]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What the executor is asked for; it does nothing, and tells that every run is finished."""
    calls: Asked = []

    @contextlib.contextmanager
    def opened(options: Options, most: int) -> Iterator[Any]:
        def places_for(runs: Sequence[Run]) -> Places:
            calls.append((runs, options))
            return Places(options, ["cpu"], most, None)  # type: ignore[arg-type]

        yield places_for

    monkeypatch.setattr(backends, "opened", opened)
    monkeypatch.setattr(
        executed,
        "make_all",
        lambda runs, *_, **__: [Outcome(run, "finished", None) for run in runs],
    )
    return calls


def ends_with(monkeypatch: pytest.MonkeyPatch, *ends: tuple[Status, str | None]) -> None:
    """Have the executor tell that runs ended so, in turn."""

    def make_all(
        runs: Sequence[Run], engine: Any, places: Places, listener: Listener, *_: Any, **__: Any
    ) -> list[Outcome]:
        outcomes = [
            Outcome(run, status, message) for run, (status, message) in zip(runs, ends, strict=True)
        ]
        for outcome in outcomes:
            listener.ended(0, outcome)
        return outcomes

    monkeypatch.setattr(executed, "make_all", make_all)
    monkeypatch.setattr(Pool, "start", lambda *_: False)


# --- running


@pytest.mark.parametrize(
    ("jobs", "known", "started"),
    [("1", 4, 1), ("3", 4, 3), ("3", 2, 2), ("9", 9, 4), ("auto", 4, 2)],
)
def test_processes_start_before_the_memory_is_estimated(
    jobs: str,
    known: int,
    started: int,
    dynabro: Dynabro,
    small: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many as will be needed: no more than runs (4), processors, or jobs; two if the number of
    jobs is not known yet.
    """
    order: list[str] = []
    ends_with(monkeypatch, *[("finished", None)] * 4)
    monkeypatch.setattr(local, "cores", lambda: known)
    monkeypatch.setattr(Pool, "start", lambda _self, place: bool(order.append(f"start {place}")))
    monkeypatch.setattr(local, "fitting", lambda _runs, jobs, *_: order.append("estimate") or jobs)
    assert dynabro("sweep", small, "--jobs", jobs).code == 0
    assert order == [*(f"start {place}" for place in range(started)), "estimate"]


def test_no_process_is_left_if_nothing_fits(
    dynabro: Dynabro, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = set(children())  # processes that other tests have left

    def fitting(*_: object) -> int:
        assert len(set(children()) - others) == 1
        raise SpecError("memory: nothing fits")

    monkeypatch.setattr(local, "fitting", fitting)
    outcome = dynabro("sweep", small, "--jobs", "1")
    assert (outcome.code, outcome.err.count("nothing fits")) == (2, 1)
    assert set(children()) <= others


def test_every_run_is_made_and_stored_once(dynabro: Dynabro, small: str, folder: Path) -> None:
    outcome = dynabro("sweep", small, "--jobs", "0", "--threads", "1")
    assert outcome.code == 0, outcome.err
    assert re.fullmatch(r"small: 4 runs in results\.db: 4 finished; took \d.*s\n", outcome.out)
    lines = outcome.err.splitlines()
    assert [line.split(": ")[0] for line in lines] == [f"{number}/4" for number in range(1, 5)]
    assert "1/4: quadratic, sgd, cwtm, sf, periodic:K=10, seed 0: finished: gap " in lines[0]
    sql = "SELECT sweep, status, method, seed FROM runs ORDER BY id"
    rows = [
        ("small", "finished", method, seed) for seed in (0, 1) for method in ("sgd", "momentum")
    ]
    assert read(folder / "results.db", sql) == rows
    again = dynabro("sweep", small, "--jobs", "0", "--quiet")
    assert (again.code, again.err) == (0, "")
    assert again.out.startswith("small: 4 runs in results.db: 4 stored before; took ")
    assert read(folder / "results.db", sql) == rows


@pytest.mark.thorough
def test_a_stored_sweep_is_answered_while_others_write(
    dynabro: Dynabro, small: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dynabro("sweep", small, "--jobs", "0", "--quiet").code == 0
    monkeypatch.setenv("DYNABRO_BUSY_SECONDS", "0.1")
    with closing(sqlite3.connect(folder / "results.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        again = dynabro("sweep", small, "--quiet")
        assert (again.code, again.err) == (0, "")
        assert dynabro("sweep", small, "--set", "seeds=0..2", "--quiet").code == 75


def test_every_option_reaches_the_executor(dynabro: Dynabro, small: str, asked: Asked) -> None:
    given = (
        "--jobs 3 --device cpu --data-dir data --threads 2 --compile off --timeout 1.5 "
        "--max-retries 4 --jobs-per-gpu 5"
    )
    more = "--checkpoint-every 9 --retry-failed --fail-fast --rerun-changed"
    assert dynabro("sweep", small, *given.split(), *more.split()).code == 0
    assert dynabro("sweep", small).code == 0
    expected = Options(
        jobs=3,
        threads=2,
        device="cpu",
        jobs_per_gpu=5,
        data_dir=Path("data"),
        compile="off",
        timeout=1.5,
        max_retries=4,
        retry_failed=True,
        rerun="changed",
        fail_fast=True,
        sweep="small",
        sweep_text=SMALL,
        checkpoint_every=9,
    )
    assert [options for _, options in asked] == [expected, Options(sweep="small", sweep_text=SMALL)]


def test_fields_are_set(dynabro: Dynabro, small: str, asked: Asked) -> None:
    assert (
        dynabro(
            "sweep", small, "--set", "method=dynabro", "--set", "seeds=3..4", "--set", "budget=10"
        ).code
        == 0
    )
    ((runs, _),) = asked
    assert [(run.spec.method, run.spec.seed, run.spec.budget) for run in runs] == [
        ("dynabro", 3, 10),
        ("dynabro", 4, 10),
    ]


def test_a_shipped_sweep_and_one_from_standard_input(
    dynabro: Dynabro, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dynabro("sweep", "demo").code == 0
    monkeypatch.setattr("sys.stdin", io.StringIO(SMALL))
    assert dynabro("sweep", "-").code == 0
    assert [(len(runs), options.sweep) for runs, options in asked] == [(6, "demo"), (4, "small")]


def test_failures_are_a_table_and_an_exit_code(
    dynabro: Dynabro, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_with(
        monkeypatch,
        ("finished", None),
        ("failed", "ValueError: bang\nmore"),
        ("stored", None),
        ("interrupted", None),
    )
    outcome = dynabro("sweep", small)
    assert outcome.code == 3
    first, header, _, *rows = outcome.out.splitlines()
    assert "4 runs in results.db: 1 finished, 1 stored before, 1 failed, 1 not run; took " in first
    assert header.split() == ["run", "status", "why"]
    assert [re.split(r"  +", row) for row in rows] == [
        ["quadratic, momentum, cwtm, sf, periodic:K=10, seed 0", "failed", "ValueError: bang"],
    ]
    *_, told, last = [line for line in outcome.err.splitlines() if "failed" in line]
    assert (
        told
        == "2/4: failed: quadratic, momentum, cwtm, sf, periodic:K=10, seed 0: ValueError: bang"
    )
    assert last == "dynabro: 1 of 4 runs failed; the same command with --retry-failed repeats them"


def test_failures_are_told_apart(
    dynabro: Dynabro, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_with(monkeypatch, ("failed", "a"), ("failed", "b"))
    settings = ("method=sgd", "seeds=0", "learning_rate=1", "learning_rate=0.5")
    outcome = dynabro(
        "sweep", small, *(word for setting in settings for word in ("--set", setting))
    )
    for rate in ("1", "0.5"):
        assert f"seed 0, learning_rate={rate} " in outcome.out
        assert f"seed 0, learning_rate={rate}: " in outcome.err


def test_json(dynabro: Dynabro, small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ends_with(
        monkeypatch, ("diverged", None), ("failed", "a\nb"), ("stored", None), ("stored", None)
    )
    outcome = dynabro("sweep", small, "--json", "--quiet")
    assert outcome.code == 3
    found = json.loads(outcome.out)
    assert (found["sweep"], found["runs"], found["status"]) == (
        "small",
        4,
        {"diverged": 1, "failed": 1, "stored": 2},
    )
    assert found["seconds"] >= 0
    (failure,) = found["failures"]
    assert (failure["status"], failure["why"], len(failure["run_key"])) == ("failed", "a\nb", 64)


# --- foretelling


def test_a_dry_run_does_nothing(
    dynabro: Dynabro, small: str, folder: Path, asked: list[Any]
) -> None:
    outcome = dynabro("sweep", small, "--dry-run")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines() == [
        "small: Two methods on the quadratic",
        "4 runs planned",
        "0 stored in results.db, 4 to do",
        "time: no estimate, because no similar run on the CPU is in results.db",
        "database: about 11 kB more",
    ]
    assert not asked
    assert [item.name for item in folder.iterdir()] == ["small.yaml"]


def test_a_dry_run_tells_what_is_left(dynabro: Dynabro, small: str, folder: Path) -> None:
    text = "exclude: [{method: dynabro}]"
    (folder / small).write_text(
        SMALL.replace("momentum", "momentum, momentum:beta=0.90, dynabro") + text
    )
    assert dynabro("sweep", small, "--set", "seeds=0", "--quiet", "--jobs", "0").code == 0
    change(folder / "results.db", "UPDATE runs SET wall_seconds = 600")
    change(folder / "results.db", "UPDATE runs SET status = 'failed' WHERE method = 'sgd'")
    lines = dynabro("sweep", small, "--dry-run", "--jobs", "0").out.splitlines()
    assert lines[1:4] == [
        "4 runs planned (2 duplicates, 2 excluded)",
        "1 stored in results.db, 1 failed before (--retry-failed repeats them), 2 to do",
        "time: about 20 min, one after another, at the speed of stored runs on the CPU",
    ]
    lines = dynabro("sweep", small, "--dry-run", "--jobs", "2").out.splitlines()
    assert lines[3] == "time: about 10 min with 2 at a time, at the speed of stored runs on the CPU"
    lines = dynabro(
        "sweep",
        small,
        "--dry-run",
        "--jobs=0",
        "--retry-failed",
        "--set",
        "batch_size=1",
        "--set",
        "batch_size=2",
    ).out.splitlines()
    assert lines[2] == "1 stored in results.db, 7 to do"
    assert lines[3].startswith(
        "time: about 30 min for the 3 of them that are similar to stored runs, one after another"
    )
    (folder / small).write_text(SMALL)
    lines = dynabro(
        "sweep", small, "--dry-run", "--set", "seeds=0", "--set", "method=momentum"
    ).out.splitlines()
    assert lines[1:] == ["1 runs planned", "1 stored in results.db, 0 to do"]


def test_a_dry_run_as_json(dynabro: Dynabro, small: str) -> None:
    found = json.loads(dynabro("sweep", small, "--dry-run", "--json", "--jobs", "3").out)
    assert found.pop("bytes") > 0
    assert found == {
        "sweep": "small",
        "duplicates": 0,
        "excluded": 0,
        "planned": 4,
        "stored": 0,
        "failed": 0,
        "to_do": 4,
        "timed": 0,
        "seconds": None,
        "jobs": 3,
        "elapsed": None,
        "devices": {"cpu": 4},
        "code": {
            "runs": 0,
            "changed": 0,
            "components": {},
            "engine": 0,
            "unknown": 0,
            "changed_data": 0,
            "data": {},
            "versions": {},
        },
        "goes_on": False,
    }


OTHER = json.dumps({"methods/sgd": "0" * DIGITS, "engine": "0" * DIGITS})
CHANGED = (
    "warning: stored runs made with other code: 2 of 4 (methods/sgd: 2); with another "
    "version of the engine: 2 of 4"
)


@pytest.mark.thorough
def test_runs_of_other_code_are_told_and_run_again(
    dynabro: Dynabro, small: str, folder: Path
) -> None:
    assert dynabro("sweep", small, "--quiet", "--jobs", "0").err == ""
    assert dynabro("sweep", small, "--quiet").err == ""
    change(folder / "results.db", "UPDATE runs SET code_digests = ? WHERE method = 'sgd'", OTHER)
    change(
        folder / "results.db",
        "UPDATE runs SET code_digests = NULL WHERE method <> 'sgd' AND seed = 0",
    )
    for dry in ((), ("--dry-run",), ("--dry-run", "--json")):
        outcome = dynabro("sweep", small, "--quiet", *dry)
        assert outcome.code == 0
        assert outcome.problems == [f"{CHANGED}; --rerun-changed repeats these runs"]
    told = {
        "runs": 4,
        "changed": 2,
        "components": {"methods/sgd": 2},
        "engine": 2,
        "unknown": 1,
        "changed_data": 0,
        "data": {},
        "versions": {},
    }
    assert json.loads(outcome.out)["code"] == told
    outcome = dynabro("sweep", small, "--dry-run", "--rerun-changed")
    assert outcome.problems == [
        f"{CHANGED}; these runs are repeated",
        "stored runs of which the code is not known: 1 of 4; --rerun repeats these, too",
    ]
    assert "2 stored in results.db, 2 to do" in outcome.out
    assert dynabro("runs").problems == [CHANGED]
    assert dynabro("runs", "--where", "method <> 'sgd'").problems == []
    assert dynabro("plot", "final", "--where", "method = 'sgd'").problems == [
        (
            "warning: stored runs made with other code: 2 of 2 (methods/sgd: 2); with another "
            "version of the engine: 2 of 2"
        )
    ]
    outcome = dynabro("sweep", small, "--quiet", "--rerun-changed", "--jobs", "0")
    assert "4 runs in results.db: 2 finished, 2 stored before" in outcome.out
    assert dynabro("runs").problems == []
    assert read(folder / "results.db", "SELECT COUNT(*) FROM runs WHERE code_digests IS NULL") == [
        (1,)
    ]


@pytest.mark.thorough
def test_runs_of_other_data_are_run_again(dynabro: Dynabro, small: str, folder: Path) -> None:
    assert dynabro("sweep", small, "--quiet", "--jobs", "0").err == ""
    change(
        folder / "results.db",
        'UPDATE runs SET code_digests = \'{"data/digits":"000000000000"}\' WHERE seed = 1',
    )
    warning = "warning: stored runs made with other data: 2 of 4 (digits: 2)"
    assert dynabro("sweep", small, "--dry-run").problems == [
        f"{warning}; --rerun-changed repeats these runs"
    ]
    outcome = dynabro("sweep", small, "--quiet", "--rerun-changed", "--jobs", "0")
    assert outcome.problems == [f"{warning}; these runs are repeated"]
    assert "4 runs in results.db: 2 finished, 2 stored before" in outcome.out


@pytest.mark.thorough
def test_everything_is_run_again(dynabro: Dynabro, small: str, folder: Path) -> None:
    assert dynabro("sweep", small, "--quiet", "--jobs", "0").code == 0
    assert "0 stored in results.db, 4 to do" in dynabro("sweep", small, "--dry-run", "--rerun").out
    change(folder / "results.db", "UPDATE sweeps SET rerun_after = 2")
    outcome = dynabro("sweep", small, "--dry-run", "--rerun")
    assert "2 stored in results.db, 2 to do" in outcome.out
    assert outcome.problems == [
        "an interrupted rerun is continued: its finished runs are not repeated"
    ]
    outcome = dynabro("sweep", small, "--quiet", "--rerun", "--jobs", "0")
    assert outcome.problems == [
        "an interrupted rerun is continued: its finished runs are not repeated"
    ]
    assert "4 runs in results.db: 2 finished, 2 stored before" in outcome.out
    assert read(
        folder / "results.db", "SELECT rerun_after FROM sweeps ORDER BY id DESC LIMIT 1"
    ) == [(None,)]
    outcome = dynabro("sweep", small, "--rerun", "--rerun-changed")
    assert (outcome.code, outcome.problems) == (
        2,
        ["--rerun and --rerun-changed exclude each other. Try: one of them"],
    )


def test_a_dry_run_takes_the_usual_number_of_jobs(
    dynabro: Dynabro, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dynabro_cli.runs.executors.placement.cores", lambda: 2)
    assert (
        json.loads(dynabro("sweep", small, "--dry-run", "--json", "--device", "cpu").out)["jobs"]
        == 2
    )


def test_a_dry_run_names_the_device_and_takes_its_times(
    dynabro: Dynabro,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    gpu_machine: Callable[..., None],
) -> None:
    """A computation took 1 s on the CPU and 0.1 s on a GPU."""
    sweep = (
        "name: small\nbase: {task: digits, model: mlp, method: sgd, attack: none, budget: "
        "2}\nseeds: 0..3\n"
    )
    (folder / "small.yaml").write_text(sweep)
    assert dynabro("sweep", "small.yaml", "--set", "seeds=0..1", "--jobs", "0", "--quiet").code == 0
    change(folder / "results.db", "UPDATE runs SET wall_seconds = 200, budget_spent = 200")
    change(
        folder / "results.db",
        "UPDATE runs SET wall_seconds = 20, device = 'cuda:0 NVIDIA H200' WHERE seed = 1",
    )

    def ahead(*options: str) -> tuple[list[str], str]:
        outcome = dynabro(
            "sweep",
            "small.yaml",
            "--dry-run",
            "--set",
            "budget=600",
            "--set",
            "seeds=2..5",
            *options,
        )
        return outcome.err.splitlines(), outcome.out.splitlines()[3]

    gpu_machine(cores=4)
    monkeypatch.setenv("PATH", "")  # no multi-process service
    on_cpu = "time: about 10 min with 4 at a time, at the speed of stored runs on the CPU"
    assert ahead() == (["dynabro: device: cpu (small model)"], on_cpu)
    assert ahead("--device", "cpu") == ([], on_cpu)
    on_gpu = "time: about 2 min with 2 at a time, at the speed of stored runs on the GPU"
    assert ahead("--device", "cuda") == ([], on_gpu)


@pytest.mark.parametrize("dry", [("--dry-run", "--json"), ("--quiet",)])
def test_exclusions_that_leave_nothing_out_are_told(
    dry: tuple[str, ...], dynabro: Dynabro, folder: Path, asked: list[Any]
) -> None:
    (folder / "idle.yaml").write_text(
        SMALL + "exclude:\n  - {method: sgd, seed: 1}\n  - {method: dynabro}\n"
    )
    outcome = dynabro("sweep", "idle.yaml", *dry)
    assert outcome.code == 0
    assert outcome.problems == [
        (
            "warning: idle.yaml:9: no point of the grid has method: dynabro, so that this entry of "
            "exclude leaves nothing out"
        )
    ]


# --- what is wrong with it


@pytest.mark.parametrize(
    ("arguments", "code", "problems"),
    [
        (("dem",), 66, ["there is no sweep 'dem' (did you mean 'demo'?)"]),
        (
            ("bad.yaml",),
            2,
            [
                "bad.yaml:2: unknown field 'bugdet' (did you mean 'budget'?)",
                "bad.yaml:2: clock=hour is not legal",
            ],
        ),
        (
            ("small.yaml", "--set", "bugdet=1"),
            2,
            ["--set bugdet=1: unknown field 'bugdet' (did you mean 'budget'?)"],
        ),
        (("small.yaml", "--set", "byzantine=2"), 2, ["byzantine=2 of workers=3 is not legal"]),
        (
            ("small.yaml", "--set", "byzantine=2", "--dry-run"),
            2,
            ["byzantine=2 of workers=3 is not legal"],
        ),
        (
            ("small.yaml", "--jobs=-1"),
            2,
            ["jobs=-1 is not legal. Try: --jobs with a whole number, 0 for this process, or auto"],
        ),
        (("small.yaml", "--jobs", "many"), 2, ["jobs=many is not legal"]),
        (
            ("small.yaml", "--jobs-per-gpu", "0"),
            2,
            [
                (
                    "jobs_per_gpu=0 is not legal. Try: --jobs-per-gpu with a whole number from 1, "
                    "or auto"
                )
            ],
        ),
        (("small.yaml", "--compile", "maybe"), 2, ["compile=maybe is not legal"]),
        (("small.yaml", "--device", "gpu"), 2, ["device=gpu is not here"]),
        (("small.yaml", "--timeout", "0"), 2, ["--timeout"]),
        (("small.yaml", "--max-retries", "-1"), 2, ["--max-retries"]),
        ((), 2, ["FILE|NAME|-"]),
    ],
)
def test_every_problem_is_a_line_and_nothing_runs(
    arguments: tuple[str, ...],
    code: int,
    problems: list[str],
    dynabro: Dynabro,
    small: str,
    folder: Path,
) -> None:
    (folder / "bad.yaml").write_text("name: bad\nbase: {bugdet: 1, clock: hour}\n")
    outcome = dynabro("sweep", *arguments)
    assert (outcome.code, outcome.out) == (code, "")
    assert len(outcome.problems) == len(problems), outcome.err
    assert all(part in line for part, line in zip(problems, outcome.problems, strict=True)), (
        outcome.err
    )
    if "gpu" not in arguments:
        assert not (folder / "results.db").exists()


@pytest.mark.thorough
def test_the_runs_of_a_sweep_are_also_those_that_another_has_made(
    dynabro: Dynabro, folder: Path
) -> None:
    text = "base: {task: quadratic, method: sgd, budget: 10}\nseeds: 0..1\ngrid: {aggregator: "
    (folder / "a.yaml").write_text(f"name: a\n{text}[cwtm, cwmed]}}\n")
    (folder / "b.yaml").write_text(f"name: b\n{text}[cwmed, gm, nnm+gm]}}\n")
    for name in ("a", "b", "b"):  # a list is replaced by the list of the same sweep's next command
        assert dynabro("sweep", f"{name}.yaml", "--jobs", "0", "--quiet").code == 0
    made = {
        name: {row["rule"] for row in json.loads(dynabro("runs", name, "--json").out)}
        for name in "ab"
    }
    assert made == {"a": {"cwtm", "cwmed"}, "b": {"cwmed", "gm", "nnm+gm"}}
    outcome = dynabro("compare", "--all", "aggregator", "--sweep", "b", "--format", "json")
    assert {cell["row"] for cell in json.loads(outcome.out)["cells"]} == made["b"]
    words = ("compare", "--all", "aggregator", "--against", "pre_aggregators", "--format", "json")
    cells = json.loads(dynabro(*words).out)["cells"]  # the chains have a place of their own
    assert {cell["row"] for cell in cells} == {"cwtm", "cwmed", "gm"}
    assert "last sweep: b" in dynabro("status").out
    (folder / "c.yaml").write_text(f"name: c\n{text}[cwtm, gm]}}\n")
    assert dynabro("sweep", "c.yaml", "--quiet").out.startswith("c: 4 runs in results.db: 4 stored")
    assert len(json.loads(dynabro("runs", "c", "--json").out)) == 4
    assert "last sweep: c" in dynabro("status").out


@pytest.mark.thorough
def test_a_figure_says_how_its_sweep_was_run(dynabro: Dynabro, folder: Path) -> None:
    settings = ("--set", "seeds=0", "--set", "budget=2", "--set", "model=mlp:hidden=2")
    assert dynabro("sweep", "digits-best", *settings, "--jobs", "0", "--quiet").code == 0
    (line,) = dynabro("plot", "digits-best").problems
    count, _, advice = line.partition(" runs of digits-best are stored, all with other settings. ")
    assert int(count) > 1
    assert advice == f"Try: dynabro plot digits-best {' '.join(settings)}"
    assert dynabro(*shlex.split(advice.removeprefix("Try: dynabro "))).code == 0


CHANCE = (
    "runs with an accuracy are at chance: a constant prediction is as good. Try: a larger budget"
)
LEARNS = (
    "{task: digits, model: logistic, budget: 60, batch_size: 32, attack: none, aggregator: mean}"
)


@pytest.mark.parametrize(
    ("base", "grid", "count"),
    [
        (LEARNS, "learning_rate: [1e-9, 1e38]", 2),  # learns nothing, and diverges
        (LEARNS, "learning_rate: [1e-9, 0.1]", 0),
        ("{budget: 20}", "task: [quadratic]", 0),
        ("{budget: 20, attack: none, lr: 1e-9}", "task: [quadratic, digits]", 1),
    ],
)
def test_a_sweep_at_chance_says_so_in_its_last_line(
    base: str, grid: str, count: int, dynabro: Dynabro, folder: Path
) -> None:
    (folder / "x.yaml").write_text(f"name: x\nbase: {base}\ngrid: {{{grid}, method: [sgd]}}\n")
    for _ in range(2):  # also if all runs are stored
        outcome = dynabro("sweep", "x.yaml", "--jobs", "0", "--quiet")
        assert outcome.code == 0
        last = outcome.out.splitlines()[-1]
        assert (f"all {count} {CHANCE}" in last) == bool(count)
        assert count or "chance" not in outcome.out
        # a run may diverge while its last accuracy is still high
        change("results.db", "UPDATE runs SET final_accuracy = 0.9 WHERE status = 'diverged'")


def test_a_sweep_that_extends_another_is_shown_and_stored_as_a_whole(
    small: str, dynabro: Dynabro, folder: Path
) -> None:
    (folder / "mine.yaml").write_text("name: mine\nextends: small.yaml\nseeds: 0\n")
    outcome = dynabro("sweep", "mine.yaml", "--dry-run")
    lines = outcome.out.splitlines()
    assert lines[:2] == ["name: mine", "description: Two methods on the quadratic"]
    assert "2 runs planned" in lines
    assert dynabro("sweep", "mine.yaml", "--jobs", "0").code == 0
    ((name, text),) = read("results.db", "SELECT name, yaml FROM sweeps")
    assert name == "mine"
    assert "task: quadratic" in text
    assert "extends" not in text
