"""Files of SQLite databases: their paths and URIs, what they hold, and the file systems they are
on.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from dynabro_cli.core.errors import (
    CannotWriteError,
    DatabaseError,
    LostDatabaseError,
    NotFoundError,
    SpecError,
)
from dynabro_cli.core.machine.macos import network_kind
from dynabro_cli.runs.store.open.connections import connect_reader
from dynabro_cli.runs.store.open.schema import Schema, schema_of_file
from dynabro_cli.runs.store.open.translation import shown, translated_errors
from dynabro_cli.runs.store.tables import APPLICATION_ID

IN_MEMORY = ":memory:"
"""Name by which SQLite opens a database in memory."""


def sqlite_path(database: str) -> Path | None:
    """Return the file of an SQLite database; None for a database of another kind.

    Raises:
        SpecError: ``database`` is empty, or in memory.
        DatabaseError: ``database`` looks like a URL, but SQLAlchemy does not know it.
    """
    if not database.strip():
        raise SpecError(f"db={database!r} names no file. Try: a path, such as --db results.db")
    if "://" not in database:
        path = _checked(database)
        if str(path) == IN_MEMORY:
            raise SpecError(
                f"db={database}: a database in memory is lost when the command ends. Try: --db "
                "results.db"
            )
        return path
    kind, _, rest = database.partition("://")  # the rest may hold a password
    if rest.partition("?")[0].count("@") > 1:
        raise DatabaseError(
            f"{shown(database)}: an @ in the user's name or password ends it. Try: %40 in its place"
        )
    try:
        url = make_url(database)
    except (ArgumentError, ValueError) as error:
        raise DatabaseError(
            f"{kind}://... is not a database URL. Try: a path, or a URL such as "
            "sqlite:///results.db"
        ) from error
    if url.get_backend_name() != "sqlite":
        return None
    if not url.database or str(Path(url.database)) == IN_MEMORY:
        raise DatabaseError(
            f"{database} names no file, and results are to be kept. Try: a path, such as --db "
            "results.db"
        )
    return _checked(url.database)


def _checked(name: str) -> Path:
    """Return the path of a file; raise CannotWriteError if no file can have it, such as a link to
    itself.
    """
    try:
        path = Path(name).expanduser()
        path.exists()
        if not path.resolve().name:
            raise ValueError("it is the root folder")
        if path.resolve().is_symlink():  # Python 3.13 does not raise
            raise ValueError("a circle of links")
        name.encode()
    except UnicodeEncodeError as error:
        raise CannotWriteError(
            f"{name!r} cannot be a database, because Python does not read its name as UTF-8. Try: "
            "another --db; if the name is UTF-8, PYTHONUTF8=1"
        ) from error
    except (OSError, RuntimeError, ValueError) as error:
        raise CannotWriteError(f"{name!r} cannot be a file ({error}). Try: another --db") from error
    return path


def read_only_uri(path: Path, *, for_a_moment: bool = False) -> str:
    """Return a read-only URI.

    The URI is immutable if nobody is writing and the files that SQLite shares with writers could
    not be created, or would belong to another user than the database, whose owner could not write
    them; or if the database is read ``for_a_moment`` only. Then no files are left behind.
    """
    path = path.resolve()
    wal = path.with_name(path.name + "-wal")
    try:
        size = wal.stat().st_size
        quiet = for_a_moment and not size
    except FileNotFoundError:  # the last writer removes it
        quiet = True
    owner_reads = os.geteuid() in (0, path.stat().st_uid)  # SQLite gives root's files to the owner
    lonely = quiet and (for_a_moment or not (owner_reads and os.access(path.parent, os.W_OK)))
    return f"{path.as_uri()}?mode=ro" + ("&immutable=1" if lonely else "")


def file_version(path: Path) -> int | None:
    """Return the schema version of a dynabro database, None without tables; the file is not
    written.

    Raises:
        DatabaseError: The file is not a dynabro database, or is damaged.
        NotFoundError: The file cannot be read.
    """
    return examined(path)[0]


def examined(path: Path, patience: float | None = None) -> tuple[int | None, Schema]:
    """Return version and schema of a file; ``patience`` as in ``open_read_only``, errors as in
    ``file_version``.
    """
    if not path.exists():
        raise NotFoundError(
            f"there is no database {path}. Try: dynabro run, which makes one, or another --db"
        )
    if not path.is_file():  # SQLite would wait for a pipe
        kind = "folder" if path.is_dir() else "device or a pipe"
        raise DatabaseError(f"{path} is a {kind}, not a database. Try: a file for --db")
    if not os.access(path, os.R_OK):
        raise NotFoundError(f"{path} cannot be read (Permission denied). Try: another --db")
    # a database of another program gets no log of SQLite beside it
    uri = read_only_uri(path, for_a_moment=True)
    with (
        translated_errors(str(path)),
        contextlib.closing(connect_reader(uri, patience)) as connection,
    ):
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        schema = schema_of_file(connection)
    if application == 0 and version == 0 and not schema.tables:
        return None, schema
    if application != APPLICATION_ID:
        raise DatabaseError(f"{path} is not a dynabro database. Try: another --db")
    return version, schema


LOG_SUFFIXES = ("-wal", "-shm", "-journal")


def refuse_log_names(path: Path) -> None:
    """Raise CannotWriteError if SQLite would destroy a database: a new one that is named like
    another one's log, or one where the new one's log is to be.
    """
    name = path.name.lower()  # file systems may ignore case
    if name.endswith(LOG_SUFFIXES) and not path.exists():
        raise CannotWriteError(
            f"{path}: SQLite gives this name to the log of another database. Try: another name"
        )
    for side in (path.with_name(path.name + suffix) for suffix in LOG_SUFFIXES):
        if side.is_file() and is_sqlite(side):
            raise CannotWriteError(
                f"{path}: SQLite would write its log over the database {side}. Try: mv {side}, "
                "or another name"
            )


def is_sqlite(path: Path) -> bool:
    """Return True if ``path`` is an SQLite database.

    This process must not have the database open: when it closes any descriptor of a file, the
    system drops all its locks on the file, SQLite's among them (SQLite's "How To Corrupt", 2.2).
    """
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"


MOUNTS = Path("/proc/self/mountinfo")
NETWORK = frozenset(
    """
    nfs nfs4 cifs smb3 smbfs afs coda ncpfs ceph glusterfs lustre gpfs beegfs fhgfs
    orangefs pvfs2 panfs wekafs gfs2 ocfs2 sshfs ceph-fuse juicefs mfs weed quobyte dfuse
    hdfs s3fs gcsfuse rclone goofys blobfuse blobfuse2 gvfsd-fuse smbnetfs davfs davfs2
    """.split()
)
"""Kinds of file systems that several machines share, without the ``fuse.`` of some of them."""


def network_file_system(path: Path) -> str | None:
    """Return the kind of network file system of a file; None if it is local or unknown.

    ``9p``, ``virtiofs`` and the like do not count: they are folders of the machine's own host, and
    some containers have nothing else, not even for ``/``. All processes in such a machine share
    memory, as SQLite needs.

    Args:
        path: A file, which need not exist.
    """
    try:
        table = MOUNTS.read_bytes()
        place = os.fsencode(path.resolve())
    except (OSError, RuntimeError):  # RuntimeError: a circle of links
        return network_kind(path)  # macOS has no table
    longest, kind = -1, b""
    for line in table.splitlines():
        fields = line.split(b" ")
        if b"-" not in fields[6:]:
            continue
        point = re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8) & 0xFF]), fields[4])
        under = place == point or place.startswith(point.rstrip(b"/") + b"/")
        if under and len(point) >= longest:  # the later of two mounts on one folder is visible
            longest, kind = len(point), fields[fields.index(b"-", 6) + 1]
    name = os.fsdecode(kind)
    return name if name.removeprefix("fuse.") in NETWORK else None


def refuse_network(path: Path) -> None:
    """Raise CannotWriteError if an SQLite database is to be written on a network file system."""
    kind = network_file_system(path)
    if kind is not None:
        raise CannotWriteError(
            f"{path} is on a network file system ({kind}), and SQLite's write-ahead log does "
            "not work across machines. Try: "
            "--db with a file on a local disk, and 'dynabro db merge' to bring results "
            "together, or "
            "--db postgresql+psycopg://USER@HOST/NAME"
        )


def refuse_two_names(path: Path) -> None:
    """Raise CannotWriteError if a database has a second name (a hard link).

    SQLite names its log and its locks after the database: writers under two names do not see each
    other's, and destroy the file (SQLite's "How To Corrupt", 2.4).
    """
    links = path.stat().st_nlink if path.is_file() else 1
    if links > 1:
        raise CannotWriteError(
            f"{path} has {links} names (hard links), and writers under two names destroy an "
            "SQLite database. Try: "
            f"cp {path} {path}.copy && mv {path}.copy {path}, which gives this name a separate file"
        )


class PinnedFile:
    """Open connections to a file: the first one may create the file, later ones need the same file.

    Otherwise SQLite would replace a database that was removed by an empty one.

    Args:
        path: The file.
        timeout: Seconds that SQLite itself waits for a lock.
    """

    def __init__(self, path: Path, timeout: float) -> None:
        self._name, self._path, self._timeout = path, Path(os.path.abspath(path)), timeout
        self._inode: tuple[int, int] | None = None  # known from the first connection on

    def connect(self) -> sqlite3.Connection:
        """Open a connection.

        Raises:
            LostDatabaseError: The file does not exist any more, or is another one.
            sqlite3.Error: The file cannot be opened.
        """
        self.check()
        mode = "rwc" if self._inode is None else "rw"
        if self._inode is None:
            # SQLite itself would let only its owner write, whatever the umask
            with contextlib.suppress(OSError):
                os.close(os.open(self._path, os.O_CREAT | os.O_EXCL, 0o666))
        uri = f"{self._path.as_uri()}?mode={mode}"
        connection = sqlite3.connect(uri, uri=True, timeout=self._timeout, check_same_thread=False)
        if self._inode is None:
            self._inode = _inode(self._path)
        return connection

    def check(self) -> None:
        """Raise LostDatabaseError if the file does not exist any more, or is another one."""
        if self._inode is not None and _inode(self._path) != self._inode:
            raise LostDatabaseError(
                f"{self._name} was removed or replaced while this command was writing it. Try: "
                "put it back, and repeat the command"
            )


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
