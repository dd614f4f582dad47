"""Tags, notes, and the changes of the user's checkout."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from dynabro_cli.core.machine import checkout as checkout_module
from tests.cli.conftest import Dynabro
from tests.runs.store.made import read

FIELDS = {
    "task": "quadratic",
    "method": "sgd",
    "attack": "none",
    "aggregator": "cwmed",
    "budget": 20,
}
QUADRATIC = ["run", "-q", *(f"--{name}={value}" for name, value in FIELDS.items())]


@pytest.fixture
def checkout(folder: Path) -> Path:
    """A checkout with one change."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    for words in (
        "init -q",
        "add own.py",
        "-c user.name=me -c user.email=me@here commit -q -m first",
    ):
        (folder / "own.py").write_text("x = 1\n")
        subprocess.run(["git", *words.split()], check=True)
    (folder / "own.py").write_text("x = 2\n")
    return folder


@pytest.mark.thorough
def test_words_are_stored_changed_and_found(dynabro: Dynabro, folder: Path) -> None:
    words = "tags, note"
    assert (
        dynabro(*QUADRATIC, "--tag", "lr", "--tag", "first", "--note", "does it train?").code == 0
    )
    assert dynabro(*QUADRATIC, "--seed", "1").code == 0
    assert read(folder / "results.db", f"SELECT {words} FROM runs ORDER BY seed") == [
        ('["first", "lr"]', "does it train?"),
        (None, None),
    ]
    assert dynabro("tag", "2", "good", "--note", "it does").out == "1 run changed\n"
    assert dynabro("tag", "all", "--remove", "lr").out == "2 runs changed\n"
    assert dynabro(*QUADRATIC, "--rerun").code == 0  # a repeated run keeps them
    assert read(folder / "results.db", f"SELECT {words} FROM runs ORDER BY seed") == [
        ('["first"]', "does it train?"),
        ('["good"]', "it does"),
    ]
    assert "good   it does" in dynabro("runs").out
    assert "first: does it train?" in dynabro("show", "3").out
    (line,) = dynabro(
        "runs", "--csv", "--columns", "seed", "--where", "tags LIKE '%good%'"
    ).out.splitlines()[1:]
    assert line == "1"
    assert dynabro("db", "check").code == 0  # words are not among the rows that its digest covers
    assert dynabro("tag", "all", "--note", "").code == 0
    assert read(folder / "results.db", "SELECT COUNT(note) FROM runs") == [(0,)]


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (("1",), 2, "nothing to change. Try: dynabro tag RUN TAG"),
        (("1", "two words"), 2, "tag=two words: a tag has 1 to 64 letters"),
        (("1", "--note", "x" * 4001), 2, "note: it has 4001 characters"),
        (("99", "good"), 66, "there is no run '99'"),
        (("all", "good", "--where", "seed = 9"), 66, "where=seed = 9: it holds for no run"),
    ],
)
def test_words_that_are_not_stored(
    words: tuple[str, ...], code: int, problem: str, dynabro: Dynabro, results: Path
) -> None:
    outcome = dynabro("tag", *words)
    assert outcome.code == code
    assert outcome.problems[0].startswith(problem)
    assert read(results, "SELECT COUNT(tags) + COUNT(note) FROM runs") == [(0,)]


@pytest.mark.thorough
def test_changes_of_the_checkout_go_with_the_run(
    dynabro: Dynabro, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in ("0", "1"):
        assert dynabro(*QUADRATIC, "--seed", seed).code == 0
    # one row serves both
    assert read(checkout / "results.db", "SELECT COUNT(*) FROM diffs") == [(1,)]
    assert dynabro("show", "1", "--diff").out.splitlines()[-2:] == ["-x = 1", "+x = 2"]
    assert "dynabro show 1 --diff" in dynabro("show", "1").out
    assert dynabro("db", "merge", "results.db", "--db", "other.db").code == 0
    assert dynabro("show", "1", "--diff", "--db", "other.db").out.endswith("+x = 2\n")
    assert dynabro("db", "thin", "small.db", "--every", "1").code == 0
    assert dynabro("show", "1", "--diff", "--db", "small.db").out.endswith("+x = 2\n")
    assert dynabro("db", "thin", "nobody.db", "--every", "1", "--anonymous").code == 0
    assert read(
        checkout / "nobody.db", "SELECT (SELECT COUNT(*) FROM diffs) + COUNT(git_diff) FROM runs"
    ) == [(0,)]
    assert dynabro("db", "remove", "--where", "TRUE", "--yes", "--db", "other.db").code == 0
    assert read(checkout / "other.db", "SELECT COUNT(*) FROM diffs") == [(0,)]
    monkeypatch.setenv("DYNABRO_GIT_DIFF", "off")
    assert dynabro(*QUADRATIC, "--seed", "2").code == 0
    outcome = dynabro("show", "3", "--diff")
    assert outcome.code == 66
    assert outcome.problems[0].startswith("run 3: no changes are stored, because ")


def test_a_strangers_checkout_runs_no_program(dynabro: Dynabro, checkout: Path) -> None:
    program = checkout / "program"
    program.write_text(f"#!/bin/sh\necho $0 $* >> {checkout}/ran\ncat\n")
    program.chmod(0o755)
    for name in (
        "core.fsmonitor",
        "diff.external",
        "diff.d.textconv",
        "filter.f.clean",
        "filter.f.smudge",
        "filter.f.process",
    ):
        subprocess.run(["git", "config", name, str(program)], check=True)
    subprocess.run(["git", "config", "filter.f.required", "true"], check=True)
    subprocess.run(["git", "config", "core.hooksPath", str(checkout)], check=True)
    shutil.copy(program, checkout / "post-index-change")
    (checkout / ".gitattributes").write_text("* filter=f diff=d\n")
    outcome = dynabro(*QUADRATIC)
    assert outcome.code == 0
    assert not (checkout / "ran").exists()
    assert dynabro("show", "1", "--diff").out.endswith("+x = 2\n")
    (line,) = outcome.problems
    assert line.startswith("warning: the changes of this checkout (")
    assert line.endswith("and copies of the database have them. Try: DYNABRO_GIT_DIFF=off")
    assert dynabro(*QUADRATIC, "--seed", "1").err == ""  # the changes are stored once


def test_many_changes_are_not_stored(
    dynabro: Dynabro, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkout_module, "MOST_DIFF", 10)
    outcome = dynabro(*QUADRATIC)
    assert outcome.problems[0].startswith("warning: the changes in the checkout are not stored: ")
    assert read(checkout / "results.db", "SELECT COUNT(*) FROM diffs") == [(0,)]
