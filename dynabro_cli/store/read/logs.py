"""Find the logs of runs."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from dynabro_cli.errors import NotFoundError
from dynabro_cli.store.claims import RERUN_SUFFIX
from dynabro_cli.store.open.engine import open_read_only
from dynabro_cli.store.read.queries import find_run
from dynabro_cli.store.side_files import SideFiles


def find_log(database: str, name: str) -> Path:
    """Return the log of the run whose id is ``name``, or whose key begins with it.

    Raises:
        NotFoundError: There is no such run, or its log cannot be read.
        DynabroError: The database cannot be read.
    """
    engine = open_read_only(database)
    row = find_run(engine, name.removeprefix("runs/"))
    path = SideFiles.of(engine.url).log(row["run_key"].removesuffix(RERUN_SUFFIX))
    if not os.access(path, os.R_OK) or not path.is_file():
        what = "cannot be read" if path.exists() else "is not there"
        where = "here" if row["host"] == platform.node() else f"on {row['host']}"
        raise NotFoundError(f"run {row['id']} ran {where}, and its log {path} {what}. Try: DYNABRO_STATE=FOLDER")
    return path
