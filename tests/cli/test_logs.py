"""``dynabro logs``."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.write.side_files import SideFiles
from tests.cli.conftest import Dynabro
from tests.runs.store.made import KEY, change, read, record, started, whole_run


@pytest.fixture
def log(folder: Path) -> Path:
    """The log of run 1, which has ended, of three lines."""
    record(open_for_writing("results.db"), whole_run())
    path = SideFiles.of("results.db").prepare_log(KEY)
    path.write_bytes(b"one\ntwo\nthree\n")
    return path


@pytest.mark.parametrize("name", ["1", "runs/1", KEY, KEY[:8], f"runs/{KEY[:8]}"])
def test_a_log_as_it_is(dynabro: Dynabro, log: Path, name: str) -> None:
    outcome = dynabro("logs", name)
    assert (outcome.code, outcome.out, outcome.err) == (0, "one\ntwo\nthree\n", "")


@pytest.mark.thorough
def test_every_byte_is_there_where_there_is_no_terminal(log: Path, folder: Path) -> None:
    content = bytes(range(256)) * 1000
    log.write_bytes(content)
    answer = subprocess.run(
        [sys.executable, "-m", "dynabro_cli", "logs", "1"], capture_output=True, cwd=folder
    )
    assert (answer.returncode, answer.stdout) == (0, content)


def test_a_reader_that_leaves_is_not_an_error(log: Path, folder: Path) -> None:
    log.write_bytes(b"line\n" * 100_000)
    logs = [sys.executable, "-m", "dynabro_cli", "logs", "1"]
    with subprocess.Popen(logs, stdout=-1, stderr=-1, cwd=folder) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"line\n"
        process.stdout.close()
        assert process.stderr is not None
        assert (process.stderr.read(), process.wait(60)) == (b"", 0)


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        ("0", ""),
        ("1", "three\n"),
        ("2", "two\nthree\n"),
        ("3", "one\ntwo\nthree\n"),
        ("9", "one\ntwo\nthree\n"),
    ],
)
def test_the_last_lines(dynabro: Dynabro, log: Path, count: str, shown: str) -> None:
    assert dynabro("logs", "1", "--tail", count).out == shown


@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n"])
def test_the_last_lines_of_any_end(dynabro: Dynabro, log: Path, end: bytes) -> None:
    content = b"a\n\nbb\nlonger line" + end
    log.write_bytes(content)
    for count in range(1, 7):
        lines = content.splitlines(keepends=True)
        assert dynabro("logs", "1", "--tail", str(count)).out.encode() == b"".join(lines[-count:])


def test_where_it_is(dynabro: Dynabro, log: Path) -> None:
    """So that ``tail -f`` can follow it."""
    assert dynabro("logs", "1", "--path").out == f"{log}\n"


def test_an_empty_log(dynabro: Dynabro, log: Path) -> None:
    log.write_bytes(b"")
    for options in ([], ["--tail", "3"]):
        outcome = dynabro("logs", "1", *options)
        assert (outcome.code, outcome.out, outcome.err) == (0, "", "")


# --- on a terminal


def test_a_terminal_is_told_nothing_but_text(
    dynabro: Dynabro, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write_bytes(
        "tab\tand ümlaut\n\x1b]0;title\x07\x1b[2J 10%\r20%\r\n\x9b \u202e".encode() + b"\xff\n"
    )
    shown: list[str] = []
    terminal = SimpleNamespace(isatty=lambda: True, write=shown.append, flush=lambda: None)
    monkeypatch.setattr(sys, "stdout", terminal)
    assert dynabro("logs", "1").code == 0
    assert (
        "".join(shown)
        == "tab\tand ümlaut\n\\x1b]0;title\\x07\\x1b[2J 10%\n20%\n\\x9b \\u202e\\xff\n"
    )


# --- without a log


def test_no_log(dynabro: Dynabro, log: Path, folder: Path) -> None:
    log.unlink()
    outcome = dynabro("logs", "1")
    assert (outcome.code, outcome.out) == (66, "")
    (problem,) = outcome.problems
    assert problem.startswith(
        f"run 1 ran here, and its log {folder}/results.db.d/logs/{KEY}.log is not there. Try: "
    )
    assert "DYNABRO_STATE" in problem
    change("results.db", "UPDATE runs SET host = 'elsewhere'")
    assert dynabro("logs", "1").problems[0].startswith("run 1 ran on elsewhere, and its log ")


def test_a_folder_in_its_place(dynabro: Dynabro, log: Path) -> None:
    log.unlink()
    log.mkdir()
    assert " cannot be read. Try: " in dynabro("logs", "1").problems[0]


def test_no_such_run(dynabro: Dynabro, log: Path) -> None:
    assert dynabro("logs", "7").problems == [
        "there is no run '7'. Try: dynabro runs, which lists ids and keys"
    ]


def test_logs_elsewhere(
    dynabro: Dynabro, log: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.move(folder / "results.db.d", folder / "state")
    monkeypatch.setenv("DYNABRO_STATE", str(folder / "state"))
    assert dynabro("logs", "1").out == "one\ntwo\nthree\n"


def test_the_log_of_a_repetition_in_progress_is_the_runs(dynabro: Dynabro, log: Path) -> None:
    record(open_for_writing("results.db"), [started()])
    ((key,),) = read("results.db", "SELECT run_key FROM runs WHERE id = 2")
    assert key.endswith("+rerun")
    assert dynabro("logs", "2").out == "one\ntwo\nthree\n"


def test_the_example_works(dynabro: Dynabro, log: Path) -> None:
    (line,) = [
        line.strip() for line in dynabro("logs", "--help").out.splitlines() if "Example: " in line
    ]
    words = line.removeprefix("Example: dynabro ").split()
    assert dynabro(*words).out == "one\ntwo\nthree\n"


# --- runs that have none


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["run", "sweep"])
def test_runs_without_logs_are_made_and_it_is_told_once(
    dynabro: Dynabro, folder: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "file").touch()
    monkeypatch.setenv("DYNABRO_STATE", "file")
    (folder / "two.yaml").write_text(
        "name: two\nbase: {task: quadratic, budget: 20}\nseeds: 0..1\n"
    )
    words = (
        ["run", "--task", "quadratic", "--budget", "20"]
        if command == "run"
        else ["sweep", "two.yaml", "--jobs", "0"]
    )
    outcome = dynabro(*words, "--quiet")
    assert outcome.code == 0
    (problem,) = outcome.problems
    assert problem.startswith(
        "warning: file/checkpoints and file/logs cannot be written (it is not a folder); "
    )
    assert "; runs continue without logs; " in problem
    assert read("results.db", "SELECT DISTINCT status FROM runs") == [("finished",)]
