"""``store.outputs``: what a written file never replaces, and that it is there whole or not at
all.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dynabro_cli.answers.analysis.selection import SELECTED
from dynabro_cli.core.errors import CannotWriteError, DatabaseError, StorageError
from dynabro_cli.runs.store.care import outputs
from dynabro_cli.runs.store.care.outputs import CSV, DATABASE, PICTURES, FileKind, Output
from dynabro_cli.runs.store.open.engine import open_for_writing, open_read_only
from dynabro_cli.runs.store.ownership import new_owner
from tests.runs.store.made import change

NEW = b"a,b\n1,2\n"
SWEEP = "name: mine\nbase: {task: digits}\n"
CHOSEN = (
    "name: mine-selected\ndescription: What was chosen of mine on its validation "
    "split\nbase: {task: digits}\n"
)
TABLE = "CREATE TABLE kept (x)"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in."""
    monkeypatch.delenv("DYNABRO_STATE", raising=False)
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


def write(
    target: str | Path,
    kind: FileKind = CSV,
    content: bytes = NEW,
    *,
    force: bool = False,
    database: str = "results.db",
    meanwhile: Callable[[], object] = lambda: None,
) -> None:
    with Output(Path(target), kind, database, force).writing() as file:
        file.write(content)
        file.flush()
        meanwhile()


def everything(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


# --- what is never replaced


def a_database(folder: Path) -> Path:
    change(folder / "other.db", TABLE)
    return folder / "other.db"


def a_link(folder: Path) -> Path:
    (folder / "out.csv").symlink_to(a_database(folder))
    return folder / "out.csv"


def a_hard_link(folder: Path) -> Path:
    os.link(a_database(folder), folder / "out.csv")
    return folder / "out.csv"


def by_another_way(folder: Path) -> Path:
    a_database(folder)
    return Path("..") / folder.name / "." / "other.db"


DATABASES = [a_database, a_link, a_hard_link, by_another_way]


@pytest.mark.parametrize(
    ("make", "kind", "force"),
    [
        *((make, CSV, True) for make in DATABASES),
        *((a_database, kind, True) for kind in (DATABASE, PICTURES["svg"], SELECTED)),
        (a_database, CSV, False),
    ],
)
def test_databases_are_never_replaced(
    make: Callable[[Path], Path], kind: FileKind, force: bool, folder: Path
) -> None:
    target = make(folder)
    before = everything(folder)
    with pytest.raises(CannotWriteError) as caught:
        write(target, kind, force=force, database="postgresql+psycopg://host/results")
    assert str(target) in str(caught.value)
    assert "--force" not in str(caught.value)
    assert everything(folder) == before


def test_the_own_database_is_not_replaced_even_where_it_is_damaged(folder: Path) -> None:
    (folder / "results.db").write_bytes(b"damaged")
    with pytest.raises(CannotWriteError, match="is a database"):
        write("results.db", force=True)
    (folder / "results.db").unlink()
    with pytest.raises(CannotWriteError, match="is a database"):
        write("results.db", force=True)


def test_what_is_read_is_not_replaced(folder: Path) -> None:
    Path("chosen.yaml").write_text(CHOSEN)
    os.link("chosen.yaml", "same.yaml")
    with pytest.raises(CannotWriteError, match="is an input of this command"):
        Output(Path("same.yaml"), SELECTED, "results.db", True, Path("chosen.yaml")).checked_path()
    assert (
        Output(Path("new.yaml"), SELECTED, "results.db", False, Path("demo")).checked_path()
        == folder / "new.yaml"
    )


@pytest.mark.parametrize(
    "make",
    [lambda path: os.mkfifo(path), lambda path: path.symlink_to("/dev/null")],
    ids=["pipe", "device"],
)
def test_a_device_or_a_pipe_is_no_database(make: Callable[[Path], None], folder: Path) -> None:
    make(folder / "results.db")
    for opened in (open_for_writing, open_read_only):
        with pytest.raises(DatabaseError, match="is a device or a pipe, not a database"):
            opened("results.db")


# --- what is replaced, and with what


PNG = b"\x89PNG\r\n\x1a\n..."


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("out.csv", b"x,y\n", CSV),
        ("OUT.CSV", b"", CSV),
        ("out.txt", b"", CSV),
        ("out.png", PNG, PICTURES["png"]),
        ("out.svg", b"<svg ", PICTURES["svg"]),
        ("out", CHOSEN.encode(), SELECTED),
        ("out", b"", SELECTED),
    ],
)
def test_a_file_of_the_same_kind_is_replaced(
    name: str, content: bytes, kind: FileKind, folder: Path
) -> None:
    Path(name).write_bytes(content)
    write(name, kind)
    assert everything(folder) == {name: NEW}


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("thesis.tex", b"\\begin", CSV),
        ("grid.yaml", SWEEP.encode(), CSV),
        ("out.csv", b"x,y\n", PICTURES["svg"]),
        ("grid.yaml", SWEEP.encode(), SELECTED),
        ("notes.yaml", b"todo: [this, that]\nname: x\n", SELECTED),
        ("copy.db", b"x", DATABASE),
    ],
)
def test_a_file_of_another_kind_needs_force(
    name: str, content: bytes, kind: FileKind, folder: Path
) -> None:
    Path(name).write_bytes(content)
    with pytest.raises(
        CannotWriteError, match=r"is there already. Try: another|is not an? .*--force"
    ):
        write(name, kind)
    assert everything(folder) == {name: content}
    write(name, kind, force=True)
    assert everything(folder) == {name: NEW}


def test_a_link_is_followed_and_stays(folder: Path) -> None:
    Path("real.csv").write_bytes(b"old")
    Path("link.csv").symlink_to("real.csv")
    Path("new.csv").symlink_to("later.csv")
    write("link.csv")
    write("new.csv")
    assert Path("link.csv").readlink() == Path("real.csv")
    assert [Path(name).read_bytes() for name in ("real.csv", "later.csv")] == [NEW, NEW]


def test_another_name_of_a_file_keeps_what_it_has(folder: Path) -> None:
    Path("old.csv").write_bytes(b"old")
    os.link("old.csv", "out.csv")
    write("out.csv")
    assert (Path("old.csv").read_bytes(), Path("out.csv").read_bytes()) == (b"old", NEW)


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_permissions_are_the_umasks_or_those_of_the_file_before(umask: int, folder: Path) -> None:
    before = os.umask(umask)
    try:
        write("new.csv")
        Path("old.csv").touch()
        Path("old.csv").chmod(0o640)
        write("old.csv")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(os.stat(name).st_mode) for name in ("new.csv", "old.csv")] == [
        0o666 & ~umask,
        0o640,
    ]


@pytest.mark.parametrize("mode", [os.R_OK, os.W_OK])
def test_a_file_without_permission(
    mode: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("out.csv").write_bytes(b"old")
    monkeypatch.setattr(os, "access", lambda _, wanted: not wanted & mode)  # root may do everything
    with pytest.raises(CannotWriteError, match="Permission denied"):
        write("out.csv", force=True)
    assert everything(folder) == {"out.csv": b"old"}


@pytest.mark.parametrize("name", ["sub", "sub/", "missing/out.csv", "x" * 256, "round", "sock"])
def test_what_no_file_can_be(name: str, folder: Path) -> None:
    import socket

    Path("sub").mkdir()
    Path("round").symlink_to("round")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("sock")
    before = everything(folder)
    with pytest.raises(CannotWriteError):
        write(name, force=True)
    assert everything(folder) == before


# --- whole or not at all


class StopError(Exception):
    """Something goes wrong in the middle."""


def stop() -> None:
    """Break off."""
    raise StopError


@pytest.mark.parametrize("old", [None, b"old"])
def test_what_breaks_off_leaves_what_was_there(old: bytes | None, folder: Path) -> None:
    if old is not None:
        Path("out.csv").write_bytes(old)
    with pytest.raises(StopError):
        write("out.csv", content=NEW * 10_000, meanwhile=stop)
    assert everything(folder) == ({} if old is None else {"out.csv": old})


@pytest.mark.usefixtures("_small_files")
def test_a_full_disk_leaves_what_was_there(folder: Path) -> None:
    Path("out.csv").write_bytes(b"old")
    with pytest.raises(
        StorageError, match=r"out\.csv cannot be written \(File too large\)\. Try: make room"
    ):
        write("out.csv", content=NEW * 10_000)
    assert everything(folder) == {"out.csv": b"old"}


@pytest.mark.parametrize("old", [None, b"old"])
def test_a_database_that_grows_into_the_place_meanwhile(old: bytes | None, folder: Path) -> None:
    if old is not None:
        Path("out.csv").write_bytes(old)

    def grow() -> None:
        Path("out.csv").unlink(missing_ok=True)
        change(Path("out.csv"), TABLE)

    with pytest.raises(CannotWriteError, match="is a database"):
        write("out.csv", meanwhile=grow)
    with sqlite3.connect("out.csv") as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("kept",)]
    assert [path.name for path in folder.iterdir()] == ["out.csv"]


def test_two_at_once_are_both_whole(folder: Path) -> None:
    first = Output(Path("out.csv"), CSV, "results.db")
    with first.writing() as one, Output(Path("out.csv"), CSV, "results.db").writing() as two:
        one.write(b"one\n")
        two.write(b"two\n")
    assert everything(folder) == {"out.csv": b"one\n"}


# --- what is no file


def test_devices_and_pipes_are_written_as_they_are(folder: Path) -> None:
    write("/dev/null")
    with pytest.raises(StorageError, match="No space left on device"):
        write("/dev/full")
    os.mkfifo("pipe")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(Path("pipe").read_bytes()))
    reader.start()
    write("pipe")
    reader.join()
    assert read == [NEW]
    assert stat.S_ISFIFO(os.stat("pipe").st_mode)


def test_a_name_that_no_file_can_have(folder: Path) -> None:
    with pytest.raises(CannotWriteError, match="null"):
        write("a\0b")


def test_parts_are_hidden_and_belong_to_one_process() -> None:
    names = {outputs.part_of(Path("/x/out.csv")).name for _ in range(100)}
    assert len(names) == 100
    assert all(name.startswith(".") and name.endswith(".part") for name in names)
    # file systems of memory cards refuse colons
    assert not any(":" in name for name in names)


HOUR = 3600
GONE = "999999999-1-ab"
"""A process that no machine has."""


@pytest.mark.parametrize(
    ("owner", "age", "stays"),
    [
        ("{machine}-{pid}-{start}-ab", 40 * 24 * HOUR, True),  # works, and writes elsewhere
        ("{machine}-{pid}-123-ab", 0, False),  # another process got the number
        (f"{{machine}}-{GONE}", 0, False),
        (f"elsewhere-{GONE}", 23 * HOUR, True),
        (f"elsewhere-{GONE}", 25 * HOUR, False),
        ("0123456789abcdef", 23 * HOUR, True),  # a part of version 1.1.0
        ("0123456789abcdef", 25 * HOUR, False),
        ("", 25 * HOUR, False),
    ],
)
def test_the_parts_of_killed_commands_are_removed(
    owner: str, age: float, stays: bool, folder: Path
) -> None:
    machine, pid, start, _ = new_owner().split(":")
    name = f".dynabro.{owner.format(machine=machine, pid=pid, start=start)}.part"
    Path("kept").mkdir()
    Path("kept", "rows.csv").write_text("a")
    Path(name).write_text("half")
    Path(f"{name}-journal").write_text("half")
    Path(f"{name}abcd").mkdir()
    Path(f"{name}abcd", "thin.db").write_text("half")
    Path(f"{name}link").symlink_to("kept")
    others = [".dynabro.yaml", ".other.ab.part", "dynabro.ab.part"]
    for other in others:
        Path(other).write_text("theirs")
    parts = sorted(path.name for path in Path().iterdir() if path.name.startswith(name))
    assert len(parts) == 4
    for path in (*parts, *others):
        moment = time.time() - age
        os.utime(path, (moment, moment), follow_symlinks=False)
    write("rows.csv")
    expected = {"kept", "kept/rows.csv", "rows.csv", *others}
    if stays:
        expected |= {*parts, f"{name}abcd/thin.db"}
    assert set(everything(folder)) == expected
