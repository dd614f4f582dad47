"""Answers of commands to conditions on sweeps, plugins that are not loaded, and names."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from dynabro_cli.components.tasks._api import REGISTRY, TaskSetting
from dynabro_cli.core.errors import NotFoundError
from tests.answers.figures.grids import SMALL, fill, planned
from tests.cli.conftest import Dynabro
from tests.runs.store.made import change

TWO = "sweep IN ('other', 'one')"


@pytest.fixture
def shared(folder: Path) -> Path:
    """A sweep of three runs, two of which another sweep has made."""
    common = (*SMALL, "method=sgd", "learning_rate=0.01", "switching=static", "seeds=0..2")
    rows = planned("digits-periodic", *common)
    path = folder / "results.db"
    fill(path, rows)
    change(
        path,
        "INSERT INTO sweeps (id, name, status, runs, stored_before, jobs, executor, started_at, "
        "heartbeat_at, owner, host, pid) VALUES (7, 'one', 'finished', 3, 2, 1, 'local', "
        "'2026-01-01 00:00:00', '2026-01-01 00:00:00', 'x', 'y', 1)",
    )
    for row in rows:
        change(path, "INSERT INTO sweep_runs (sweep_id, run_key) VALUES (7, ?)", row["run_key"])
    change(path, "UPDATE runs SET sweep = CASE WHEN seed = 0 THEN 'one' ELSE 'other' END")
    return folder


@pytest.mark.parametrize(
    "command",
    [
        ("runs", "--where", "sweep='one'"),
        ("query", "SELECT COUNT(*) FROM runs WHERE sweep = 'one'"),
        ("query", f"SELECT COUNT(*) FROM runs WHERE {TWO}"),
        ("plot", "final", "--where", "seed = 0 AND SWEEP = 'one'"),
        ("export", "final", "--where", "sweep = 'one'"),
        ("report", "--out", "r.html", "--where", "sweep = 'one'"),
        ("db", "remove", "--dry-run", "--where", "sweep = 'one'"),
        ("compare", "sweep=one", "sweep=other"),
    ],
)
def test_a_condition_on_a_sweep_says_what_it_leaves_out(
    command: tuple[str, ...], shared: Path, dynabro: Dynabro
) -> None:
    line = "sweep = 'one' holds for the runs that this sweep made, and not for 2 of its runs"
    assert dynabro(*command).err.count(line) == 1


@pytest.mark.parametrize(
    "command",
    [
        ("runs", "--sweep", "one"),
        ("runs", "--where", "sweep = 'other'"),
        ("query", "SELECT run_key FROM sweep_runs JOIN sweeps ON id = sweep_id WHERE name = 'one'"),
    ],
)
def test_a_whole_sweep_says_nothing(
    command: tuple[str, ...], shared: Path, dynabro: Dynabro
) -> None:
    assert "holds for the runs" not in dynabro(*command).err


def test_a_plugin_that_is_not_loaded_is_named_once(folder: Path, dynabro: Dynabro) -> None:
    Path("mine.py").write_text("")
    Path("s.yaml").write_text(
        "name: s\nplugins: [mine.py]\nbase: {task: digits, model: tiny-resnet}\n"
        "grid: {attack: [mine, sf], aggregator: [cwtm, mine-too]}\n"
    )
    outcome = dynabro("sweep", "s.yaml", "--dry-run")
    assert outcome.code == 2
    assert "did you mean" not in outcome.err
    assert outcome.err.count("--plugin") == 1
    assert outcome.err.count("components of these plugins are unknown") == 1


def test_curves_without_a_target_are_csv(shared: Path, dynabro: Dynabro) -> None:
    outcome = dynabro("export", "curves")
    assert outcome.code == 0
    assert outcome.out.startswith("run_id,task,")
    assert dynabro("export").code == 2


def test_long_names_leave_room_for_descriptions(
    dynabro: Dynabro, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = dynabro("list", "methods").out
    assert "ByzantineSGD: SGD on the mean of the workers" in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_classes_that_look_the_same(tmp_path: Path) -> None:
    for split, name in (("train", "cha\u0302t"), ("test", "ch\xe2t")):
        for kind in (name, "dog"):
            (tmp_path / "pets" / split / kind).mkdir(parents=True)
            (tmp_path / "pets" / split / kind / "a.png").write_bytes(b"")
    task = REGISTRY.parse("image-folder:name=pets,size=8").build(TaskSetting(tmp_path))
    with pytest.raises(NotFoundError, match=r"'cha\\u0302t' and 'ch\\xe2t' look the same"):
        task.load()


def test_many_places_have_room_for_their_words(
    folder: Path, dynabro: Dynabro, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = [f"learning_rate={(n + 1) / 1000}" for n in range(30)]
    common = (*SMALL, "method=sgd", "switching=static", "seeds=0")
    fill(folder / "results.db", planned("digits-periodic", *common, *rates))
    change(folder / "results.db", "UPDATE runs SET final_accuracy = 1")
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    assert dynabro("plot", "final", "--x", "learning_rate").code == 0
    axes = drawn[0].axes[0]
    assert 8 <= len(axes.get_xticklabels()) <= 16
    assert max(tick for tick in axes.get_yticks() if tick <= axes.get_ylim()[1]) <= 1
