"""The database of real runs that comes with the project, and the pictures of it in ``plots/``."""

from __future__ import annotations

import itertools
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from dynabro_cli.answers.figures._api import GRIDS, RECORDS
from dynabro_cli.experiment.grid.plan import as_stored, plan
from dynabro_cli.experiment.grid.sweep_lookup import load_sweep, set_fields
from tests.cli.conftest import Dynabro

ROOT = Path(__file__).parents[3]
EXAMPLE, PLOTS = ROOT / "results.db.example", ROOT / "plots"
MOST_BYTES = 34_000_000
WITHOUT_RUNS = {
    "cifar10-ipm-cwmed",
    "cifar10-ipm-cwmed-dmax048",
    "mnist-dynamic-rounds",
    "search",
}
"""Figures whose grids have not been run."""
LEADERBOARDS = {
    "leaderboard": ("worst-between", "worst-within", "worst-evade"),
    "leaderboard-dirichlet": ("worst-dirichlet",),
    "leaderboard-mnist": ("mnist-worst-static", "mnist-worst-switching"),
}
"""Searches of the leaderboards by name."""


@pytest.fixture
def runs() -> pd.DataFrame:
    connection = sqlite3.connect(f"file:{EXAMPLE}?mode=ro", uri=True)
    try:
        return pd.read_sql_query("SELECT * FROM runs", connection)
    finally:
        connection.close()


def test_it_is_small() -> None:
    assert EXAMPLE.stat().st_size < MOST_BYTES


@pytest.mark.thorough
def test_it_is_whole(dynabro: Dynabro) -> None:
    outcome = dynabro("db", "check", "--db", str(EXAMPLE))
    assert outcome.code == 0
    assert outcome.out.endswith("no problem found\n")


def test_nobody_is_named_in_it(runs: pd.DataFrame) -> None:
    assert runs[["owner", "git_commit"]].isna().all(axis=None)
    assert set(runs["host"]) | set(runs["pid"]) == {"", 0}


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_the_pictures_are_of_it(dynabro: Dynabro) -> None:
    """Every figure of ``plots/`` has the numbers that are drawn from the database now, byte for
    byte.
    """
    where = ("--db", str(EXAMPLE), "--out", "drawn")
    assert dynabro("plot", "all", *where).code == 0
    for name in sorted(set(RECORDS) - WITHOUT_RUNS - {"leaderboard"}):
        assert dynabro("plot", name, *where).code == 0
    for name, searches in LEADERBOARDS.items():
        assert (
            dynabro("leaderboard", *searches, *where, "--name", name, "--format", "png").code == 0
        )
    records = set(RECORDS) - WITHOUT_RUNS | set(LEADERBOARDS)
    drawn = {path.name: path.read_bytes() for path in Path("drawn").glob("*.csv")}
    with_runs = set(GRIDS) - WITHOUT_RUNS
    assert set(drawn) == {
        f"{name}{kind}" for name in with_runs for kind in (".csv", ".runs.csv")
    } | {f"{name}.csv" for name in records}
    assert drawn == {path.name: path.read_bytes() for path in PLOTS.glob("*.csv")}
    assert {path.name for path in PLOTS.glob("*.png")} == {
        path.name for path in Path("drawn").glob("*.png")
    }


@pytest.mark.parametrize(
    ("name", "attack", "seeds"), [("mnist-sf-cwtm", "sf", 5), ("mnist-alie-gm", "alie", 5)]
)
def test_final_accuracies(name: str, attack: str, seeds: int, runs: pd.DataFrame) -> None:
    shown = runs[runs["run_key"].isin(pd.read_csv(PLOTS / f"{name}.runs.csv")["run_key"])]
    assert {text.partition(":")[0] for text in shown["attack"]} == {attack}
    # a diverged run counts as guessing
    counts = shown["final_accuracy"].mask(shown["status"] == "diverged", 0.1)
    groups = counts.groupby([shown["method"], shown["switching"]])
    expected = groups.agg(["mean", "std", "size"])
    numbers = pd.read_csv(PLOTS / f"{name}.csv").set_index(["method", "switching"])
    assert len(numbers) == len(expected)
    assert numbers["n"].min() >= seeds
    expected = expected.rename(columns={"size": "n"}).loc[numbers.index]
    pd.testing.assert_frame_equal(
        numbers[["mean", "std", "n"]], expected, check_dtype=False, rtol=1e-9
    )


def test_every_figure_has_its_page() -> None:
    """With its picture, the claim, what was found, and whether they agree; all pictures and pages
    that are named exist.
    """
    pages = {
        path: path.read_text(encoding="utf-8")
        for path in (PLOTS / "README.md", *(PLOTS / "figures").glob("*.md"))
    }
    for name in {*GRIDS, *RECORDS} - WITHOUT_RUNS:
        assert any(f"](../{name}.png)" in text for text in pages.values()), name
    for path, text in pages.items():
        if "**The paper:**" in text:
            assert re.search(r"\*\*Agreement: (yes|partly|no|undecided|not run)\b", text), path
        for link in re.findall(r"\]\((?!http)([^)#]+)", text) + re.findall(r'src="([^"]+)"', text):
            assert (path.parent / link).exists(), (path, link)


def commands_of_rebuild(folder: Path) -> Iterator[list[str]]:
    """Yield the arguments of each ``dynabro`` of ``plots/rebuild``, which runs in ``folder`` with a
    command that only logs.
    """
    for name, text in (
        ("bin/dynabro", 'printf "%s\\t" "$@" >>log; echo >>log'),
        ("plots/redraw", ""),
    ):
        (folder / name).parent.mkdir()
        (folder / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (folder / name).chmod(0o755)
    shutil.copy(PLOTS / "rebuild", folder / "plots")
    environment = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "JPEG": "yes"}
    subprocess.run([folder / "plots" / "rebuild"], env=environment, check=True)
    for line in (folder / "log").read_text().splitlines():
        yield line.split("\t")[:-1]


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_rebuild_makes_the_runs(tmp_path: Path, runs: pd.DataFrame) -> None:
    """Runs that ``plots/rebuild`` neither plans nor searches for belong to sweeps that the page
    names as kept.
    """
    planned, searches, stored = set(), set(), set(runs["run_key"])
    for command, name, *options in commands_of_rebuild(tmp_path):
        if command == "search":
            searches.add(name)
        if command == "sweep" or (command, name) == ("verify", "rate"):
            sweep = load_sweep(name if command == "sweep" else "verify-rate")
            settings = [value for option, value in itertools.pairwise(options) if option == "--set"]
            planned |= {
                run.key
                for run in as_stored(plan(set_fields(sweep, settings)), stored.__contains__).runs
            }
    others = runs[~runs["run_key"].isin(planned) & ~runs["sweep"].isin(searches)]
    kept = re.search(
        r"^- \*\*Kept runs\.\*\*.*?(?=^- |^$)",
        (PLOTS / "runs.md").read_text(),
        re.DOTALL | re.MULTILINE,
    )
    assert set(others["sweep"]) == set(re.findall(r"`([\w-]+)`", kept[0]) if kept else [])
