"""``run`` and ``sweep`` from Python store as the commands do."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import dynabro_cli
from dynabro_cli import RunSpec, load, load_plugin, run, sweep
from dynabro_cli.core.errors import NotFoundError, PluginError, SpecError, SweepError
from dynabro_cli.plugins import aggregator
from dynabro_cli.runs.executors.backends.local.pool import Worker
from dynabro_cli.runs.executors.worker import Ready
from tests.cli.conftest import Dynabro
from tests.own import fresh
from tests.runs.store.made import read

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
    worker = Worker("tests.runs.executors.faulty:die_when_ready")
    assert worker.receive() == Ready()
    worker.reap()
    worker.close()
    assert sys.modules["__main__"] is main
    assert list(folder.iterdir()) == [script]


MEAN2 = '''from dynabro_cli.plugins import aggregator
@aggregator("mean2")
def mean2(messages):
    """Mean."""
    return {sign}messages.mean(0)
'''
OTHER = "stored runs made with other code: 1 of 1 (aggregators/mean2: 1)"


def told(call: Any) -> tuple[Any, list[str]]:
    """The result of a call, and its warnings about stored runs, which name the line of the call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    ours = [warning for warning in caught if "runs" in str(warning.message)]
    assert {warning.filename for warning in ours} <= {__file__}
    return result, [str(warning.message) for warning in ours]


def test_results_of_other_code_are_returned_with_a_warning(dynabro: Dynabro, folder: Path) -> None:
    spec = QUADRATIC | {"aggregator": "mean2"}
    (folder / "mean2.py").write_text(MEAN2.format(sign=""))
    with fresh():
        load_plugin("mean2.py")
        before, lines = told(lambda: run(spec, db="m.db", quiet=True))
        assert not lines
        assert not told(lambda: run(spec, db="m.db", quiet=True))[1]
        (folder / "mean2.py").write_text(MEAN2.format(sign="-"))
        with pytest.raises(PluginError, match="has changed since this process loaded it"):
            load_plugin("mean2.py")
    command = [f"--{name}={value}" for name, value in spec.items()]
    with fresh():
        said = dynabro("run", *command, "--db", "m.db", "--plugin", "mean2.py").err
        assert f"warning: {OTHER}; --rerun repeats it" in said
    with fresh():
        load_plugin("mean2.py")
        again, lines = told(lambda: run(spec, db="m.db", quiet=True))
        assert (again["final_gap"], lines) == (
            before["final_gap"],
            [f"{OTHER}; rerun_changed=True repeats these runs"],
        )
        assert told(lambda: load("m.db"))[1] == [OTHER]
        grid = {"name": "mine", "base": spec}
        made = lambda **how: told(lambda: sweep(grid, db="m.db", jobs=0, quiet=True, **how))  # noqa: E731
        assert made()[1] == [f"{OTHER}; rerun_changed=True repeats these runs"]
        frames, lines = made(rerun_changed=True)
        assert not lines
        assert frames.runs["final_gap"][0] != before["final_gap"]
        assert not told(lambda: run(spec, db="m.db", quiet=True, rerun_changed=True))[1]
        assert read(folder / "m.db", "SELECT max(id) FROM runs") == [(2,)]


@pytest.mark.thorough
def test_a_cell_that_changed_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)

    def cell(text: str) -> list[str]:
        exec(compile(text, "<cell>", "exec"), main.__dict__)
        spec = {"task": "mine", "model": "net", "attack": "loud", "aggregator": "middle"}
        spec |= {"method": "sgd", "budget": 3, "eval_every": 3, "workers": 3, "byzantine": 1}
        return told(lambda: run(spec, db="m.db", quiet=True, rerun_changed=not text))[1]

    assert not cell(CELLS)
    assert not cell(CELLS)
    for part, edit in (
        ("attacks/loud", "SCALE = 3.0"),
        ("models/net", "class Layer(nn.Linear):\n    own = 1"),
        (
            "aggregators/middle",
            CELLS[CELLS.index("@aggregator") :].replace("median(0).values", "mean(0)"),
        ),
    ):
        (line,) = cell(edit)
        assert line.startswith(f"stored runs made with other code: 1 of 1 ({part}: 1)")
        assert not cell("")
        assert not cell(edit)
    (line,) = cell("y = 1 - y; X = X * 0")
    assert "with other data: 1 of 1 (mine: 1); rerun_changed=True repeats these runs" in line


CELLS = """
import torch
from torch import nn
from dynabro_cli.plugins import (aggregator, attack, model, task)
SCALE = 2.0
X, y = torch.arange(240.0).view(60, 4) % 7, torch.arange(60) % 2
class Layer(nn.Linear):
    pass
@task("mine")
def mine(): return X, y, X, y
@model("net")
def net(shape): return nn.Sequential(nn.Flatten(), Layer(4, 2))
@attack("loud")
def loud(vectors, byzantine): return SCALE * vectors[0]
@aggregator("middle")
def middle(messages): return messages.median(0).values
"""


def test_data_of_two_versions_are_told(folder: Path) -> None:
    spec = {"task": "npz:file=d.npz", "model": "logistic", "method": "sgd", "workers": 3}
    spec |= {"byzantine": 0, "attack": "none", "aggregator": "mean", "budget": 3, "eval_every": 3}
    for seed in (0, 1):
        inputs = np.random.default_rng(seed).random((40, 3))
        np.savez(folder / "d.npz", X=inputs, y=np.arange(40) % 2)
        run(spec | {"seed": seed}, db="m.db", data_dir=folder, quiet=True)
    (line,) = told(lambda: load("m.db"))[1]
    assert "these runs were made with 2 versions of the data of npz:file=d.npz" in line


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
