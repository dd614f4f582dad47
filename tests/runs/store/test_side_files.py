"""The folder beside a database: where it is, and what happens when it cannot be written."""

from __future__ import annotations

import errno
import io
import os
import tempfile
import zipfile
from pathlib import Path

import pytest

from dynabro_cli.core.errors import StorageError
from dynabro_cli.runs.store.ownership import new_owner
from dynabro_cli.runs.store.write.side_files import SideFiles

KEY = "ab" * 32


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert SideFiles.of("some.db").folder == tmp_path / "some.db.d"
    (tmp_path / "link.db").symlink_to(tmp_path / "real.db")
    # as two names of a database are one
    assert SideFiles.of("link.db").folder == tmp_path / "real.db.d"
    assert SideFiles.of(f"sqlite:///{tmp_path}/x.db").folder == tmp_path / "x.db.d"
    assert SideFiles.of("postgresql+psycopg://someone:secret@host/results").folder == Path(
        "results.d"
    )
    monkeypatch.setenv("DYNABRO_STATE", "elsewhere")
    assert SideFiles.of("some.db").folder == Path("elsewhere")


def test_two_databases_in_one_folder_do_not_share_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first to write has the folder itself, as in 1.0.0; when it is gone, the next has it."""
    state = tmp_path / "state"
    monkeypatch.setenv("DYNABRO_STATE", str(state))
    first, second = tmp_path / "a" / "results.db", tmp_path / "b" / "results.db"
    for path in (first, second):
        path.parent.mkdir()
        path.touch()
        files = SideFiles.of(str(path))
        files.probe()
        files.save(KEY, 7, new_owner(), str(path).encode())
    assert SideFiles.of(str(first)).folder == state
    assert SideFiles.of(str(second)).folder.parent == state
    SideFiles.of(str(first)).remove(SideFiles.of(str(first)).names(KEY))
    (name,) = SideFiles.of(str(second)).names(KEY)
    assert SideFiles.of(str(second)).load(name) == str(second).encode()
    first.rename(tmp_path / "moved.db")
    assert SideFiles.of(str(tmp_path / "moved.db")).folder == state


def test_what_is_saved_is_read_back_and_nothing_else_is_left(tmp_path: Path) -> None:
    files = SideFiles(tmp_path / "state")
    name = files.save(KEY, 7, new_owner(), b"data" * 1000)
    assert files.load(name) == b"data" * 1000
    assert [path.name for path in files.checkpoints()] == [name]
    other = files.save("cd" * 32, 7, new_owner(), b"")
    files.remove(files.names(KEY))
    assert [path.name for path in files.checkpoints()] == [other]


def test_a_name_leads_nowhere_else(tmp_path: Path) -> None:
    files = SideFiles(tmp_path / "state")
    name = files.save(KEY, 7, new_owner(), b"data")
    (tmp_path / name).write_bytes((files.folder / "checkpoints" / name).read_bytes())
    files.remove(files.names(KEY))
    assert files.load(f"../../{name}") is None


def test_a_compressed_checkpoint_is_not_unpacked(tmp_path: Path) -> None:
    """A few megabytes would fill the memory; PyTorch writes archives without compression."""
    files = SideFiles(tmp_path / "state")
    for kind, loaded in ((zipfile.ZIP_STORED, True), (zipfile.ZIP_DEFLATED, False)):
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w", kind) as archive:
            archive.writestr("data/0", bytes(10**6))
        name = files.save(KEY, kind, new_owner(), data.getvalue())
        assert name is not None
        assert files.load(name) == (data.getvalue() if loaded else None)
    whole = bytearray(data.getvalue())
    whole[whole.index(b"PK\x01\x02") + 6] = 99  # the version that unpacks it
    name = files.save(KEY, 9, new_owner(), bytes(whole))
    assert name is not None
    assert files.load(name) is None


def other_file(kind: str, path: Path) -> None:
    """Put something else in the place of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "link to a FIFO":
        os.mkfifo(path.with_name("fifo"))
        path.symlink_to("fifo")
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "terabytes":  # without a block on the disk
        with path.open("wb") as file:
            file.truncate(1 << 43)
    else:
        path.mkdir()


OTHER_FILES = ("FIFO", "link to a FIFO", "endless", "terabytes", "folder")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", OTHER_FILES)
def test_what_is_in_the_place_of_a_checkpoint_is_not_waited_for(kind: str, tmp_path: Path) -> None:
    files = SideFiles(tmp_path / "state")
    name = files.save(KEY, 7, new_owner(), b"data")
    assert name is not None
    other_file(kind, files.folder / "checkpoints" / name)
    assert files.load(name) is None


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", OTHER_FILES)
def test_what_is_in_the_place_of_the_note_on_a_folder_is_not_waited_for(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNABRO_STATE", str(tmp_path / "state"))
    other_file(kind, tmp_path / "state" / "database")
    files = SideFiles.of(str(tmp_path / "some.db"))
    files.probe()
    assert files.folder == tmp_path / "state"
    if kind != "folder":
        assert (files.folder / "database").read_bytes() == bytes(tmp_path / "some.db")


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    told: list[str] = []
    files = SideFiles(tmp_path / "file" / "state", told.append)
    assert files.save(KEY, 7, new_owner(), b"data") is None
    assert files.save(KEY, 8, new_owner(), b"data") is None
    assert files.prepare_log(KEY) is None
    assert files.checkpoints() == []
    checkpoints, logs = told
    for kind, line in (("checkpoints", checkpoints), ("logs", logs)):
        assert line.startswith(
            f"{files.folder / kind} cannot be written (it is not a folder); runs continue without "
        )
        assert line.endswith("; make it writable, or name another folder with DYNABRO_STATE")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EIO, errno.ESTALE])
def test_what_is_not_a_full_disk_costs_the_checkpoint_alone(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    files = SideFiles(tmp_path / "state", told.append)
    first = files.save(KEY, 7, new_owner(), b"data")

    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as context:
        context.setattr(os, "fsync", fail)
        assert files.save(KEY, 9, new_owner(), b"more") is None
        assert files.save(KEY, 11, new_owner(), b"more") is None
    assert len(told) == 1
    assert f"({os.strerror(number)})" in told[0]
    assert [path.name for path in files.checkpoints()] == [first]
    assert files.save(KEY, 13, new_owner(), b"more") is not None  # it may be writable again


def test_what_will_be_missing_is_told_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    files = SideFiles(tmp_path / "state", told.append)
    files.probe()
    assert told == []
    assert [path.name for path in sorted((tmp_path / "state").rglob("*"))] == [
        "checkpoints",
        "logs",
    ]
    (tmp_path / "state" / "logs").rmdir()
    (tmp_path / "state" / "logs").touch()
    files.probe()
    files.go_without("logs", OSError(errno.EACCES, "Permission denied"))
    (line,) = told
    assert line.startswith(
        f"{tmp_path}/state/logs cannot be written (it is not a folder); runs continue without "
        "logs; "
    )

    def fail(number: int) -> object:
        raise OSError(number, os.strerror(number))

    other = SideFiles(tmp_path / "other", told.append)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: fail(errno.EROFS))  # noqa: A006
    other.probe()
    assert told[1].startswith(
        f"{other.folder}/checkpoints and {other.folder}/logs cannot be written (Read-only file "
        "system); "
    )
    full = SideFiles(tmp_path / "full", told.append)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: fail(errno.ENOSPC))  # noqa: A006
    full.probe()
    assert told[2].startswith(f"{full.folder}/logs cannot be written (No space left on device); ")
    assert len(told) == 3  # no room for a checkpoint ends the command when there is one


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_disk_that_is_full_leaves_no_half_file(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = SideFiles(tmp_path / "state")
    first = files.save(KEY, 7, new_owner(), b"data")

    def full(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        StorageError, match=f"{os.strerror(number)}; make room; what was stored before is intact"
    ):
        files.save(KEY, 9, new_owner(), b"more")
    assert [path.name for path in files.checkpoints()] == [first]


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    sync, replace = os.fsync, Path.replace

    def note_sync(handle: int) -> None:
        happened.append("sync")
        sync(handle)

    def note_replace(path: Path, target: Path) -> Path:
        happened.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_replace)
    SideFiles(tmp_path).save(KEY, 7, new_owner(), b"data")
    assert happened == ["sync", "rename", "sync"]
