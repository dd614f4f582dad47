"""``store.care.thin``: the rows that a copy keeps, its histograms of all rounds, and that it is
complete or absent.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine

from dynabro_cli.core import events
from dynabro_cli.core.errors import (
    BusyError,
    CannotWriteError,
    DatabaseError,
    NotFoundError,
    SpecError,
    StorageError,
)
from dynabro_cli.runs.store.care import copies
from dynabro_cli.runs.store.care import thin as thin_module
from dynabro_cli.runs.store.care.check import check
from dynabro_cli.runs.store.care.merge import Merged, merge
from dynabro_cli.runs.store.care.thin import ANONYMOUS, PAGE_BYTES, Thinned, thin
from dynabro_cli.runs.store.open.engine import open_for_writing, open_read_only
from dynabro_cli.runs.store.read.queries import histogram
from dynabro_cli.runs.store.write.sweep_entry import SweepEntry
from tests.runs.store import made, sound
from tests.runs.store.made import change, digest, read, record

ROOT = Path(__file__).parents[3]
HISTOGRAM = (
    "SELECT run_key, h.byzantine, h.rounds FROM byzantine_histogram AS h JOIN runs ON "
    "runs.id = run_id ORDER BY 1, 2"
)


@pytest.fixture
def backend() -> str:
    """Files are thinned."""
    return "sqlite"


@pytest.fixture
def target(path: Path) -> Path:
    """The copy, which is not there yet."""
    return path.with_name("small.db")


def long_run(seed: int, number: int, **columns: object) -> list[events.Event]:
    """A run whose workers change, with the model at its evaluations."""
    begin, *_, end = sound.run(seed, number=number, **{"budget": number, "dimension": 2} | columns)
    steps = tuple(made.a_round(step, byzantine=step % 3) for step in range(number))
    points = made.evaluated(0, x=(3.0, -3.0)), made.evaluated(number, x=(0.125, 1.0))
    return [begin, points[0], events.RoundsDone(steps, made.totals(number)), points[1], end]


@pytest.fixture
def filled(engine: Engine, path: Path) -> Path:
    """Four results of 41, 38, 1 and 2 rounds, one that diverged, and three runs without a
    result.
    """
    for seed, number in ((1, 41), (2, 38), (3, 1), (4, 2)):
        record(engine, long_run(seed, number))
    record(
        engine,
        [
            *sound.beginning(5)[:-1],
            made.evaluated(6, 0.1),
            events.Diverged(5, 0.1, 0.9, None, made.totals(6)),
        ],
    )
    record(engine, sound.beginning(6, 4)).interrupted()
    record(engine, sound.beginning(7, 2)[:2]).failed("why")
    record(engine, long_run(1, 41)[:1])  # a repetition in progress
    with SweepEntry(
        engine, name="done", runs=1, listed={sound.key(1): None}, jobs=1, executor="local"
    ):
        pass
    SweepEntry(
        engine, name="going on", runs=1, listed={sound.key(2): None}, jobs=1, executor="local"
    ).__enter__()
    engine.dispose()
    return path


def kept(database: Path, seed: int) -> list[int]:
    sql = "SELECT round FROM rounds JOIN runs ON runs.id = run_id WHERE run_key = ? ORDER BY round"
    return [row[0] for row in read(database, sql, sound.key(seed))]


def names(folder: Path) -> set[str]:
    return {item.name for item in folder.iterdir() if not item.name.endswith(("-wal", "-shm"))}


def test_every_tenth_round_is_kept_and_the_histogram_of_all(filled: Path, target: Path) -> None:
    before = filled.read_bytes()
    histograms = read(
        filled, HISTOGRAM.replace("JOIN runs", "JOIN (SELECT * FROM runs WHERE id <= 5) AS runs")
    )
    thinned = thin(str(filled), target, 10)
    rows = 41 + 38 + 1 + 2 + 6 + 4
    sizes = thinned.size_before, target.stat().st_size
    assert thinned == Thinned(
        5,
        0,
        3,
        rows_before=rows,
        rows_after=5 + 5 + 1 + 2 + 2,
        size_before=sizes[0],
        size_after=sizes[1],
    )
    assert kept(target, 1) == [0, 10, 20, 30, 40]
    assert kept(target, 2) == [0, 10, 20, 30, 37]
    assert [kept(target, seed) for seed in (3, 4, 5)] == [[0], [0, 1], [0, 5]]
    assert read(target, HISTOGRAM) == histograms
    assert histogram(open_read_only(str(target)), 1) == [(0, 14), (1, 14), (2, 13)]
    assert read(target, "SELECT DISTINCT rounds_every FROM runs") == [(10,)]
    report = check(str(target))
    assert (report.problems, report.notes, report.statuses) == (
        [],
        [],
        {"diverged": 1, "finished": 4},
    )
    assert filled.read_bytes() == before
    assert names(filled.parent) == {filled.name, target.name}


def test_all_else_is_as_it_was(filled: Path, target: Path) -> None:
    thin(str(filled), target, 7)
    ours = ", ".join(
        name
        for (name,) in read(filled, "SELECT name FROM pragma_table_info('runs')")
        if name not in ("rounds_every", "rows_digest")
    )
    for sql in (
        f"SELECT {ours} FROM runs WHERE status IN ('finished', 'diverged')",
        "SELECT * FROM evaluations WHERE run_id <= 5 ORDER BY 1, 2",
        "SELECT * FROM rounds WHERE run_id <= 5 AND round % 7 = 0 ORDER BY 1, 2",
        "SELECT * FROM sweeps WHERE name = 'done'",
        "SELECT * FROM sweep_runs WHERE sweep_id = 1",
        "SELECT type, name, sql FROM sqlite_master ORDER BY name",
        "PRAGMA user_version",
        "PRAGMA application_id",
    ):
        assert read(filled, sql)
        assert read(target, sql.replace("7 = 0", "7 = 0 AND round % 7 = 0")) == read(filled, sql), (
            sql
        )
    assert read(target, "SELECT name FROM sweeps") == [("done",)]
    assert read(target, "SELECT sweep_id, run_key FROM sweep_runs") == [(1, sound.key(1))]
    assert read(target, "SELECT x FROM evaluations WHERE run_id = 1") == [
        ("[3.0,-3.0]",),
        ("[0.125,1.0]",),
    ]
    # one file, and no more, is to be given away
    assert read(target, "PRAGMA journal_mode") == [("delete",)]


def test_labels_of_workers_are_left_out_of_thinned_runs(filled: Path, target: Path) -> None:
    labelled = "SELECT DISTINCT run_id FROM worker_labels ORDER BY 1"
    every = [(run,) for run in (1, 2, 3, 4, 5)]
    change(filled, "INSERT INTO worker_labels SELECT id, 0, 1, 2 FROM runs WHERE id <= 5")
    digest(filled)
    again = target.with_name("again.db")
    for where, left in (("seed = 1", every[1:]), (None, [])):
        thin(str(filled), target, 4, where=where)
        assert read(target, labelled) == left
        assert check(str(target)).problems == []
        thin(str(target), again, 6, where=where)  # of its thinned runs nothing changes
        assert read(again, labelled) == left
        target.unlink()
        again.unlink()
    thin(str(filled), target, 1)
    assert read(target, labelled) == every


def test_runs_that_are_not_meant_keep_all(filled: Path, target: Path) -> None:
    where = "seed = 1 OR id IN (SELECT run_id FROM rounds WHERE round = 5 AND run_id = 5)"
    thin(str(filled), target, 5, where=where)
    assert read(target, "SELECT seed, rounds_every FROM runs ORDER BY seed") == [
        (1, 5),
        (2, 1),
        (3, 1),
        (4, 1),
        (5, 5),
    ]
    assert [len(kept(target, seed)) for seed in range(1, 6)] == [9, 38, 1, 2, 2]
    assert read(target, "SELECT DISTINCT run_id FROM byzantine_counts ORDER BY 1") == [(1,), (5,)]
    assert check(str(target)).problems == []


@pytest.mark.parametrize("large", [False, True])
def test_a_copy_of_a_large_database_has_larger_pages(
    large: bool, filled: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which would make a small database larger."""
    monkeypatch.setattr(thin_module, "LARGE", 1 if large else thin_module.LARGE)
    thinned = thin(str(filled), target, 10)
    assert read(filled, "PRAGMA page_size") == [(4096,)]
    assert read(target, "PRAGMA page_size") == [(PAGE_BYTES if large else 4096,)]
    assert large or thinned.size_after <= filled.stat().st_size


def test_models_of_some_runs_only(filled: Path, target: Path) -> None:
    thin(str(filled), target, 5, points="seed = 2")
    with_models = (
        "SELECT DISTINCT seed FROM runs JOIN evaluations e ON e.run_id = runs.id "
        "WHERE x IS NOT NULL ORDER BY seed"
    )
    assert read(filled, with_models) == [(1,), (2,), (3,), (4,)]
    assert read(target, with_models) == [(2,)]
    others = (
        "SELECT run_id, round, budget, samples, test_accuracy, test_loss, train_loss, gap "
        "FROM evaluations WHERE run_id <= 5"
    )
    assert read(target, others) == read(filled, others)
    assert check(str(target)).problems == []


@pytest.mark.thorough
def test_one_in_one_leaves_all_in(filled: Path, target: Path) -> None:
    thinned = thin(str(filled), target, 1)
    assert (thinned.runs, thinned.left_out, thinned.rows_after) == (5, 3, 88)
    assert read(target, "SELECT COUNT(*) FROM byzantine_counts") == [(0,)]
    assert check(str(target)).problems == []


@pytest.mark.thorough
def test_what_was_thinned_before_is_thinned_further_or_kept(filled: Path, target: Path) -> None:
    thin(str(filled), target, 4, where="seed = 1")
    again, whole = (target.with_name(name) for name in ("again.db", "whole.db"))
    assert thin(str(target), again, 20).kept == 0
    assert (kept(again, 1), kept(again, 2)) == ([0, 20, 40], [0, 20, 37])
    for every, where in ((6, None), (1, None), (6, "seed < 3")):
        assert thin(str(target), whole, every, where=where).kept == 1
        assert kept(whole, 1) == kept(target, 1) == list(range(0, 41, 4))
        assert read(whole, "SELECT rounds_every FROM runs WHERE seed = 1") == [(4,)]
        assert check(str(whole)).problems == []
        assert read(whole, HISTOGRAM) == read(target, HISTOGRAM) == read(again, HISTOGRAM)
        whole.unlink()
    assert thin(str(target), whole, 6, where="seed = 2").kept == 0
    assert check(str(again)).problems == []


@pytest.mark.thorough
def test_nothing_tells_who_made_it(filled: Path, target: Path) -> None:
    host = "a-host-of-ours"
    change(filled, "UPDATE runs SET host = ?, git_commit = 'c0ffee', owner = 'some:body'", host)
    digest(filled)
    change(filled, "UPDATE sweeps SET host = ?", host)
    owners = {
        row[0] for row in read(filled, "SELECT owner FROM runs UNION SELECT owner FROM sweeps")
    }
    thin(str(filled), target, 10)
    secrets = [host, "c0ffee", *owners]
    assert all(secret.encode() in filled.read_bytes() + wal(filled) for secret in secrets)
    assert host.encode() in target.read_bytes()
    target.unlink()
    thin(str(filled), target, 10, anonymous=True)
    assert not any(secret.encode() in target.read_bytes() for secret in [*secrets, platform.node()])
    nobody = (
        "owner IS NULL AND heartbeat_at IS NULL AND host = '' AND pid = 0 AND git_commit IS NULL"
    )
    assert read(target, f"SELECT COUNT(*) FROM runs WHERE {nobody}") == [(5,)]
    nobody = "owner = '' AND heartbeat_at = started_at AND host = '' AND pid = 0"
    assert read(target, f"SELECT COUNT(*) FROM sweeps WHERE {nobody}") == [(1,)]
    assert set(ANONYMOUS) == {"runs", "sweeps"}
    assert check(str(target)).problems == []


def wal(database: Path) -> bytes:
    log = database.with_name(database.name + "-wal")
    return log.read_bytes() if log.exists() else b""


# --- what a thinned run goes through


@pytest.mark.thorough
def test_a_thinned_run_is_merged_as_it_is(filled: Path, target: Path, tmp_path: Path) -> None:
    thin(str(filled), target, 10)
    own = tmp_path / "own.db"
    record(open_for_writing(str(own)), sound.run(9))
    assert len(merge(str(target), str(own)).copied) == 5
    tables = (
        "SELECT * FROM byzantine_counts WHERE run_id",
        "SELECT round, cost FROM rounds WHERE run_id",
    )
    for sql in (
        *tables,
        "SELECT round, x FROM evaluations WHERE run_id",
        "SELECT rounds_every FROM runs WHERE id",
    ):
        sql = (
            sql.replace("*", "byzantine, rounds")
            + " = (SELECT id FROM runs WHERE run_key = ?) ORDER BY 1"
        )
        assert read(own, sql, sound.key(1)) == read(target, sql, sound.key(1)) != []
    assert check(str(own)).problems == []


@pytest.mark.thorough
def test_the_rows_of_two_copies_of_a_run_are_never_mixed(
    filled: Path, target: Path, tmp_path: Path
) -> None:
    thin(str(filled), target, 10)
    before = read(target, "SELECT * FROM rounds"), read(target, "SELECT * FROM byzantine_counts")
    whole = tmp_path / "whole.db"
    thin(str(filled), whole, 1)
    assert merge(str(whole), str(target)) == Merged(here=5)
    assert (
        read(target, "SELECT * FROM rounds"),
        read(target, "SELECT * FROM byzantine_counts"),
    ) == before
    assert merge(str(target), str(whole)) == Merged(here=5)
    assert (len(kept(whole, 1)), read(whole, "SELECT * FROM byzantine_counts")) == (41, [])


@pytest.mark.thorough
def test_a_thinned_result_takes_the_place_of_a_run_without_one(
    filled: Path, target: Path, tmp_path: Path
) -> None:
    thin(str(filled), target, 10)
    own = tmp_path / "own.db"
    record(open_for_writing(str(own)), long_run(1, 41)[:3]).interrupted()
    assert merge(str(target), str(own)).replaced == [sound.key(1)]
    assert kept(own, 1) == [0, 10, 20, 30, 40]
    assert check(str(own)).problems == []


@pytest.mark.thorough
def test_an_unsound_thinned_run_is_not_merged(filled: Path, target: Path, tmp_path: Path) -> None:
    thin(str(filled), target, 10)
    change(
        target, "UPDATE byzantine_counts SET rounds = rounds + 1 WHERE run_id = 2 AND byzantine = 1"
    )
    merged = merge(str(target), str(tmp_path / "own.db"))
    assert merged.unsound == {2: ["its rows are not as they were stored"]}
    assert len(merged.copied) == 4


def test_a_repetition_of_a_thinned_run_is_whole(filled: Path, target: Path) -> None:
    thin(str(filled), target, 10)
    engine = open_for_writing(str(target))
    *most, end = long_run(1, 41)
    recorder = record(engine, most)
    assert read(target, "SELECT rounds_every FROM runs WHERE seed = 1 ORDER BY id") == [(10,), (1,)]
    recorder.record(end)
    assert read(target, "SELECT rounds_every FROM runs WHERE seed = 1") == [(1,)]
    assert kept(target, 1) == list(range(41))
    assert read(
        target, "SELECT COUNT(*) FROM byzantine_counts WHERE run_id NOT IN (SELECT id FROM runs)"
    ) == [(0,)]
    assert (0, 14) in [row[1:] for row in read(target, HISTOGRAM) if row[0] == sound.key(1)]
    assert check(str(target)).problems == []


# --- what is refused


def test_nothing_is_overwritten(filled: Path, target: Path) -> None:
    target.write_text("precious")
    seen: list[int] = []
    with pytest.raises(CannotWriteError, match="is there already"):
        thin(str(filled), target, 10, progress=lambda done, _: seen.append(done))
    assert seen == []  # no work for naught
    assert target.read_text() == "precious"
    assert names(filled.parent) == {filled.name, target.name}


def test_what_appears_meanwhile_is_not_overwritten(
    filled: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "failpoint", lambda _: target.write_text("precious"))
    with pytest.raises(CannotWriteError, match="is there already"):
        thin(str(filled), target, 10)
    assert target.read_text() == "precious"
    assert names(filled.parent) == {filled.name, target.name}


@pytest.mark.thorough
@pytest.mark.parametrize("link", [os.link, lambda old, new: new.symlink_to(old), shutil.copy])
def test_a_database_is_not_thinned_into_itself(
    link: Callable[[Path, Path], object], filled: Path, target: Path
) -> None:
    before = filled.read_bytes()
    with pytest.raises(SpecError, match=r"is to be thinned into itself\. Try: another file"):
        thin(str(filled), filled, 10)
    link(filled, target)
    with pytest.raises(CannotWriteError if link is shutil.copy else SpecError):
        thin(str(filled), target, 10)
    assert filled.read_bytes() == before


@pytest.mark.thorough
@pytest.mark.parametrize("every", [0, -1, 2**31])
def test_a_number_that_is_no_step(every: int, filled: Path, target: Path) -> None:
    with pytest.raises(
        SpecError, match=rf"every={every}: it must be 1 to 2147483647. Try: --every 100"
    ):
        thin(str(filled), target, every)
    assert not target.exists()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("where", "problem"),
    [
        ("colour = 1", "SQL: no such column: colour"),
        ("1) OR (", "SQL: "),
        ("seed =", "SQL: "),
        ("seed = 1); DELETE FROM runs; --", "SQL: "),
        ("load_extension('evil')", "only reading is allowed here"),
    ],
)
def test_a_condition_that_is_none(where: str, problem: str, filled: Path, target: Path) -> None:
    with pytest.raises(SpecError, match=problem) as caught:
        thin(str(filled), target, 10, where=where)
    assert len(str(caught.value).splitlines()) == 1
    assert names(filled.parent) == {filled.name}


def test_a_missing_folder_is_named(filled: Path) -> None:
    with pytest.raises(CannotWriteError, match="Try: mkdir -p"):
        thin(str(filled), filled.parent / "no folder" / "small.db", 10)


def test_a_server_is_told_the_way(target: Path) -> None:
    with pytest.raises(
        SpecError, match=r"Try: dynabro db merge 'postgresql.*' --db FILE, and thin that file"
    ) as caught:
        thin("postgresql+psycopg://me:secret@host/results", target, 10)
    assert "secret" not in str(caught.value)


def test_what_is_no_database_of_results(path: Path, target: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no database"):
        thin(str(path), target, 10)
    engine = open_for_writing(str(path))
    record(engine, sound.beginning(1, 3)).interrupted()
    with pytest.raises(
        NotFoundError, match="none of its 1 runs has a result; there is nothing to thin"
    ):
        thin(str(path), target, 10)
    change(path, "PRAGMA user_version = 3")
    with pytest.raises(DatabaseError, match="has schema version 3"):
        thin(str(path), target, 10)
    path.with_name("notes.txt").write_text("text")
    with pytest.raises(DatabaseError, match="is not a dynabro database"):
        thin(str(path.with_name("notes.txt")), target, 10)
    assert names(path.parent) == {path.name, "notes.txt"}


def test_damage_is_told(filled: Path, target: Path) -> None:
    content = filled.read_bytes()
    filled.write_bytes(content[:4096] + b"\xa5" * (len(content) - 4096))
    with pytest.raises(DatabaseError, match="is damaged"):
        thin(str(filled), target, 10)
    assert names(filled.parent) == {filled.name}


def test_a_value_that_has_changed_gets_no_new_digest(filled: Path, target: Path) -> None:
    change(filled, "UPDATE evaluations SET test_accuracy = 0.75 WHERE run_id = 1 AND round = 0")
    with pytest.raises(
        DatabaseError, match=r"rows are not as they were stored\. Try: dynabro db check --db"
    ):
        thin(str(filled), target, 10)
    assert names(filled.parent) == {filled.name}


def test_a_locked_database_is_called_busy(
    filled: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(filled, "PRAGMA journal_mode = DELETE")
    monkeypatch.setenv("DYNABRO_BUSY_SECONDS", "0.01")
    other = sqlite3.connect(filled, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(BusyError, match="was locked by another program"):
        thin(str(filled), target, 10)
    other.close()
    assert names(filled.parent) == {filled.name}


# --- whole or not there


@pytest.mark.thorough
@pytest.mark.parametrize("of", ["tables", "copy"])
def test_a_full_disk_leaves_nothing_behind(of: str, filled: Path, target: Path) -> None:
    thin(str(filled), target, 1)
    room = 40_000 if of == "tables" else target.stat().st_size - 1
    target.unlink()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(StorageError, match="make room") as caught:
            thin(str(filled), target, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert "small.db" in str(caught.value)
    assert names(filled.parent) == {filled.name}


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["mid-thin", "mid-thin:5", "before-copy"])
def test_one_that_is_killed_leaves_no_file_of_that_name(
    place: str, filled: Path, target: Path
) -> None:
    before = filled.read_bytes()
    program = "from sys import argv; from pathlib import Path; "
    program += "from dynabro_cli.runs.store.care.thin import thin; thin(argv[1], Path(argv[2]), 10)"
    command = [sys.executable, "-c", program, str(filled), str(target)]
    killed = subprocess.run(
        command, env=os.environ | {"DYNABRO_FAILPOINT": f"{place}=KILL"}, cwd=ROOT, check=False
    )
    assert killed.returncode == -9
    assert not target.exists()
    assert filled.read_bytes() == before
    assert names(filled.parent) > {filled.name}
    thin(str(filled), target, 10)
    assert check(str(target)).problems == []
    assert names(filled.parent) == {filled.name, target.name}


def test_one_moment_is_copied(filled: Path, target: Path) -> None:
    engine = open_for_writing(str(filled))
    thinned = thin(
        str(filled),
        target,
        10,
        progress=lambda done, _: record(engine, sound.run(50 + done)) and None,
    )
    assert (thinned.runs, check(str(target)).problems) == (5, [])
    assert read(filled, "SELECT COUNT(*) FROM runs WHERE seed >= 50") == [(6,)]
