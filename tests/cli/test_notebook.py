"""``run`` and ``sweep`` from Python store as the commands do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import dynabro_cli
from dynabro_cli import RunSpec, load, run, sweep
from dynabro_cli.errors import NotFoundError, SpecError, SweepError
from dynabro_cli.executors.backends.local.pool import Worker
from dynabro_cli.executors.worker import Ready
from dynabro_cli.plugins import aggregator
from tests.cli.conftest import Dynabro
from tests.own import fresh
from tests.store.made import read

QUADRATIC = {
    "task": "quadratic",
    "method": "sgd",
    "attack": "none",
    "aggregator": "cwmed",
    "budget": 20,
}
GRID: dict[str, Any] = {
    "name": "mine",
    "base": {**QUADRATIC, "lr": 1e-3},
    "grid": {"attack": ["none", "shift:lambda=1"]},
    "seeds": range(2),
}
del GRID["base"]["attack"]


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    with fresh():
        yield


def test_the_package_lists_its_public_names() -> None:
    names = dir(dynabro_cli)
    assert {"run", "sweep", "load", "simulate", "make_task", "RunSpec", "__version__"} <= set(names)
    assert all(hasattr(dynabro_cli, name) for name in names)


def test_a_run_is_stored_as_by_the_command(
    dynabro: Dynabro, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = run(QUADRATIC, db="mine.db", tags=["first"], note="hello")
    assert capsys.readouterr().err.splitlines()[-1].startswith("20/20: gap ")
    assert row["final_gap"] == read(folder / "mine.db", "SELECT final_gap FROM runs")[0][0]
    assert read(folder / "mine.db", "SELECT tags, note FROM runs") == [('["first"]', "hello")]
    words = [f"--{name}={value}" for name, value in QUADRATIC.items()]
    assert "already in mine.db" in dynabro("run", *words, "--db", "mine.db", "-q").out
    again = run(RunSpec(**QUADRATIC), db="mine.db", quiet=True)  # type: ignore[arg-type]
    assert (again["id"], capsys.readouterr().err) == (row["id"], "")
    assert run(QUADRATIC, db="mine.db", rerun=True, quiet=True)["id"] != row["id"]
    with pytest.raises(SpecError, match="unknown field 'metod'"):
        run({"metod": "sgd"}, db="mine.db")


@pytest.mark.thorough
def test_a_sweep_is_a_file_or_a_mapping(folder: Path) -> None:
    runs, evaluations = sweep(GRID, db="mine.db", jobs=0, quiet=True)
    assert list(runs["sweep"]) == ["mine"] * 4
    assert set(evaluations["run_id"]) == set(runs["id"])
    ((yaml,),) = read(folder / "mine.db", "SELECT yaml FROM sweeps")
    (folder / "mine.yaml").write_text(yaml)
    assert len(sweep("mine.yaml", db="mine.db", jobs=0, quiet=True).runs) == 4
    # all of them were stored
    assert read(folder / "mine.db", "SELECT COUNT(*) FROM sweeps") == [(1,)]
    more = sweep(folder / "mine.yaml", db="mine.db", settings=["seeds=7"], jobs=0, quiet=True)
    assert sorted(more.runs["seed"].unique()) == [0, 1, 7]
    run(QUADRATIC | {"seed": 9}, db="mine.db", quiet=True)
    assert len(load("mine.db").runs) == 7
    assert len(load("mine.db", sweep="mine").runs) == 6
    assert len(load("mine.db", "seed = 7", sweep=["mine"]).runs) == 2
    with pytest.raises(
        NotFoundError, match=r"no run of the sweep min is stored \(did you mean 'mine'\?\)"
    ):
        load("mine.db", sweep="min")


@pytest.mark.thorough
def test_numbers_and_arrays_of_numpy(folder: Path) -> None:
    numbers = {
        "budget": np.int64(20),
        "workers": np.uint8(5),
        "byzantine": np.array(1),
        "lr": np.float32(0.5),
        "seed": np.int32(3),
    }
    row = run(QUADRATIC | numbers, db="mine.db", quiet=True)
    assert (
        row["run_key"]
        == run(
            QUADRATIC | {"budget": 20, "workers": 5, "byzantine": 1, "lr": 0.5, "seed": 3},
            db="mine.db",
        )["run_key"]
    )
    assert RunSpec(lr=np.float64(0.1)) == RunSpec(lr=0.1)
    assert repr(RunSpec(lr=np.float64(0.1))) == repr(RunSpec(lr=0.1))
    grid = {
        "name": "arrays",
        "base": QUADRATIC,
        "grid": {"lr": np.array([1e-3, 2e-3])},
        "seeds": np.arange(2),
    }
    runs = sweep(grid, db="mine.db", jobs=np.int64(0), quiet=True).runs  # type: ignore[arg-type]
    assert sorted(zip(runs["learning_rate"], runs["seed"], strict=True)) == [
        (1e-3, 0),
        (1e-3, 1),
        (2e-3, 0),
        (2e-3, 1),
    ]
    assert read(folder / "mine.db", "SELECT jobs, typeof(jobs) FROM sweeps") == [(1, "integer")]
    again = sweep(grid | {"name": "other"}, db="mine.db", jobs=0, quiet=True).runs
    assert list(again["id"]) == list(runs["id"])


@pytest.mark.thorough
def test_worker_processes_do_not_import_the_main_module(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, main = folder / "script.py", ModuleType("__main__")
    script.write_text("open('imported', 'w').close()")
    main.__file__ = str(script)
    monkeypatch.setitem(sys.modules, "__main__", main)
    worker = Worker("tests.executors.faulty:die_when_ready")
    assert worker.receive() == Ready()
    worker.reap()
    worker.close()
    assert sys.modules["__main__"] is main
    assert list(folder.iterdir()) == [script]


def test_what_is_no_sweep(folder: Path) -> None:
    with pytest.raises(SpecError, match="unknown key 'bse'"):
        sweep({"name": "mine", "bse": {}}, quiet=True)
    with pytest.raises(SpecError, match="a value that YAML does not have"):
        sweep({"name": "mine", "base": {"lr": object()}}, quiet=True)
    assert not list(folder.iterdir())


@pytest.mark.thorough
def test_a_rule_of_a_cell_is_known_in_this_process(folder: Path) -> None:
    def own(messages: Any, *, broken: bool = False) -> Any:
        """Mean."""
        return messages if broken else messages.mean(0)

    own.__module__ = "__main__"
    aggregator("own-mean")(own)
    assert len(sweep(GRID, db="mine.db", settings=["aggregator=own-mean"], quiet=True).runs) == 4
    with pytest.raises(
        SweepError, match=r"4 of 4 runs failed, first: .*aggregator 'own-mean' returned"
    ):
        sweep(GRID, db="mine.db", settings=["aggregator=own-mean:broken=true"], quiet=True)
