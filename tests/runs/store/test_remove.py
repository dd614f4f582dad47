"""``dynabro db remove``: runs and all that belongs to them, or nothing."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Engine

from dynabro_cli.core.errors import BusyError, NotFoundError, RunHeldError, SpecError, StorageError
from dynabro_cli.runs.store.care import remove as removing
from dynabro_cli.runs.store.care.check import check
from dynabro_cli.runs.store.care.remove import choose, remove
from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.write.side_files import SideFiles
from tests.runs.store import made, sound
from tests.runs.store.made import both, change, read, record

ROOT = Path(__file__).parents[3]
TABLES = ("rounds", "byzantine_counts", "identities", "evaluations", "recovery", "worker_labels")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SideFiles:
    monkeypatch.setenv("DYNABRO_STATE", str(tmp_path / "state"))
    return SideFiles(tmp_path / "state")


def fill(engine: Engine, files: SideFiles) -> None:
    """1: a result; 2: one with labels; 3: interrupted, with a checkpoint; 4: failed; 5: a
    repetition of 1, interrupted.
    """
    record(engine, sound.run(1))
    record(engine, sound.shared(2))
    record(engine, [*sound.beginning(3, 4), made.checkpointed(4)], files=files).interrupted()
    record(engine, sound.beginning(4, 2)).failed("bang")
    record(engine, [*sound.beginning(1, 4), made.checkpointed(4)], files=files).interrupted()
    for (key,) in read(location(engine), "SELECT run_key FROM runs"):
        files.prepare_log(key.removesuffix("+rerun")).write_text("log")
    assert len(present(files)) == 2 + 4


def location(engine: Engine) -> str:
    return (
        str(engine.url.database)
        if engine.dialect.name == "sqlite"
        else engine.url.render_as_string(hide_password=False)
    )


def present(files: SideFiles) -> set[str]:
    """The names of all checkpoints and logs."""
    return {path.name for path in files.folder.rglob("*") if path.is_file()}


def ids(database: str) -> list[int]:
    return [row[0] for row in read(database, "SELECT id FROM runs ORDER BY id")]


@pytest.mark.thorough
@both
def test_all_of_a_run_goes_and_nothing_else(
    engine: Engine, database: str, files: SideFiles
) -> None:
    fill(engine, files)
    change(database, "INSERT INTO identities (run_id, tick, byzantine) VALUES (4, 0, '[1]')")
    change(database, "INSERT INTO byzantine_counts (run_id, byzantine, rounds) VALUES (4, 8, 2)")
    before = {
        table: read(database, f"SELECT * FROM {table} WHERE run_id IN (1, 5) ORDER BY 1, 2, 3")
        for table in TABLES
    }
    assert all(
        read(database, f"SELECT * FROM {table} WHERE run_id IN (2, 3, 4)") for table in TABLES
    )
    everything = present(files)
    removal = choose(database, "id IN (2, 3) OR status = 'failed'")
    assert [run.id for run in removal.runs] == [2, 3, 4]
    assert removal.statuses == {"failed": 1, "finished": 1, "interrupted": 1}
    assert present(files) == everything
    assert ids(database) == [1, 2, 3, 4, 5]
    gone = {path.name for path in removal.files}
    assert gone == {
        name
        for name in everything
        if name.startswith((sound.key(3), sound.key(4), f"{key_of(2, database)}"))
    }
    assert len(gone) == 4
    assert remove(database, removal) == []
    assert ids(database) == [1, 5]
    assert {
        table: read(database, f"SELECT * FROM {table} ORDER BY 1, 2, 3") for table in TABLES
    } == before
    assert present(files) == everything - gone
    report = check(database)
    assert report.problems == report.notes == []


def key_of(number: int, database: str) -> str:
    key: str = read(database, "SELECT run_key FROM runs WHERE id = ?", number)[0][0]
    return key


def test_with_a_result_goes_its_repetition(engine: Engine, database: str, files: SideFiles) -> None:
    fill(engine, files)
    removal = choose(database, "id = 1")
    assert [run.id for run in removal.runs] == [1, 5]
    remove(database, removal)
    assert ids(database) == [2, 3, 4]
    assert not any(name.startswith(sound.key(1)) for name in present(files))


def test_a_repetition_goes_alone_and_leaves_the_log(
    engine: Engine, database: str, files: SideFiles
) -> None:
    fill(engine, files)
    removal = choose(database, "id = 5")
    assert [path.name.startswith(f"{sound.key(1)}+rerun.") for path in removal.files] == [True]
    remove(database, removal)
    assert ids(database) == [1, 2, 3, 4]
    assert f"{sound.key(1)}.log" in present(files)


def test_a_run_in_progress_keeps_all_from_being_removed(
    engine: Engine, database: str, files: SideFiles
) -> None:
    fill(engine, files)
    record(engine, sound.beginning(6, 3))._commit({})
    everything = present(files)
    for where in ("1 = 1", "id = 6"):
        with pytest.raises(
            RunHeldError, match=r"run 6 is in progress in process \d+ .*; nothing is removed"
        ):
            choose(database, where)
    change(database, "UPDATE runs SET status = 'interrupted' WHERE id = 6")
    removal = choose(database, "1 = 1")
    change(database, "UPDATE runs SET status = 'running' WHERE id = 6")
    with pytest.raises(BusyError, match="run 6 has changed; nothing is removed"):
        remove(database, removal)
    assert ids(database) == [1, 2, 3, 4, 5, 6]
    assert present(files) == everything


def test_a_repetition_in_progress_keeps_its_result(
    engine: Engine, database: str, files: SideFiles
) -> None:
    record(engine, sound.run(1))
    record(engine, sound.beginning(1, 3))._commit({})
    with pytest.raises(RunHeldError, match="run 2 is in progress"):
        choose(database, "id = 1")


def test_a_run_of_a_dead_process_is_removed(
    engine: Engine, database: str, files: SideFiles
) -> None:
    record(engine, sound.beginning(1, 3))._commit({})
    change(
        database,
        "UPDATE runs SET heartbeat_at = '2020-01-01 00:00:00.000000', owner = "
        "'elsewhere:1:1:a', heartbeat_clock = NULL",
    )
    remove(database, choose(database, "status = 'running'"))
    assert ids(database) == []


@both
@pytest.mark.parametrize(
    "meanwhile", ["DELETE FROM runs WHERE id = 3", "UPDATE runs SET run_key = 'x' WHERE id = 3"]
)
def test_what_has_changed_meanwhile_is_not_removed(
    meanwhile: str, engine: Engine, database: str, files: SideFiles
) -> None:
    fill(engine, files)
    removal = choose(database, "id IN (2, 3)")
    change(database, meanwhile)
    with pytest.raises(
        BusyError, match=r"run 3 has changed; nothing is removed\. Try: the same command"
    ):
        remove(database, removal)
    assert 2 in ids(database)


def test_many_runs_go_in_one_transaction(
    engine: Engine, database: str, files: SideFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(engine, files)
    monkeypatch.setattr(removing, "BATCH", 2)
    removal = choose(database, "id <= 4")
    assert len(removal.runs) == 5
    change(database, "UPDATE runs SET run_key = 'x' WHERE id = 4")  # of the last batch but one
    with pytest.raises(BusyError):
        remove(database, removal)
    assert ids(database) == [1, 2, 3, 4, 5]
    remove(database, choose(database, "id <= 4"))
    assert ids(database) == []


@pytest.mark.thorough
@pytest.mark.parametrize(("place", "rest"), [("mid-remove", [1, 2, 3, 4, 5]), ("after-remove", [])])
def test_a_kill_leaves_all_or_nothing(
    place: str, rest: list[int], engine: Engine, database: str, files: SideFiles
) -> None:
    fill(engine, files)
    program = (
        "import sys; from dynabro_cli.runs.store.care.remove import *; remove(sys.argv[1], "
        "choose(sys.argv[1], '1 = 1'))"
    )
    environment = os.environ | {"DYNABRO_FAILPOINT": f"{place}=KILL"}
    killed = subprocess.run(
        [sys.executable, "-c", program, database], env=environment, cwd=ROOT, check=False
    )
    assert killed.returncode == -9
    assert ids(database) == rest
    assert check(database).problems == []


def test_damaged_runs_can_be_removed(path: Path, files: SideFiles) -> None:
    """Their keys name no file, wherever it is."""
    fill(open_for_writing(str(path)), files)
    other = files.prepare_log("elsewhere")
    other.write_text("log")
    change(path, "UPDATE runs SET heartbeat_at = 'x', started_at = 'y', owner = x'00' WHERE id = 2")
    change(path, "UPDATE runs SET run_key = '../logs/elsewhere' WHERE id = 2")
    change(path, "UPDATE runs SET heartbeat_at = -1, heartbeat_clock = x'fe' WHERE id = 3")
    change(path, "UPDATE runs SET status = 'running', owner = x'ff', run_key = '*' WHERE id = 3")
    change(path, "UPDATE runs SET run_key = x'00ff', rounds = 'x' WHERE id = 4")
    everything = present(files)
    removal = choose(str(path), "id IN (2, 3, 4)")
    assert removal.files == ()
    remove(str(path), removal)
    assert ids(str(path)) == [1, 5]
    assert present(files) == everything


def test_files_that_cannot_be_removed_are_returned(
    path: Path, files: SideFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(open_for_writing(str(path)), files)
    removal = choose(str(path), "id = 3")

    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    assert remove(str(path), removal) == list(removal.files)
    assert 3 not in ids(str(path))


@pytest.mark.parametrize("where", ["nope = 1", "id = 1; DELETE FROM runs", "", "id = 1 --"])
def test_a_wrong_condition_removes_nothing(
    where: str, engine: Engine, database: str, files: SideFiles
) -> None:
    fill(engine, files)
    with pytest.raises(SpecError):
        choose(database, where)
    assert ids(database) == [1, 2, 3, 4, 5]


def test_nothing_is_made_where_there_is_no_database(path: Path) -> None:
    with pytest.raises(NotFoundError):
        choose(str(path), "1 = 1")
    assert not path.exists()


@pytest.mark.parametrize("backend", ["sqlite"])
def test_a_full_disk_says_what_can_make_room(
    engine: Engine, path: Path, request: pytest.FixtureRequest
) -> None:
    record(engine, made.whole_run(2000))
    engine.dispose()
    removal = choose(str(path), "1 = 1")
    request.getfixturevalue("_small_files")
    with pytest.raises(
        StorageError, match=r"nothing is removed.*Try: dynabro db thin FILE --every 10 --db"
    ):
        remove(str(path), removal)
    # a reader's files are larger
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert len(read(path, "SELECT * FROM rounds")) == 2000
