"""The folder beside a database: checkpoints of runs in progress, and one log per run."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

from sqlalchemy.engine import URL, make_url

from dynabro_cli.core.errors import StorageError
from dynabro_cli.core.machine.failpoints import failpoint
from dynabro_cli.core.machine.host_memory import free_host_memory
from dynabro_cli.core.machine.macos import sync
from dynabro_cli.core.machine.strangers_files import open_regular, read_regular
from dynabro_cli.runs.store.open.files import sqlite_path
from dynabro_cli.runs.store.open.translation import NO_ROOM

MAGIC = b"dynabro checkpoint 1\n"
DIGEST = hashlib.sha256().digest_size
DATABASE_FILE = "database"
"""The file in ``DYNABRO_STATE`` with the path of the database that uses the folder itself."""

LONGEST_PATH = 65_536

Folder = Literal["checkpoints", "logs"]
LOSSES: dict[Folder, str] = {
    "checkpoints": "runs continue without new checkpoints, and an interrupted run resumes from "
    "its last one or starts again",
    "logs": "runs continue without logs",
}


class SideFiles:
    """Checkpoints and logs of the runs of one database.

    A checkpoint is complete, under a new name, before the database names it. So a run's row never
    names half a file. If a folder cannot be written, for any reason except a full disk, runs
    continue without its files.

    Args:
        folder: The folder; created with the first file.
        tell: Called once with a line for each folder that cannot be written.
        database: The file of the database, if the folder has to say whose it is.
    """

    def __init__(
        self,
        folder: Path,
        tell: Callable[[str], None] = lambda line: None,
        database: Path | None = None,
    ) -> None:
        self.folder, self._database = folder, database
        self._checkpoints, self._logs = folder / "checkpoints", folder / "logs"
        self._tell, self._warned = tell, set[Folder]()

    @classmethod
    def of(cls, database: str | URL, tell: Callable[[str], None] = lambda line: None) -> SideFiles:
        """Return the files of a database: in ``DYNABRO_STATE``, or beside it (``results.db.d``), or
        in ``NAME.d`` here for a server's. In ``DYNABRO_STATE`` a second database has a separate
        folder: two may have runs of the same key.
        """
        url = (
            database
            if isinstance(database, str)
            else database.render_as_string(hide_password=False)
        )
        path = sqlite_path(url)
        given = os.environ.get("DYNABRO_STATE")
        if given:
            state = Path(os.path.expanduser(given))
            if path is None:
                return cls(state, tell)
            first = _first_database(state)
            if first is None or not first.exists() or (path.exists() and first.samefile(path)):
                return cls(state, tell, path.resolve())
            return cls(
                state / f"{path.name}.{hashlib.sha256(bytes(path.resolve())).hexdigest()[:8]}.d",
                tell,
            )
        if path is not None:
            return cls(path.resolve().with_name(path.resolve().name + ".d"), tell)
        return cls(Path(f"{make_url(url).database}.d"), tell)

    def probe(self) -> None:
        """Write to both folders and remove the file again, so that a problem is reported before a
        run starts.
        """
        folders: dict[Folder, Path] = {"checkpoints": self._checkpoints, "logs": self._logs}
        failed: dict[str, list[Folder]] = {}
        for kind, folder in folders.items():
            try:
                folder.mkdir(parents=True, exist_ok=True)
                tempfile.TemporaryFile(dir=folder).close()
                sync(folder)
            except OSError as error:
                # a full disk is an error when a checkpoint is written
                if kind == "logs" or error.errno not in NO_ROOM:
                    failed.setdefault(_reason(error), []).append(kind)
        for reason, kinds in failed.items():
            self._go_without(kinds, reason)
        if self._database is not None and _first_database(self.folder) != self._database:
            # written aside: opening what is in its place could wait
            part = self.folder / f".{DATABASE_FILE}.{os.getpid()}"
            with contextlib.suppress(OSError):
                part.write_bytes(bytes(self._database))
                part.replace(self.folder / DATABASE_FILE)

    def go_without(self, kind: Folder, error: OSError) -> None:
        """Report, once, that a folder cannot be written and what that costs."""
        if kind not in self._warned:
            self._go_without([kind], _reason(error))

    def _go_without(self, kinds: Sequence[Folder], reason: str) -> None:
        self._warned.update(kinds)
        folders = " and ".join(str(self.folder / kind) for kind in kinds)
        losses = "; ".join(LOSSES[kind] for kind in kinds)
        advice = "make it writable, or name another folder with DYNABRO_STATE"
        self._tell(f"{folders} cannot be written ({reason}); {losses}; {advice}")

    def log(self, run_key: str) -> Path:
        """Return the file of a run's log, which need not exist."""
        return self._logs / Path(f"{run_key}.log").name

    def prepare_log(self, run_key: str) -> Path | None:
        """Return ``log``, in an existing folder; None if the folder cannot be created, which is
        reported once.
        """
        try:
            self._logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self.go_without("logs", error)
            return None
        return self.log(run_key)

    def save(self, run_key: str, rounds: int, owner: str, data: bytes) -> str | None:
        """Save a checkpoint completely, or not at all.

        Returns:
            Its name; None if the folder cannot be written, which is reported once.

        Raises:
            StorageError: The disk is full.
        """
        name = f"{run_key}.{rounds}.{owner.rpartition(':')[2]}"
        part = self._checkpoints / f"{name}.part"
        try:
            self._checkpoints.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                file.write(MAGIC + hashlib.sha256(data).digest())
                file.write(data[: len(data) // 2])
                failpoint("checkpoint-write")
                file.write(data[len(data) // 2 :])
            sync(part)
            failpoint("before-rename")
            part.replace(self._checkpoints / name)
            sync(self._checkpoints)
            failpoint("after-rename")
        except OSError as error:
            self.remove([part.name, name])
            if error.errno in NO_ROOM:
                raise StorageError(
                    f"{part}: {error.strerror}; make room; what was stored before is intact"
                ) from error
            self.go_without("checkpoints", error)
            return None
        return name

    def load(self, name: str) -> bytes | None:
        """Return the content of a checkpoint; None if it is missing, damaged or compressed, not a
        regular file, or larger than the free memory.
        """
        free = free_host_memory()
        # 1.0.0 used the second one for all databases
        for folder in (self._checkpoints, self.folder.parent / "checkpoints"):
            # zipfile does not implement all that an archive may ask for
            with contextlib.suppress(OSError, ValueError, NotImplementedError):
                with open_regular(folder / Path(name).name) as file:
                    if free is not None and os.fstat(file.fileno()).st_size > free:
                        return None
                    head, data = file.read(len(MAGIC) + DIGEST), file.read()
                whole = head == MAGIC + hashlib.sha256(data).digest()
                return data if whole and not _compressed(data) else None
        return None

    def names(self, run_key: str) -> list[str]:
        """Return the checkpoints of a run, finished or not."""
        return [path.name for path in self.checkpoints() if path.name.startswith(f"{run_key}.")]

    def remove(self, names: Iterable[str]) -> None:
        """Remove checkpoints. Missing files are ignored."""
        for name in names:
            with contextlib.suppress(OSError):
                (self._checkpoints / Path(name).name).unlink()

    def checkpoints(self) -> list[Path]:
        """Return all checkpoint files, finished or not; empty if the folder is missing or cannot be
        read.
        """
        with contextlib.suppress(OSError):
            return sorted(self._checkpoints.iterdir())
        return []


def _compressed(data: bytes) -> bool:
    """Return True for an archive that unpacks to more than its size; it could fill the memory."""
    with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(io.BytesIO(data)) as archive:
        return sum(info.file_size for info in archive.infolist()) > len(data)
    return False


def _first_database(state: Path) -> Path | None:
    """Return the database that the files in ``DYNABRO_STATE`` itself belong to; None if nothing
    says so.
    """
    try:
        return Path(os.fsdecode(read_regular(state / DATABASE_FILE, LONGEST_PATH)))
    except (OSError, ValueError):
        return None


def _reason(error: OSError) -> str:
    """Return the reason why a folder cannot be written, in a few words."""
    return (
        "it is not a folder"
        if isinstance(error, FileExistsError | NotADirectoryError)
        else error.strerror or str(error)
    )
