"""docs/distributed_example.py runs, and docs/distributed.md has its results."""

from __future__ import annotations

import csv
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


def test_the_page_has_the_results() -> None:
    page = (DOCS / "distributed.md").read_text(encoding="utf-8")
    _, chosen, explored = "\n".join(printed("docs/distributed_table.py")).split("\n\n")
    assert chosen in page, f"type: python docs/distributed_table.py\n{chosen}"
    verdicts = [
        line.split("|")[-2].strip() for line in (chosen + "\n" + explored.strip()).splitlines()
    ]
    words = " ".join(page.split())
    assert verdicts.count("undecided") == 4 + 1
    assert verdicts[-4:] == ["yes"] * 3 + ["undecided"]
    assert "then clipping suffices up to 1%, and 10% stays undecided" in words


def test_clipping_has_the_lower_loss_in_each_comparison() -> None:
    with open(DOCS / "distributed.csv", newline="") as file:
        runs = {tuple(row.values())[:4]: float(row["loss"]) for row in csv.DictReader(file)}
    # a NaN is a diverged run
    lost = [
        runs[robust, rate, faults, seed] <= runs["clipping", "1.0", faults, seed]
        for robust, rate in (("cwtm", "0.3"), ("dynabro", "1.0"))
        for faults in ("0.0", "0.001", "0.01", "0.1")
        for seed in "012"
    ]
    assert (len(lost), sum(lost)) == (24, 0)
