"""Commands that write files: none of them replaces a database, what belongs to it, a sweep, or a
file of another kind.
"""

from __future__ import annotations

import shutil
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Dynabro
from tests.cli.test_app import call
from tests.cli.test_select import GRID, make_runs
from tests.command_lines import commands, program

Words = Callable[[Path], list[str]]
WRITERS: dict[str, Words] = {
    "report": lambda path: ["report", "--out", str(path)],
    "export": lambda path: ["export", "curves", "--csv", str(path)],
    "db backup": lambda path: ["db", "backup", str(path)],
    "db thin": lambda path: ["db", "thin", str(path), "--every", "10"],
    "select": lambda path: [
        "select",
        "tiny.yaml",
        "--set",
        "seeds=0",
        "--yaml",
        str(path),
        "--db",
        "tiny.db",
    ],
}
PLOT = [
    "plot",
    "final",
    "--format",
    "png,svg",
    "--where",
    "task = 'digits' AND method = 'sgd'",
    "--out",
]
READ_ONLY_PATHS = {"data_dir", "saved"}


def parameters(words: tuple[str, ...]) -> dict[str, Any]:
    """The types of a command's parameters, by name."""
    command = program()
    for word in words:
        command = command.commands[word]
    return typing.get_type_hints(command.callback)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith("-shm")  # readers share it, too
    }


@pytest.fixture(scope="session")
def tiny_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``select`` chooses from, to be copied."""
    folder = tmp_path_factory.mktemp("tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "tiny.yaml").write_text(GRID)
        make_runs("tiny.yaml", "seeds=0")
    return folder / "results.db"


@pytest.fixture
def prepared(folder: Path, results: Path, tiny_database: Path) -> Path:
    """A database with a log, another one with what ``select`` needs, and two sweeps."""
    shutil.copy(tiny_database, folder / "tiny.db")
    (folder / "results.db.d" / "logs").mkdir(parents=True)
    (folder / "results.db.d" / "logs" / "key.log").write_text("begun")
    (folder / "results.db-wal").touch()
    (folder / "tiny.db-wal").touch()  # as a reader makes it
    (folder / "tiny.yaml").write_text(GRID)
    (folder / "grid.csv").write_text(GRID)
    (folder / "notes.txt").write_text("precious")
    (folder / "link").symlink_to("results.db")
    return folder


MAKE_RUNS = {"run", "sweep", "search"}
"""Commands whose ``--force`` is about the memory that runs need."""


CREATE = {"new"}
"""Commands that replace no file, and so have no ``--force``; see
tests/core/registration/test_own_components.py.
"""


def test_every_command_with_a_file_to_write_has_force() -> None:
    writers = {
        *WRITERS,
        "plot",
        "leaderboard",
        "demo",
        "run",
        "sweep",
    }  # plot and demo write through one Studio; run: tests/cli/test_save_model.py
    for words in commands():
        own = parameters(words)
        paths = {
            name for name, kind in own.items() if kind is Path or Path in typing.get_args(kind)
        }
        assert bool(paths - READ_ONLY_PATHS) == (" ".join(words) in writers | CREATE), words
        assert ("force" in own) == (" ".join(words) in {*writers, *MAKE_RUNS}), words


DATABASES = [
    "results.db",
    "./results.db",
    "link",
]


@pytest.mark.thorough
@pytest.mark.parametrize("force", [[], ["--force"]], ids=["plain", "force"])
@pytest.mark.parametrize("command", WRITERS)
def test_databases_stay(command: str, force: list[str], dynabro: Dynabro, prepared: Path) -> None:
    before = contents(prepared)
    for name in DATABASES:
        outcome = dynabro(*WRITERS[command](Path(name)), *force)
        # 2: a database that is thinned into itself
        assert (outcome.code, outcome.out) in ((73, ""), (2, "")), name
        (line,) = outcome.problems
        assert line.startswith(
            name.removeprefix("./")
            if outcome.code == 73
            else "results.db is to be thinned into itself"
        ), line
        assert contents(prepared) == before, name


@pytest.mark.thorough
@pytest.mark.parametrize("command", [command for command in WRITERS if command != "select"])
def test_another_file_needs_force(command: str, dynabro: Dynabro, prepared: Path) -> None:
    before = contents(prepared)
    outcome = dynabro(*WRITERS[command](Path("notes.txt")))
    assert (outcome.code, outcome.out) == (73, "")
    (line,) = outcome.problems
    assert line.startswith("notes.txt is there already")
    assert contents(prepared) == before
    assert dynabro(*WRITERS[command](Path("notes.txt")), "--force").code == 0
    after = contents(prepared)
    assert after.pop("notes.txt") != before.pop("notes.txt")
    assert after == before


@pytest.fixture(scope="session")
def drawn() -> dict[str, bytes]:
    """Files that ``PLOT`` writes, filled by the first test that draws it."""
    return {}


@pytest.mark.thorough
@pytest.mark.parametrize("victim", ["final.png", "final.runs.csv"])
def test_plots(victim: str, dynabro: Dynabro, prepared: Path, drawn: dict[str, bytes]) -> None:
    out = prepared / "out"
    if not drawn:
        assert dynabro(*PLOT, "out").code == dynabro(*PLOT, "out").code == 0
        drawn |= contents(out)
    out.mkdir(exist_ok=True)
    whole = dict(drawn)
    assert set(whole) == {"final.png", "final.svg", "final.csv", "final.runs.csv"}
    for name in whole:
        (out / name).write_bytes(whole[name][:10_000])
    (out / victim).write_bytes((prepared / "results.db").read_bytes())
    before = contents(out)
    for force in ([], ["--force"]):
        outcome = dynabro(*PLOT, "out", *force)
        assert (outcome.code, outcome.out) == (73, "")
        (line,) = outcome.problems
        assert line.startswith(f"out/{victim} is ")
        assert contents(out) == before, "not one file is written if one of them cannot be"
    (out / victim).write_bytes(b"another program's")
    assert dynabro(*PLOT, "out").code == 0
    assert contents(out) == whole


@pytest.mark.thorough
def test_a_selection_takes_the_place_of_an_older_one(dynabro: Dynabro, prepared: Path) -> None:
    assert dynabro(*WRITERS["select"](Path("chosen.yaml"))).code == 0
    assert dynabro(*WRITERS["select"](Path("chosen.yaml"))).code == 0
    assert dynabro(*WRITERS["select"](Path("notes.txt"))).code == 73
    assert (prepared / "notes.txt").read_text() == "precious"
    assert dynabro(*WRITERS["select"](Path("notes.txt")), "--force").code == 0
    assert (prepared / "notes.txt").read_bytes() == (prepared / "chosen.yaml").read_bytes()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
def test_standard_output(name: str, dynabro: Dynabro, results: Path) -> None:
    dynabro("export", "final", "--csv", "out.csv")
    whole = Path("out.csv").read_bytes()
    done = call("export", "final", "--csv", name, folder=results.parent, capture_output=True)
    assert (done.returncode, done.stdout.encode()) == (0, whole)
    # behind what is there, as in `>> all.csv`
    with Path("all.csv").open("wb", buffering=0) as file:
        file.write(b"first\n")
        call("export", "final", "--csv", name, folder=results.parent, stdout=file)
    assert Path("all.csv").read_bytes() == b"first\n" + whole
