"""Trials and names that dynabro cannot have written: merge leaves them out, check finds them, and
every other command ends in a line.
"""

from __future__ import annotations

import shutil
import sys
import types
from pathlib import Path

import pytest

from dynabro_cli.core.limits import MOST_NAME, SWEEP_NAME
from tests.cli.conftest import Dynabro
from tests.runs.store.made import change, read

FILE = """name: v
base: {task: quadratic, budget: 40, workers: 5, byzantine: 1, method: sgd, eval_every: 10}
search: {learning_rate: ["{0.001..0.1 log}"]}
minimize: final_gap
trials: 3
"""


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for databases that are made by the first test that needs them."""
    return tmp_path_factory.mktemp("originals")


@pytest.fixture
def searched(folder: Path, dynabro: Dynabro, originals: Path) -> Path:
    """A folder with the databases of a search and of a run."""
    if not list(originals.iterdir()):
        (folder / "v.yaml").write_text(FILE)
        assert dynabro("search", "v.yaml", "--db", "f.db", "--jobs", "0").code == 0
        other = ("--workers", "5", "--byzantine", "1", "--method", "sgd", "--db", "m.db")
        assert dynabro("run", "--task", "quadratic", "--budget", "20", *other).code == 0
        shutil.copytree(folder, originals, dirs_exist_ok=True)
    shutil.copytree(originals, folder, dirs_exist_ok=True)
    return folder


@pytest.mark.parametrize(
    "wrong",
    [
        "yaml = 'a' || char(0) || 'b'",
        "yaml = NULL",
        "yaml = 'name: v' || char(10) || 'search: {}'",
        "yaml = 'x: [' || char(10) || 'search: {}'",
        "name = 5",
        "runs = 99999999999",
        "jobs = 'x'",
    ],
)
def test_trials_of_a_search_without_a_readable_text(
    wrong: str, searched: Path, dynabro: Dynabro
) -> None:
    change(searched / "f.db", f"UPDATE sweeps SET {wrong}")
    merged = dynabro("db", "merge", "f.db", "--db", "m.db")
    assert merged.code == 65
    assert "its search cannot be read (" in merged.err
    assert "trials of searches copied" not in merged.out
    assert not read(searched / "m.db", "SELECT * FROM trials")
    assert dynabro("db", "check", "--db", "m.db").code == 0
    assert dynabro("db", "check", "--db", "f.db").code == 65
    assert dynabro("plot", "v", "--db", "f.db").code in (0, 65, 66)


@pytest.mark.parametrize("value", ['"x"', "null", "true", "[1]", '{"a": 1}'])
def test_a_parameter_of_another_type(value: str, searched: Path, dynabro: Dynabro) -> None:
    parameters = f'{{"learning_rate": {value}}}'
    change(searched / "f.db", f"UPDATE trials SET parameters = '{parameters}' WHERE number = 1")
    checked = dynabro("db", "check", "--db", "f.db")
    assert checked.code == 65
    assert (
        "trial 1 of v: its parameters are not of its search: parameter learning_rate" in checked.out
    )
    plotted = dynabro("plot", "v", "--db", "f.db")
    assert plotted.code == 0
    assert "1 trial left out, first trial 1 of v: its parameters are not of" in plotted.err
    merged = dynabro("db", "merge", "f.db", "--db", "m.db")
    assert len(read(searched / "m.db", "SELECT * FROM trials")) == 2
    assert merged.code == 65


def test_names_have_a_length(folder: Path, dynabro: Dynabro) -> None:
    assert SWEEP_NAME.fullmatch("a" * MOST_NAME)
    (folder / "v.yaml").write_text(FILE)
    outcome = dynabro("search", "v.yaml", "--name", "a" * (MOST_NAME + 1), "--jobs", "0")
    assert outcome.code == 2
    assert f"at most {MOST_NAME}" in outcome.err


def test_a_failed_export_leaves_nothing(
    searched: Path, dynabro: Dynabro, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dynabro_cli.answers import exports

    def begin(run: object, **place: str) -> None:
        Path("part").write_text("x")
        raise RuntimeError("the tool refuses the name")

    monkeypatch.setitem(exports.TARGETS, "tensorboard", "tool")
    monkeypatch.setitem(exports.PLACES, "tool", exports.PLACES["tensorboard"])
    for name in ("tool", "dynabro_cli.runs.trackers.tool"):
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(begin=begin, __spec__=True))
    for before in (False, True):
        out = searched / f"out{before}"
        if before:
            out.mkdir()
        outcome = dynabro("export", "--to", "tensorboard", "--out", str(out), "--db", "f.db")
        assert outcome.code == 73
        assert "cannot be written (the tool refuses the name)" in outcome.err
        assert out.exists() == before
        assert not before or not any(out.iterdir())
    change(searched / "f.db", "UPDATE runs SET sweep = printf('%.600c', 'x')")
    outcome = dynabro("export", "--to", "tensorboard", "--out", "long", "--db", "f.db")
    assert outcome.code == 65
    assert "is not a name of a folder" in outcome.err
    assert not (searched / "long").exists()
