"""docs/distributed_example.py runs, and docs/distributed.md has the tables of its results."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def printed(*command: str) -> list[str]:
    """The lines that a Python program prints."""
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=False,
        cwd=DOCS.parent,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.thorough
def test_the_example_trains_with_every_method() -> None:
    """Four mini-batches per rank, with and without faults; losses are at most a guess's."""
    methods, faults = ("mean", "clipping", "cwtm", "dynabro"), ("0.0", "0.2")
    lines = printed(
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"),
        *("docs/distributed_example.py", ",".join(methods), "0.1", ",".join(faults), "1", "4"),
    )
    rows = [line.split(",") for line in lines]
    assert [row[:-1] for row in rows] == [
        [method, "0.1", share, "1"] for method in methods for share in faults
    ]
    for method, _, share, _, loss in rows:
        if share == "0.0" or method != "mean":
            assert 2 < float(loss) < math.log(256)


def test_the_page_has_the_tables_of_the_results() -> None:
    page = (DOCS / "distributed.md").read_text(encoding="utf-8")
    lines = printed("docs/distributed_table.py")
    assert len(lines) == 21
    for table in "\n".join(lines).split("\n\n"):
        assert table in page, f"type: python docs/distributed_table.py\n{table}"
