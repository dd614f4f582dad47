"""Output to a terminal: a stranger's text is visible and harmless, and no stream or encoding causes
a crash.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.progress import Progress

from dynabro_cli.runs.screen import terminal
from dynabro_cli.runs.screen.progress import Description
from tests.cli.conftest import Dynabro
from tests.cli.test_app import PROGRAM, environment
from tests.runs.store.made import change, read

EVIL = "\x1b[31m\x1b]0;title\x07\x9b2J\u202e\u2066\u200b\r\nforged\tline\x7f\x85\u2028"
"""Colours, a title, C1 and bidirectional controls, and what ends a line."""
SHOWN = r"\x1b[31m\x1b]0;title\x07\x9b2J\u202e\u2066\u200b\r\nforged\tline\x7f\x85\u2028"
TEXTS = {
    "runs": ["model", "method", "attack", "host", "error", "device", "owner", "note", "tags"],
    "sweeps": ["name", "host", "owner", "executor"],
}
LINES = [
    ["runs"],
    ["show", "runs/1", "--all"],
    ["query", f'SELECT *, 1 AS "{EVIL}" FROM runs'],
    ["status"],
    # from here on: commands that need not print the texts
    ["diff", "1", "2"],
    ["plot", "final", "--hue", "method"],
    ["db", "check"],
    ["sweep", "evil.yaml", "--dry-run"],
    ["evaluate", "evil.safetensors"],
    ["run", "--method", EVIL],
    ["runs", "--db", f"{EVIL}/x.db"],
]
SHOWING = 4
"""Number of first lines that print the texts."""


def harmless(text: str) -> bool:
    return all(char.isprintable() for char in text.replace("\n", ""))


@pytest.fixture
def evil(results: Path) -> Path:
    """A database in which every free text is hostile; a run and a sweep are in progress."""
    change(
        results,
        "INSERT INTO sweeps (name, status, runs, stored_before, jobs, executor, started_at, "
        "heartbeat_at, host, pid, owner)"
        " VALUES ('mine', 'running', 3, 0, 1, 'local', datetime('now'), datetime('now'), 'h', "
        "1, 'o')",
    )
    change(
        results, "UPDATE runs SET status = 'running', heartbeat_at = datetime('now') WHERE id = 3"
    )
    change(results, "UPDATE runs SET status = 'failed' WHERE id = 4")
    for table, columns in TEXTS.items():
        for column in columns:
            change(results, f"UPDATE {table} SET {column} = coalesce({column}, '') || ?", EVIL)
    (results.parent / "evil.yaml").write_text(f"name: mine\nbase: {{task: {json.dumps(EVIL)}}}\n")
    about = {
        "run_key": EVIL,
        "round": EVIL,
        "spec": json.dumps({"task": EVIL, "model": EVIL}),
        "plugins": json.dumps([EVIL]),
    }
    header = json.dumps(
        {"__metadata__": about, EVIL: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    ).encode()
    (results.parent / "evil.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + bytes(4)
    )
    return results


@given(text=st.text())
def test_no_text_is_obeyed_and_none_is_lost(text: str) -> None:
    """Every part of an escaped text can be printed, and nothing else than escapes is changed."""
    assert harmless(terminal.printable(text).replace("\t", ""))
    shown = terminal.as_line(text)
    assert shown.isprintable()
    assert shown == "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    assert terminal.as_line(shown) == shown


@pytest.mark.parametrize("words", LINES, ids=lambda words: " ".join(words[:2]))
def test_no_command_prints_what_a_terminal_obeys(
    words: list[str], dynabro: Dynabro, evil: Path
) -> None:
    outcome = dynabro(*words)
    if words in LINES[:SHOWING]:
        assert SHOWN in outcome.out
    assert "Traceback" not in outcome.err
    for text in (outcome.out, outcome.err):
        assert harmless(text), text
        assert not [line for line in text.splitlines() if line.startswith("forged")]


@pytest.mark.thorough
def test_json_and_csv_are_exact(evil: Path) -> None:
    (method,) = read(evil, "SELECT method FROM runs WHERE id = 1")[0]
    assert method.endswith(EVIL)
    query = [*PROGRAM, "query", "SELECT method FROM runs WHERE id = 1"]
    ascii_only = environment(PYTHONIOENCODING="ascii")
    printed = subprocess.run(
        [*query, "--json"], cwd=evil.parent, env=ascii_only, capture_output=True, check=True
    ).stdout
    assert json.loads(printed) == [{"method": method}]
    printed = subprocess.run(
        [*query, "--csv"], cwd=evil.parent, env=ascii_only, capture_output=True, check=True
    ).stdout
    assert printed.decode() == f'method\n"{method}"\n'


def test_a_bar_shows_what_a_terminal_would_obey() -> None:
    with Progress(Description(), disable=True) as progress:
        progress.add_task(f"[red]{EVIL}")
        # cut to the terminal's width
        shown = Description().render(progress.tasks[0]).plain.removesuffix("\u2026")
        assert f"[red]{SHOWN}".startswith(shown)
        assert len(shown) > len("[red]") + 20


def test_warnings_and_tracebacks_show_it_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        terminal.prepare()
        warnings.warn(EVIL, stacklevel=1)
    assert capsys.readouterr().err == f"dynabro: warning: {SHOWN}\n"
    sys.excepthook(ValueError, ValueError(EVIL), None)
    assert capsys.readouterr().err == f"ValueError: {terminal.printable(EVIL)}\n"
    assert harmless(terminal.printable(EVIL).replace("\t", ""))


def test_lines_and_tabs_stay_where_there_are_lines() -> None:
    assert terminal.printable("a\n\tb\r\x1b") == "a\n\tb\\r\\x1b"
    assert terminal.as_line("a\n\tb\udcff") == "a\\n\\tb\\udcff"


# --- streams and encodings


def shell(
    words: list[str], redirected: str, folder: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    command = f"{shlex.join([*PROGRAM, *words])} {redirected}"
    return subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env=environment(**variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.thorough
@pytest.mark.parametrize("words", [["runs"], ["query", "SELECT 1", "--csv"], ["--version"]])
def test_a_closed_standard_output_is_an_error_in_a_line(words: list[str], results: Path) -> None:
    done = shell(words, ">&-", results.parent)
    assert (done.returncode, done.stderr) == (
        74,
        "dynabro: the output cannot be written (Bad file descriptor); send it elsewhere\n",
    )


@pytest.mark.thorough
def test_a_run_is_stored_whatever_is_closed(folder: Path) -> None:
    done = shell(["run", "--task", "quadratic", "--budget", "4"], "<&- >&- 2>&-", folder)
    assert done.returncode == 74
    assert read(folder / "results.db", "SELECT status FROM runs") == [("finished",)]


@pytest.mark.thorough
@pytest.mark.parametrize(("redirected", "code"), [("2>&-", 66), ("<&- 2>&-", 66), (">&- 2>&-", 66)])
def test_an_error_that_nobody_reads_has_its_code(redirected: str, code: int, folder: Path) -> None:
    done = shell(["runs"], redirected, folder)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_a_sweep_from_a_closed_standard_input_is_empty(folder: Path) -> None:
    done = shell(["sweep", "-"], "<&-", folder)
    assert done.returncode == 2
    assert done.stderr.startswith("dynabro: <stdin>: it is empty")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["query", "SELECT 'é€' AS 'ü'"], 0, "\\xe9\\u20ac"),
        (["query", "SELECT ü"], 2, "\\xfc"),
        (["--help"], 0, "Usage"),
        (["run", "--help"], 0, "[default: "),
        (["show", "attacks/é"], 2, "\\xe9"),
        (["run", "--task", "quadratic", "--budget", "4", "--db", "é.db"], 0, "stored in \\xe9.db"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_terminal_without_the_letters(
    words: list[str], code: int, message: str, results: Path
) -> None:
    done = shell(words, "", results.parent, PYTHONIOENCODING="ascii:strict")
    assert done.returncode == code, done.stderr
    assert message in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize(
    "words",
    [
        ["query", "SELECT '\udcff'"],
        ["runs", "--where", "host = '\udcff'"],
        ["runs", "--db", "\udcff.db"],
    ],
)
def test_bytes_that_are_no_text(words: list[str], results: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, *map(os.fsencode, words)],
        cwd=results.parent,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (2, 66, 73)
    (line,) = done.stderr.splitlines()
    assert line.startswith("dynabro: ")
