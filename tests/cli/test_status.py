"""``dynabro status``."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dynabro_cli.cli.read import status
from dynabro_cli.core.errors import BusyError, DisconnectedError
from dynabro_cli.runs.executors import interruptions
from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.read import status as store_status
from tests.cli.conftest import Dynabro
from tests.runs.store.made import change, read, record, started, whole_run
from tests.runs.store.test_status import OTHERS, entry, half_way
from tests.runs.store.test_sweep_entry import gone

PROGRAM = [sys.executable, "-m", "dynabro_cli", "status"]
CELL = "digits, momentum:beta=0.99, cwtm, sf, periodic:K=20, seed 3"


@pytest.fixture
def database(folder: Path) -> Path:
    """An empty database, named as the default is."""
    open_for_writing("results.db")
    return folder / "results.db"


@pytest.fixture
def views(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make something happen between two views of ``--watch``, then Ctrl-C."""

    def between(*happenings: Callable[[], object]) -> None:
        left = iter(happenings)
        pause = time.sleep

        def sleep(seconds: float) -> None:
            if threading.current_thread() is not threading.main_thread():
                return pause(seconds)
            happening = next(left, None)
            if happening is None:
                raise KeyboardInterrupt
            happening()
            return None

        monkeypatch.setattr(status.time, "sleep", sleep)

    return between


def test_a_sweep_in_progress(dynabro: Dynabro, database: Path) -> None:
    engine = open_for_writing(str(database))
    with entry(engine), half_way(engine) as recorder:
        record(engine, whole_run(key=OTHERS[0]), sweep="small")
        record(engine, [started(OTHERS[1])], sweep="small").failed("bang \x1b[2J\nand more")
        outcome = dynabro("status")
        assert (outcome.code, outcome.err) == (0, "")
        lines = outcome.out.splitlines()
        assert lines[0].startswith("results.db, 20")
        assert (
            lines[2]
            == "small: 6 runs: 1 stored before, 1 finished, 1 failed, 1 in progress, 2 to go"
        )
        assert " so far, about " in lines[3]
        assert f"; 2 at a time (local), process {os.getpid()} on " in lines[3]
        assert lines[4].split() == " ".join(status.COLUMNS).split()
        begin, _, end = lines[6].partition(f"  {CELL}  ")
        assert begin.split() == [str(recorder.run_id), "40%", "accuracy", "0.2500", "\u2581"]
        words = end.split()
        assert words[:3] == ["8", "20/50", "20"]
        assert words[4:6] == ["s", "ago"]
        assert words[6].endswith(f":{os.getpid()}")
        assert "runs: 1 failed, 1 finished, 1 running" in lines
        assert lines[-1] == f"  3  {CELL}: bang \\x1b[2J"
        (sweep,) = json.loads(dynabro("status", "--json").out)["sweeps"]
        assert (sweep["name"], sweep["to_go"], sweep["in_progress"][0]["byzantine_now"]) == (
            "small",
            2,
            8,
        )
    lines = dynabro("status").out.splitlines()
    assert lines[2].startswith("last sweep: small, finished ")
    assert lines[2].endswith(": 6 runs: 1 stored before, 1 finished, 1 failed, 3 not run")
    assert "nothing is in progress" in lines
    change(database, "DELETE FROM sweep_runs")  # as in a copy: it is not known what was run
    assert dynabro("status").out.splitlines()[2].endswith(": 6 runs: 1 stored before")


def test_a_sweep_that_was_killed_after_its_last_run_is_ended_by_the_same_command(
    dynabro: Dynabro, folder: Path
) -> None:
    (folder / "small.yaml").write_text("name: small\nbase: {task: quadratic, budget: 20}")
    command = ("sweep", "small.yaml", "--jobs", "0")
    assert dynabro(*command).code == 0
    change("results.db", "UPDATE sweeps SET status = 'running', ended_at = NULL, owner = ?", gone())
    assert "small looks dead" in dynabro("status").out
    for _ in range(2):
        assert dynabro(*command).code == 0
        assert "looks dead" not in dynabro("status").out
    assert read("results.db", "SELECT status FROM sweeps") == [("running",), ("finished",)]


def test_what_looks_dead(dynabro: Dynabro, database: Path) -> None:
    engine = open_for_writing(str(database))
    with entry(engine), half_way(engine) as recorder:
        change(database, "UPDATE runs SET owner = ?", gone())
        change(database, "UPDATE sweeps SET owner = ?", gone())
        text = dynabro("status").out
        assert f"small looks dead (process {os.getpid()} on " in text
        assert " ago, looks dead " in text
        change(database, "UPDATE runs SET owner = ?", recorder.owner)


def test_nothing_yet(dynabro: Dynabro, database: Path) -> None:
    assert dynabro("status").out.splitlines()[1:] == [
        "",
        "nothing is in progress",
        "",
        "runs: none",
    ]
    found = json.loads(dynabro("status", "--json").out)
    assert (found["sweeps"], found["counts"], found["last_sweep"]) == ([], {}, None)


def test_no_database(dynabro: Dynabro, folder: Path) -> None:
    for options in ([], ["--json"]):
        outcome = dynabro("status", *options)
        assert (outcome.code, outcome.out) == (66, "")
        assert outcome.problems[0].startswith("there is no database results.db")


@pytest.mark.parametrize("interval", ["nan", "inf", "0"])
def test_an_interval_that_is_none(dynabro: Dynabro, database: Path, interval: str) -> None:
    assert dynabro("status", "--watch", "--interval", interval).code == 2


# --- again and again


def test_watching_without_a_terminal(
    dynabro: Dynabro, database: Path, views: Callable[..., None]
) -> None:
    engine = open_for_writing(str(database))
    views(lambda: record(engine, whole_run()), lambda: None)
    outcome = dynabro("status", "--watch")
    assert (outcome.code, outcome.err) == (0, "")
    assert [line for line in outcome.out.splitlines() if line.startswith("runs: ")] == [
        "runs: none",
        "runs: 1 finished",
        "runs: 1 finished",
    ]


@pytest.mark.parametrize(
    "words", [["status", "--watch"], ["status", "--watch", "--json"]], ids=" ".join
)
def test_sigterm_ends_a_view(
    words: list[str], dynabro: Dynabro, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_for_writing(str(database))
    with entry(engine), half_way(engine) as recorder:
        pause = time.sleep

        def killed(seconds: float) -> None:
            if threading.current_thread() is threading.main_thread():
                os.kill(os.getpid(), signal.SIGTERM)
            pause(seconds)  # other threads pause, too, and a signal of theirs would be a second one

        monkeypatch.setattr(status.time, "sleep", killed)
        before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
        monkeypatch.setattr(interruptions, "arrived", [])
        try:
            outcome = dynabro(*words)
        finally:
            signal.signal(signal.SIGTERM, before)
        assert recorder.run_id is not None
    assert outcome.code == 75
    (line,) = outcome.problems
    assert line.startswith("terminated; th")
    assert "run the command again" not in line


def test_watching_as_json_is_a_line_each(
    dynabro: Dynabro, database: Path, views: Callable[..., None]
) -> None:
    engine = open_for_writing(str(database))
    views(lambda: record(engine, whole_run()))
    outcome = dynabro("status", "--watch", "--json")
    assert outcome.code == 0
    assert [json.loads(line)["counts"] for line in outcome.out.splitlines()] == [
        {},
        {"finished": 1},
    ]


@pytest.mark.parametrize(
    "error", [BusyError("locked"), DisconnectedError("no server")], ids=["locked", "server"]
)
@pytest.mark.parametrize("as_json", [False, True])
def test_what_passes_is_told_and_waited_for(
    dynabro: Dynabro,
    database: Path,
    views: Callable[..., None],
    error: Exception,
    as_json: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = store_status.read_status

    def fail(*_: object, **__: object) -> None:
        raise error

    views(
        lambda: monkeypatch.setattr(store_status, "read_status", fail),
        lambda: monkeypatch.setattr(store_status, "read_status", real),
    )
    outcome = dynabro("status", "--watch", *(["--json"] if as_json else []))
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.count('"counts"' if as_json else "runs: none") == 2
    assert outcome.out.count("; trying again") == (0 if as_json else 1)


def test_a_database_that_vanishes_ends_it(
    dynabro: Dynabro, database: Path, views: Callable[..., None]
) -> None:
    views(lambda: [path.unlink() for path in database.parent.iterdir()])
    outcome = dynabro("status", "--watch")
    assert outcome.code == 66
    assert outcome.out.count("runs: none") == 1
    assert outcome.problems[0].startswith("there is no database results.db")


def in_terminal(folder: Path, *words: str, until: Callable[[bytes], bool]) -> tuple[bytes, int]:
    """Run a command in a terminal until it has shown what is wanted, then Ctrl-C; return all that
    it showed, and its end.
    """
    master, slave = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "20"}
    process = subprocess.Popen(
        [*PROGRAM, *words],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=folder,
        env=environment,
        # a test run in the background may have it ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(slave)
    shown, end, asked = b"", time.monotonic() + 60, False
    while time.monotonic() < end:
        if select.select([master], [], [], 0.05)[0]:
            try:
                shown += os.read(master, 1 << 16)
            except OSError:  # its other end is closed
                break
        elif process.poll() is not None:
            break
        if not asked and until(shown):
            asked = True
            process.send_signal(signal.SIGINT)
    process.kill()
    os.close(master)
    return shown, process.wait()


@pytest.mark.thorough
def test_watching_in_a_terminal(database: Path, folder: Path) -> None:
    engine = open_for_writing(str(database))
    with entry(engine), half_way(engine):
        words = ("--watch", "--interval", "0.1")
        shown, code = in_terminal(
            folder, *words, until=lambda text: text.count(b"6 runs: 1 stored") >= 3
        )
    assert code == 0
    assert b"\x1b[1A" in shown  # drawn in place
    assert shown.endswith(b"\x1b[?25h")  # with the cursor back
    assert b"Traceback" not in shown


def test_a_watch_waits_for_a_database(
    dynabro: Dynabro, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line says so, and the view ends as usual."""

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dynabro_cli.cli.read.status.time.sleep", interrupt)
    (folder / "empty.db").touch()
    for name in ("later.db", "empty.db"):
        outcome = dynabro("status", "--watch", "--db", name)
        assert outcome.code == 0
        assert (
            f"there is no database {name} yet; waiting for a run or a sweep that makes it"
            in outcome.out
        )
