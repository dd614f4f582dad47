"""Network file systems: SQLite's write-ahead log is shared memory and works on one machine only."""

from __future__ import annotations

import os
import re
from pathlib import Path

from dynabro_cli.errors import CannotWriteError

MOUNTS = Path("/proc/self/mountinfo")
NETWORK = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "coda", "ncpfs", "ceph", "glusterfs"),
        *("lustre", "gpfs", "beegfs", "fhgfs", "orangefs", "pvfs2", "panfs", "wekafs", "gfs2", "ocfs2"),
        *(f"fuse.{name}" for name in ("sshfs", "glusterfs", "ceph", "ceph-fuse", "juicefs", "mfs", "weed", "quobyte", "dfuse")),
        *(f"fuse.{name}" for name in ("hdfs", "s3fs", "gcsfuse", "rclone", "goofys", "blobfuse", "blobfuse2", "gvfsd-fuse")),
        *(f"fuse.{name}" for name in ("smbnetfs", "davfs", "davfs2")),
    )
)


def network_file_system(path: Path, mounts: Path | None = None) -> str | None:
    """Return the kind of network file system of a file; None if it is local or unknown.

    ``9p``, ``virtiofs`` and the like do not count: they are folders of the machine's own host, and some containers have nothing
    else, not even for ``/``. All processes in such a machine share memory, as SQLite needs.

    Args:
        path: A file, which need not exist.
        mounts: The table of mounts; by default Linux's. Other systems have none, so that the result is None.
    """
    try:
        table = (mounts or MOUNTS).read_bytes()
        place = os.fsencode(path.resolve())
    except (OSError, RuntimeError):  # RuntimeError: a circle of links
        return None
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
    return name if name in NETWORK else None


def refuse_network(path: Path) -> None:
    """Raise CannotWriteError if an SQLite database is to be written on a network file system."""
    kind = network_file_system(path)
    if kind is not None:
        raise CannotWriteError(
            f"{path} is on a network file system ({kind}), and SQLite's write-ahead log does not work across machines. Try: "
            "--db with a file on a local disk, and 'dynabro db merge' to bring results together, or "
            "--db postgresql+psycopg://USER@HOST/NAME"
        )
