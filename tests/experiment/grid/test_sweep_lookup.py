"""Sweeps by name, by file, from standard input; and fields set over what they say."""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

import pytest

from dynabro_cli.core.errors import NotFoundError, SpecError
from dynabro_cli.experiment.grid import sweep_lookup
from dynabro_cli.experiment.grid.sweep_file import Axis, Sweep, parse_sweep
from dynabro_cli.experiment.grid.sweep_lookup import load_sweep, set_fields, shipped
from tests.tables import each_row

ROOT = Path(__file__).parents[3]

FIGURES = [
    "mnist-sf-cwtm",
    "cifar10-ipm-cwmed",
    "momentum-fails-gap",
    "mnist-alie-gm",
    "history-dependence",
    "training-details",
]

TEXT = """
name: x
base: {task: digits, seed: 5}
grid:
  rates: [{method: sgd, learning_rate: 0.01}, {method: dynabro, learning_rate: 0.05}]
  switching: [periodic:K=5, static]
"""


def test_every_figure_has_its_sweep() -> None:
    assert {*FIGURES, "demo", "digits-periodic"} <= set(shipped())
    assert list(shipped()) == sorted(shipped())


def test_installed_sweeps_come_before_those_of_a_working_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "dynabro_cli"
    for folder, name in (
        (package / "sweeps", "installed.yaml"),
        (tmp_path / "sweeps", "beside.yml"),
    ):
        folder.mkdir(parents=True)
        (folder / name).write_text("name: x")
        (folder / "README.md").write_text("")
    monkeypatch.setattr(sweep_lookup.importlib.resources, "files", lambda _: package)
    assert list(shipped()) == ["installed"]
    (package / "sweeps" / "installed.yaml").unlink()
    (package / "sweeps" / "README.md").unlink()
    (package / "sweeps").rmdir()
    assert list(shipped()) == ["beside"]
    monkeypatch.setattr(
        sweep_lookup.importlib.resources, "files", lambda _: tmp_path / "elsewhere" / "dynabro_cli"
    )
    assert shipped() == {}


def test_a_packed_sweep_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Package in a zip file."""
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as packed:
        packed.writestr("dynabro_cli/sweeps/packed.yaml", "name: packed")
    monkeypatch.setattr(
        sweep_lookup.importlib.resources,
        "files",
        lambda _: zipfile.Path(tmp_path / "x.zip", "dynabro_cli/"),
    )
    assert load_sweep("packed") == Sweep("packed")


def test_a_file_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("name: x\nbase: {bugdet: 1}\n")
    with pytest.raises(SpecError, match=f"^{path}:2: unknown field 'bugdet'"):
        load_sweep(str(path))
    monkeypatch.setattr("sys.stdin", io.StringIO("name: x\nbase: {bugdet: 1}\n"))
    with pytest.raises(SpecError, match=r"^<stdin>:2: unknown field 'bugdet'"):
        load_sweep("-")


@pytest.mark.parametrize("name", ["dem", "", "no/such.yaml", "/", "a\0b"])
def test_a_sweep_that_is_not_there(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFoundError) as caught:
        load_sweep(name)
    assert str(caught.value).startswith(f"there is no sweep {name!r}")
    assert ("(did you mean 'demo'?)" in str(caught.value)) == (name == "dem")
    assert "dynabro list sweeps" in str(caught.value)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"name: \xff\n")
    with pytest.raises(SpecError, match=r"it is not UTF-8 text \(invalid start byte at byte 6\)"):
        load_sweep(str(tmp_path / "x.yaml"))


# --- setting fields


def grid_of(*settings: str) -> tuple[dict[str, str], list[tuple[str, int]], tuple[int, ...]]:
    """The base, the axes' labels and lengths, and the seeds of TEXT with ``settings``."""
    sweep = set_fields(parse_sweep(TEXT, "x"), settings)
    return dict(sweep.base), [(axis.label, len(axis.points)) for axis in sweep.grid], sweep.seeds


def test_a_field_is_set_in_the_base() -> None:
    assert grid_of("budget=500", "task=quadratic") == (
        {"seed": "5", "budget": "500", "task": "quadratic"},
        [("rates", 2), ("switching", 2)],
        (),
    )


def test_a_field_is_set_in_place_of_an_axis() -> None:
    assert grid_of("switching=bernoulli:p=0.1,D=3,delta_max=0.5") == (
        {"task": "digits", "seed": "5", "switching": "bernoulli:p=0.1,D=3,delta_max=0.5"},
        [("rates", 2)],
        (),
    )


def test_a_field_set_several_times_is_an_axis() -> None:
    sweep = set_fields(
        parse_sweep(TEXT, "x"),
        ["switching=static", "budget=10", "switching=periodic:K=7", "budget=20"],
    )
    assert sweep.base == {"task": "digits", "seed": "5"}
    assert sweep.grid[1:] == (
        Axis("switching", ({"switching": "static"}, {"switching": "periodic:K=7"})),
        Axis("budget", ({"budget": "10"}, {"budget": "20"})),
    )


def test_an_axis_keeps_its_place() -> None:
    text = "name: x\ngrid: {budget: [1, 2], method: [sgd, dynabro], seed: [3, 4]}\n"
    sweep = set_fields(parse_sweep(text, "x"), ["method=sgd", "method=demoa"])
    assert [axis.label for axis in sweep.grid] == ["budget", "method", "seed"]


def test_a_field_is_set_among_fields_that_vary_together() -> None:
    sweep = set_fields(parse_sweep(TEXT, "x"), ["learning_rate=1"])
    assert sweep.grid[0] == Axis("rates", ({"method": "sgd"}, {"method": "dynabro"}))
    assert sweep.base["learning_rate"] == "1"


@pytest.mark.parametrize(
    "settings", [("seeds=0..2",), ("seed=0..2",), ("seeds=0", "seed=1", "seeds=1..2")]
)
def test_seeds_are_set(settings: tuple[str, ...]) -> None:
    base, _, seeds = grid_of(*settings)
    assert seeds == (0, 1, 2)
    assert "seed" not in base


@each_row(
    ("setting", "problem"),
    [
        ("bugdet=5", "unknown field 'bugdet' (did you mean 'budget'?); legal: task, "),
        ("budget", "it must be FIELD=VALUE"),
        (
            "budget=[5, 6]",
            "it must be one value. For several, repeat it: --set budget=A --set budget=B",
        ),
        ("budget=many", "budget=many is not legal; budget must be a whole number"),
        ("lr_drop=x", "lr_drop=x is not legal"),
        ("seeds=4..0", "seeds=4..0 is not legal"),
        ("name=y", "unknown field 'name'"),
    ],
)
def test_settings_that_are_refused(setting: str, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        grid_of(setting, "clock=hour", "budget=3")
    first, second = caught.value.problems
    assert first.startswith(f"--set {setting}: {problem}")
    assert second.startswith("--set clock=hour: clock=hour is not legal")


def test_seeds_that_are_set_are_counted_before_they_are_listed() -> None:
    settings = [f"seeds={k}0000..{k}9999" for k in range(11)]
    with pytest.raises(
        SpecError, match=r"--set seeds: it has 110,000 seeds, and a sweep may have 100,000 points"
    ):
        set_fields(Sweep("x"), settings)
    assert len(set_fields(Sweep("x"), settings[:10]).seeds) == 100_000


@pytest.mark.timeout(60)
def test_standard_input_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/zero", encoding="utf-8") as endless:
        monkeypatch.setattr(sys, "stdin", endless)
        with pytest.raises(SpecError, match="<stdin>: it has more than 1,000,000 characters"):
            load_sweep("-")


BASE = """
name: base
description: What it is for
plugins: [json]
base: {task: digits, model: mlp, lr: 0.01, budget: 100, workers: 5}
grid:
  aggregator: [cwtm, gm]
  rates: [{method: sgd}, {method: momentum, batch_size: 2}]
  switching: [static]
exclude: [{method: sgd, aggregator: gm}]
seeds: 0..4
"""


REST = "base: {task: digits, model: mlp, budget: 100, workers: 5}\n"
STATIC = "switching: [static]"
RATES = "rates: [{method: sgd}, {method: momentum, batch_size: 2}]"


@each_row(
    ("text", "equal"),
    [
        ("", ""),
        ("description: Mine\nseeds: 1", "description: Mine\nseeds: 1"),
        ("base: {budget: 7}", "base: {task: digits, model: mlp, lr: 0.01, budget: 7, workers: 5}"),
        (
            "base: {learning_rate: 1, aggregator: mean}",
            f"{REST[:-2]}, lr: 1, aggregator: mean}}\ngrid: {{{RATES}, {STATIC}}}",
        ),
        (
            "grid: {learning_rate: [1, 2], aggregator: [mean]}",
            f"{REST}grid: {{aggregator: [mean], {RATES}, {STATIC}, learning_rate: [1, 2]}}",
        ),
        (
            "grid: {rates: [{method: sgd, lr: 1}]}",
            f"{REST}grid: {{aggregator: [cwtm, gm], rates: [{{method: sgd, lr: 1}}], {STATIC}}}",
        ),
        ("exclude: []\nplugins: [csv]", "exclude: []\nplugins: [csv]"),
    ],
)
@pytest.mark.filterwarnings("ignore:mine runs the code")
def test_a_sweep_extends_another(text: str, equal: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir(exist_ok=True)
    (tmp_path / "sub" / "base.yaml").write_text(BASE)
    (tmp_path / "mine.yaml").write_text(f"name: mine\nextends: sub/base.yaml\n{text}\n")
    sweep = load_sweep(str(tmp_path / "mine.yaml"))
    keys = {line.partition(":")[0]: line for line in BASE.splitlines() if line[:1].isalpha()}
    keys["grid"] = BASE[BASE.index("grid") : BASE.index("exclude")]
    keys |= {line.partition(":")[0]: line for line in equal.splitlines()} | {"name": "name: mine"}
    expected = parse_sweep("\n".join(keys.values()), "x")
    assert sweep == expected
    assert [list(axis.fields) for axis in sweep.grid] == [
        list(axis.fields) for axis in expected.grid
    ]
    # what is stored is the whole
    assert "extends" not in sweep.text
    assert parse_sweep(sweep.text, "stored") == sweep


def test_plugins_and_chains_are_relative_to_each_file(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "own.py").write_text("")
    (tmp_path / "sub" / "a.yaml").write_text("name: a\nplugins: own.py\nbase: {task: digits}")
    (tmp_path / "sub" / "b.yaml").write_text("name: b\nextends: a.yaml\nseeds: 0..2")
    (tmp_path / "c.yaml").write_text("name: c\nextends: sub/b.yaml\nbase: {budget: 5}")
    sweep = load_sweep(str(tmp_path / "c.yaml"), ["budget=6"], run_plugins=False)
    assert (sweep.name, sweep.seeds, sweep.base) == (
        "c",
        (0, 1, 2),
        {"task": "digits", "budget": "6"},
    )
    assert sweep.plugins == (str(tmp_path / "sub" / "own.py"),)
    shipped_one = "name: d\nextends: demo\nseeds: 3"
    (tmp_path / "d.yaml").write_text(shipped_one)
    mine, demo = load_sweep(str(tmp_path / "d.yaml")), load_sweep("demo")
    assert (mine.grid, mine.base, mine.seeds) == (demo.grid, demo.base, (3,))


@each_row(
    ("files", "problem"),
    [
        (
            {"a": "extends: b.yaml", "b": "extends: a.yaml"},
            "b.yaml: extends=a.yaml: the files extend",
        ),
        (
            {"a": "extends: a.yaml"},
            "a.yaml: extends=a.yaml: the files extend each other in a circle",
        ),
        ({"a": "extends: ./x/../a.yaml"}, "the files extend each other in a circle"),
        ({"a": "extends: none.yaml"}, "a.yaml: extends=none.yaml: there is no sweep "),
        ({"a": "extends: https://host/a.yaml"}, "a.yaml: there is no sweep "),
        ({"a": "extends: '-'"}, "a.yaml: extends=-: there is no sweep "),
        ({"a": "extends: [b, c]"}, "a.yaml:2: extends must be a text"),
        ({"a": "extends: b.yaml", "b": "bse: 1"}, "b.yaml:2: unknown key 'bse'"),
        (
            {"a": "extends: b.yaml\nbase: {seed: 1}", "b": "seeds: 0..4"},
            "seeds are given, and base or grid set seed",
        ),
    ],
)
def test_what_cannot_be_extended(files: dict[str, str], problem: str, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir(exist_ok=True)
    for name, text in files.items():
        (tmp_path / f"{name}.yaml").write_text(f"name: {name}\n{text}\n")
    with pytest.raises((SpecError, NotFoundError)) as caught:
        load_sweep(str(tmp_path / "a.yaml"))
    assert problem in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
