"""``store.file_systems``: what is local and what is not, by a made-up table of mounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynabro_cli.core.errors import CannotWriteError
from dynabro_cli.runs.store.open import files as file_systems
from dynabro_cli.runs.store.open.engine import open_for_writing, open_read_only
from dynabro_cli.runs.store.open.files import network_file_system, sqlite_path
from tests.runs.store import sound
from tests.runs.store.made import record
from tests.tables import each_row

TABLE = r"""
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 27 0:30 / /home rw,relatime shared:5 master:2 - nfs4 server:/home rw,vers=4.2
31 30 0:31 /local /home/me/local rw,relatime - xfs /dev/vdb rw
32 27 0:32 / /mnt/my\040share rw - cifs //server/share rw
33 27 0:33 / /data rw - autofs systemd-1 rw
34 27 0:34 / /data rw - lustre mgs@tcp:/data rw
35 27 0:35 / /scratch rw - nfs server:/scratch rw
36 27 0:36 / /scratch rw - tmpfs tmpfs rw
37 27 0:37 / /windows rw - 9p C: rw
38 27 0:38 / /remote rw shared:1 - fuse.sshfs me@host: rw
39 27 0:30 /shared /srv/bound rw - nfs4 server:/home rw
not a line of it
40 27 0:40 / /odd\134name rw - ceph mon:/ rw
41 27 0:41 / /mnt/- rw,a-b - nfs - rw
""".lstrip()


@pytest.fixture
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's table of mounts."""
    path = tmp_path / "mountinfo"
    path.write_text(TABLE)
    monkeypatch.setattr(file_systems, "MOUNTS", path)
    return path


@pytest.mark.usefixtures("mounts")
@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/results.db", None),
        ("/home/me/results.db", "nfs4"),
        ("/home", "nfs4"),
        ("/homes/results.db", None),
        ("/home/me/local/results.db", None),
        ("/home/me/localized/results.db", "nfs4"),
        ("/mnt/my share/results.db", "cifs"),
        ("/data/results.db", "lustre"),
        ("/scratch/results.db", None),
        ("/windows/results.db", None),
        ("/remote/deep/down/results.db", "fuse.sshfs"),
        ("/srv/bound/results.db", "nfs4"),
        ("/odd\\name/results.db", "ceph"),
        ("/mnt/-/results.db", "nfs"),
        ("/home/me/../../results.db", None),
    ],
)
def test_the_kind_is_that_of_the_mount_that_is_seen(path: str, kind: str | None) -> None:
    assert network_file_system(Path(path)) == kind


@pytest.mark.usefixtures("mounts")
def test_a_link_is_judged_by_where_it_leads(tmp_path: Path) -> None:
    link = tmp_path / "results.db"
    link.symlink_to("/remote/results.db")
    assert network_file_system(link) == "fuse.sshfs"


def test_nobody_knows_where_there_is_no_table(mounts: Path) -> None:
    mounts.unlink()
    assert network_file_system(Path("/home/me/results.db")) is None


def test_the_system_has_a_place_for_databases(tmp_path: Path) -> None:
    assert network_file_system(tmp_path / "results.db") is None


@pytest.mark.parametrize("backend", ["sqlite"])
def test_such_a_place_can_be_read_and_not_written(
    database: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(open_for_writing(database), sound.run(1))
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        f"27 1 254:0 / / rw - ext4 /dev/vda rw\n30 27 0:30 / {path.parent} rw - nfs server:/ rw\n"
    )
    monkeypatch.setattr(file_systems, "MOUNTS", mounts)
    with open_read_only(database).connect() as connection:
        assert connection.exec_driver_sql("SELECT COUNT(*) FROM runs").scalar() == 1
    for name in (database, str(path.with_name("new.db"))):
        with pytest.raises(
            CannotWriteError,
            match=r"network file system \(nfs\).*dynabro db merge.*postgresql\+psycopg://",
        ) as caught:
            open_for_writing(name)
        assert len(str(caught.value).splitlines()) == 1
    assert not path.with_name("new.db").exists()


@each_row("name", ["/", "//", "/tmp/..", "sqlite:////"])
def test_the_root_folder_is_no_database(name: str) -> None:
    with pytest.raises(CannotWriteError, match="it is the root folder"):
        sqlite_path(name)
