"""A run has one owner: who may begin it, who may go on with it, and who may write it no more."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from dynabro_cli.core import events
from dynabro_cli.core.errors import LostRunError, RunHeldError
from dynabro_cli.core.machine import macos
from dynabro_cli.runs.store import ownership
from dynabro_cli.runs.store.environments import VERSIONS
from dynabro_cli.runs.store.ownership import heartbeats, new_owner, presumed_dead, silence
from dynabro_cli.runs.store.write import recorder as recorder_module
from dynabro_cli.runs.store.write import standing
from dynabro_cli.runs.store.write.recorder import Recorder
from dynabro_cli.runs.store.write.side_files import SideFiles
from tests.runs.store.made import (
    KEY,
    a_file,
    change,
    checkpointed,
    evaluated,
    finished,
    read,
    record,
    rounds,
    silent,
    started,
    totals,
    whole_run,
)


@pytest.fixture(params=["sqlite", "postgresql"])
def backend(request: pytest.FixtureRequest) -> str:
    """Both kinds; a test of one kind only names it by ``parametrize``."""
    kind: str = request.param
    return kind


@pytest.fixture
def files(engine: Engine, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> SideFiles:
    monkeypatch.setenv("DYNABRO_STATE", str(tmp_path / "state"))
    return SideFiles.of(engine.url)


def everything(database: str) -> list[Any]:
    """All that is in a database but ids, times and who wrote it."""
    runs = "SELECT run_key, status, rounds, budget_spent, final_accuracy, checkpoint, owner, error"
    return [
        read(database, f"{runs}, {VERSIONS} FROM runs ORDER BY run_key"),
        read(database, "SELECT round, budget, gradient_norm FROM rounds ORDER BY run_id, round"),
        read(
            database, "SELECT round, samples, test_accuracy FROM evaluations ORDER BY run_id, round"
        ),
        read(database, "SELECT tick, byzantine FROM identities ORDER BY run_id, tick"),
        read(database, "SELECT worst_window, aggregation_error FROM recovery ORDER BY run_id"),
    ]


@pytest.mark.usefixtures("clock")
def test_a_silent_owner_is_replaced_and_writes_no_more(engine: Engine, database: str) -> None:
    first = record(engine, [started(), rounds(0, 3)])
    with pytest.raises(RunHeldError, match="is in progress in process"):
        record(engine, [started()])
    silent(database, first)
    second = record(engine, [started(), rounds(0, 1)])
    with pytest.raises(LostRunError, match="was taken over by another process"):
        first.record(finished(4))
    assert first.run_id is None
    first.failed("nothing is written of a run that is not there any more")
    assert read(database, "SELECT status, rounds FROM runs") == [("running", 0)]
    for event in (evaluated(2), finished(2)):
        second.record(event)
    assert read(database, "SELECT status, rounds, owner FROM runs") == [("finished", 2, None)]
    assert read(database, "SELECT round FROM rounds ORDER BY round") == [(0,), (1,)]


ENDINGS = (Recorder.interrupted, lambda it: it.failed("x"), lambda it: it.record(checkpointed(4)))


@pytest.mark.parametrize("ending", ENDINGS)
def test_whatever_a_replaced_owner_writes(
    ending: Any, engine: Engine, database: str, files: SideFiles
) -> None:
    first = silent(database, record(engine, [started(), rounds(0, 3)]))
    record(engine, whole_run())
    before = everything(database)
    with pytest.raises(LostRunError):
        ending(first)
    assert everything(database) == before


def test_every_commit_is_a_sign_of_life(engine: Engine, database: str) -> None:
    recorder = silent(database, record(engine, [started(), rounds(0, 3)]))
    recorder.record(checkpointed(4))
    with pytest.raises(RunHeldError):
        record(engine, [started()])


def test_heartbeats_keep_a_silent_owner_alive(
    engine: Engine, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNABRO_LEASE_SECONDS", "0.4")
    recorder, other = (silent(database, record(engine, [started(key)])) for key in (KEY, "cd" * 32))
    with heartbeats(engine, [recorder.owner]):
        while read(database, "SELECT COUNT(heartbeat_clock) FROM runs") != [(1,)]:
            assert other.run_id is not None
        with pytest.raises(RunHeldError):
            record(engine, [started()])
        record(engine, [started("cd" * 32)])


@pytest.fixture
def dead() -> str:
    """The name of an owner whose process has ended."""
    program = "from dynabro_cli.runs.store.ownership import new_owner; print(new_owner())"
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.thorough
def test_a_process_that_has_ended_is_known_to_be_dead_at_once(
    engine: Engine, database: str, dead: str
) -> None:
    record(engine, [started()])
    change(database, f"UPDATE runs SET owner = '{dead}'")
    record(engine, whole_run())
    assert read(database, "SELECT status FROM runs") == [("finished",)]


def row(
    owner: str | None, heard: float | None, *, clock: str | None = None, behind: float = 0
) -> dict[str, Any]:
    """A row whose writer was heard of so many seconds ago by the database's clock, or ``behind`` by
    a monotonic one.
    """
    moment = None if heard is None else NOW - dt.timedelta(seconds=heard)
    steady = None if clock is None else f"{clock}:{time.monotonic() - behind:.3f}"
    return {"owner": owner, "heartbeat_at": moment, "heartbeat_clock": steady}


NOW = dt.datetime(2026, 1, 1, 12)
DAY = 86400.0


@pytest.mark.thorough
def test_when_an_owner_is_presumed_dead(dead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    me = new_owner()
    machine, pid, beginning, _ = me.split(":")
    for owner, heard, expected in (
        (me, 100, False),
        (me, DAY, False),  # it runs, whatever the clock says
        (me, -DAY, False),
        (me, None, False),
        (dead, 100, True),
        (dead, -DAY, True),
        (f"elsewhere:{dead.partition(':')[2]}", 100, False),  # its process cannot be seen from here
        (f"elsewhere:{pid}:1:ab", 130, True),
        (f"{machine}:{pid}:{int(beginning) + 1}:ab", 100, True),  # another process of that number
        (None, None, True),
        ("no such form", 100, False),
        ("no such form", None, True),
        (f"{machine}:{'9' * 30}:1:ab", 100, False),  # no such number can be asked for
        (f"{machine}:{'9' * 30}:1:ab", 130, True),
    ):
        assert presumed_dead(row(owner, heard), NOW) is expected, (owner, heard)
    monkeypatch.setenv("DYNABRO_LEASE_SECONDS", "10")
    assert presumed_dead(row("elsewhere:1:1:ab", 11), NOW)


@pytest.mark.parametrize("heard", [100, DAY, -DAY])
def test_silence_on_one_machine_is_measured_by_a_clock_that_nobody_sets(heard: float) -> None:
    """As of a process in another container, which cannot be seen, but whose clock runs as this
    one's.
    """
    clock = ownership._clock()
    assert clock is not None
    assert not presumed_dead(row("elsewhere:1:1:ab", heard, clock=clock, behind=100), NOW)
    assert presumed_dead(row("elsewhere:1:1:ab", heard, clock=clock, behind=130), NOW)
    assert silence(row("elsewhere:1:1:ab", heard, clock=clock, behind=100), NOW) == pytest.approx(
        100, abs=1
    )
    other = row("elsewhere:1:1:ab", heard, clock="another", behind=1000)
    assert presumed_dead(other, NOW) is (heard == DAY)
    assert silence(other, NOW) == max(0, heard)
    assert presumed_dead(row("elsewhere:1:1:ab", DAY) | {"heartbeat_clock": f"{clock}:never"}, NOW)


def test_a_stopped_process_is_presumed_dead_when_it_is_silent() -> None:
    program = """
from dynabro_cli.runs.store.ownership import new_owner
print(new_owner(), flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        owner, clock = process.stdout.readline().strip(), ownership._clock()
        late, lately = (row(owner, DAY, clock=clock, behind=behind) for behind in (130, 100))
        assert not presumed_dead(late, NOW)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert presumed_dead(late, NOW)
        assert not presumed_dead(lately, NOW)
        process.send_signal(signal.SIGCONT)
        os.waitid(os.P_PID, process.pid, os.WCONTINUED | os.WNOWAIT)
        assert not presumed_dead(late, NOW)
        process.kill()
        process.wait()
        assert presumed_dead(lately, NOW)


def test_a_process_of_which_nothing_is_known_is_judged_by_its_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As another user's where the system hides it, or any where there is no /proc."""
    me = new_owner()
    monkeypatch.setattr(
        Path, "read_text", lambda path: (_ for _ in ()).throw(FileNotFoundError(2, "hidden"))
    )
    assert ownership._process(os.getpid()) == ("", False)
    assert not presumed_dead(row(me, 100), NOW)
    assert presumed_dead(row(me, 130), NOW)


@pytest.fixture
def fresh_identity() -> Iterator[None]:
    """Forget what this process has found out about its machine, before and after the test."""
    ownership._machine.cache_clear()
    ownership._clock.cache_clear()
    yield
    ownership._machine.cache_clear()
    ownership._clock.cache_clear()


LINKS = {"/proc/self": str(os.getpid()), "/proc/self/ns/pid": "pid:[1]"}


@pytest.mark.usefixtures("fresh_identity")
@pytest.mark.parametrize(
    ("boot", "links", "system", "identified"),
    [
        ("a start", LINKS, "Linux", True),
        (None, LINKS, "Linux", False),
        ("a start", {}, "Linux", False),  # a sandbox that hides most of /proc
        ("a start", LINKS | {"/proc/self": "123456"}, "Linux", False),  # another name space's /proc
        ("a start", {}, "Darwin", True),  # it has no name spaces
        (None, {}, "Darwin", False),
        (None, {}, "FreeBSD", False),
    ],
)
def test_a_death_is_proved_only_on_a_machine_that_is_identified(
    boot: str | None,
    links: dict[str, str],
    system: str,
    identified: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here as on another machine of the same name: its process numbers say nothing of it."""

    def readlink(path: str) -> str:
        if path in links:
            return links[path]
        raise FileNotFoundError(2, "hidden")

    monkeypatch.setattr(os, "readlink", readlink)
    monkeypatch.setattr(ownership, "_boot", lambda: boot)
    monkeypatch.setattr(ownership.platform, "system", lambda: system)
    gone = f"{ownership._machine()}:999999999:1:ab"
    ownership._machine.cache_clear()  # as in another process
    assert presumed_dead(row(gone, 100), NOW) is identified
    assert presumed_dead(row(gone, 130), NOW)
    assert not presumed_dead(row(new_owner(), 100), NOW)


@pytest.mark.usefixtures("fresh_identity")
def test_macos_names_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class System:
        """The C library of macOS, as far as it is asked."""

        @staticmethod
        def sysctlbyname(name: bytes, text: Any, size: Any, new: None, length: Any) -> int:
            assert (name, new, length) == (b"kern.bootsessionuuid", None, 0)
            assert size._obj.value == 64
            text.value = b"0C7F5C40-5A3C-4E4F-8C3B-2D2A0D4B8C11"
            size._obj.value = 37
            return 0

    read_text = Path.read_text

    def hidden(path: Path, *words: Any, **more: Any) -> str:
        if str(path).startswith("/proc"):
            raise FileNotFoundError(2, "no /proc")
        return read_text(path, *words, **more)

    monkeypatch.setattr(Path, "read_text", hidden)
    monkeypatch.setattr(macos.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(macos.ctypes, "CDLL", lambda name: System)
    assert ownership._boot() == "0C7F5C40-5A3C-4E4F-8C3B-2D2A0D4B8C11"
    clock = ownership._clock()
    # a closed lid stops the monotonic clock, and time by the other clock goes on
    assert not presumed_dead(row("elsewhere:1:1:ab", DAY, clock=clock, behind=100), NOW)


def test_a_clock_that_is_set_forward_evicts_nobody(
    engine: Engine, database: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = record(engine, [started(), rounds(0, 3)])
    late = dt.datetime.now(dt.UTC).replace(tzinfo=None) + dt.timedelta(days=1)
    for module in (standing, recorder_module, ownership):
        monkeypatch.setattr(module, "database_time", lambda connection: late)
    with pytest.raises(RunHeldError, match=r"last heartbeat \d s ago"):
        record(engine, [started()])
    recorder.record(finished(4))
    assert read(database, "SELECT status, rounds FROM runs") == [("finished", 4)]


def test_a_process_that_has_ended_and_is_not_waited_for_is_dead() -> None:
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read()  # until it has ended
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert ownership._process(process.pid) is None


# --- going on from checkpoints


def interrupted_after(engine: Engine, number: int, more: int) -> None:
    """A run with a checkpoint after ``number`` rounds, whose process died ``more`` rounds later."""
    happenings = [
        started(),
        evaluated(0),
        rounds(0, number - 1),
        evaluated(number),
        checkpointed(number, b"the state"),
    ]
    recorder = record(
        engine, [*happenings, rounds(number, number + more - 1), evaluated(number + more)]
    )
    recorder.interrupted()


def test_a_run_goes_on_from_its_checkpoint(engine: Engine, database: str, files: SideFiles) -> None:
    record(
        engine,
        [
            started(),
            evaluated(0),
            rounds(0, 4),
            evaluated(5),
            rounds(5, 9),
            evaluated(10),
            finished(10),
        ],
    )
    clean = everything(database)
    change(database, "DELETE FROM runs")
    change(database, "DELETE FROM rounds")
    change(database, "DELETE FROM evaluations")
    change(database, "DELETE FROM recovery")
    interrupted_after(engine, 5, more=3)
    assert read(database, "SELECT COUNT(*) FROM rounds") == [(8,)]
    first_start = read(database, "SELECT started_at FROM runs")

    recorder = Recorder(engine)
    assert recorder.checkpoint(KEY) == b"the state"
    recorder.record(events.Started(KEY, started().record, totals(5)))
    assert read(database, "SELECT status, rounds, budget_spent FROM runs") == [("running", 5, 5)]
    assert read(database, "SELECT MAX(round) FROM rounds") == [(4,)]
    assert read(database, "SELECT MAX(round) FROM evaluations") == [(5,)]
    for event in (rounds(5, 9), evaluated(10), finished(10)):
        recorder.record(event)
    assert everything(database) == clean
    assert read(database, "SELECT started_at FROM runs") == first_start
    assert files.checkpoints() == []


def test_what_begins_anew_has_nothing_of_before(
    engine: Engine, database: str, files: SideFiles
) -> None:
    interrupted_after(engine, 5, more=3)
    record(engine, whole_run())
    assert read(database, "SELECT COUNT(*) FROM rounds") == [(3,)]
    assert files.checkpoints() == []


def test_a_checkpoint_is_only_one_that_the_database_names(
    engine: Engine, database: str, files: SideFiles
) -> None:
    assert Recorder(engine).checkpoint(KEY) is None
    interrupted_after(engine, 5, more=3)
    files.save(KEY, 7, new_owner(), b"written by one who died before it was named")
    assert Recorder(engine).checkpoint(KEY) == b"the state"


@a_file
@pytest.mark.parametrize("damage", ["gone", "short", "other", "empty"])
def test_a_damaged_checkpoint_is_none(damage: str, engine: Engine, files: SideFiles) -> None:
    interrupted_after(engine, 5, more=3)
    (file,) = files.checkpoints()
    content = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(
            {"short": content[:-1], "other": content[:-1] + b"?", "empty": b""}[damage]
        )
    with pytest.warns(UserWarning, match=r"run 1: its checkpoint is missing or damaged; the run"):
        assert Recorder(engine).checkpoint(KEY) is None


@a_file
def test_checkpoints_follow_one_another(engine: Engine, files: SideFiles) -> None:
    recorder = record(
        engine,
        [started(), rounds(0, 3), checkpointed(4, b"one"), rounds(4, 7), checkpointed(8, b"two")],
    )
    assert len(files.checkpoints()) == 1
    recorder.failed("as it was killed")
    assert Recorder(engine).checkpoint(KEY) == b"two"


@a_file
@pytest.mark.usefixtures("clock")
def test_a_folder_that_cannot_be_made_costs_the_checkpoints_alone(
    engine: Engine, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DYNABRO_STATE", str(tmp_path / "file" / "state"))
    recorder = record(
        engine, [started(), rounds(0, 3), checkpointed(4), rounds(4, 5), evaluated(6)]
    )
    assert read(database, "SELECT rounds, checkpoint FROM runs") == [(4, None)]
    recorder.record(finished(6))
    assert read(database, "SELECT rounds, status FROM runs") == [(6, "finished")]


def test_of_two_that_go_on_at_once_one_does(
    engine: Engine, database: str, files: SideFiles
) -> None:
    interrupted_after(engine, 5, more=3)
    one, two = Recorder(engine), Recorder(engine)
    assert one.checkpoint(KEY) == two.checkpoint(KEY) == b"the state"
    going_on = events.Started(KEY, started().record, totals(5))
    one.record(going_on)
    with pytest.raises(RunHeldError):
        two.record(going_on)
    for event in (rounds(5, 6), checkpointed(7, b"later")):
        one.record(event)
    one.interrupted()
    with pytest.raises(RunHeldError, match="has resumed the run meanwhile"):
        two.record(going_on)
    assert read(database, "SELECT status, rounds FROM runs") == [("interrupted", 7)]


def test_a_repetition_goes_on_and_takes_the_place_of_the_result_at_its_end(
    engine: Engine, database: str, files: SideFiles
) -> None:
    record(engine, whole_run(accuracy=0.25))
    record(engine, [started(), rounds(0, 1), checkpointed(2)]).interrupted()
    again = Recorder(engine)
    assert again.checkpoint(KEY) == b"state"
    again.record(events.Started(KEY, started().record, totals(2)))
    assert read(database, "SELECT final_accuracy FROM runs WHERE status = 'finished'") == [(0.25,)]
    for event in (rounds(2, 2), evaluated(3, 0.75), finished(3, 0.75)):
        again.record(event)
    assert read(database, "SELECT run_key, final_accuracy, rounds FROM runs") == [(KEY, 0.75, 3)]
    assert files.checkpoints() == []


def test_what_a_run_was_made_with_before_it_went_on_is_kept(
    engine: Engine, database: str, files: SideFiles
) -> None:
    def go_on(number: int, **versions: object) -> None:
        recorder = Recorder(engine)
        resumed = totals(number) if recorder.checkpoint(KEY) else None
        record_ = started(versions=json.dumps(versions)).record
        for event in (
            events.Started(KEY, record_, resumed),
            rounds(number, number),
            checkpointed(number + 1),
        ):
            recorder.record(event)
        recorder.interrupted()

    for number, threads in enumerate((1, 1, 2, 4)):
        go_on(number, threads=threads, torch="2")
    ((text,),) = read(database, f"SELECT {VERSIONS} FROM runs")
    continued = [{"rounds": 2, "threads": 1}, {"rounds": 3, "threads": 2}]
    assert json.loads(text) == {"threads": 4, "torch": "2", "continued": continued}


@a_file
def test_time_counts_what_was_spent_before(engine: Engine, database: str, files: SideFiles) -> None:
    interrupted_after(engine, 5, more=3)
    change(database, "UPDATE runs SET wall_seconds = 1000")
    recorder = Recorder(engine)
    recorder.checkpoint(KEY)
    for event in (
        events.Started(KEY, started().record, totals(5)),
        rounds(5, 9),
        evaluated(10),
        finished(10),
    ):
        recorder.record(event)
    assert 1000 < read(database, "SELECT wall_seconds FROM runs")[0][0] < 1100
