"""The commands of README's section "Start" work one after the other, as ``benchmarks/first_steps``
times them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow  # other tests make each of these commands; this one, all in a row
@pytest.mark.timeout(1200)  # it makes the demo, and then a sweep
def test_from_a_picture_to_a_rule_in_a_sweep() -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [str(ROOT / "benchmarks" / "first_steps"), "--no-setup"]
    done = subprocess.run(
        command, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "momentum 0.9" in done.stdout
    assert "2 passed" in done.stdout
    assert "against: 16 runs in results.db: 16 finished" in done.stdout
    assert "plots/against.png" in done.stdout
    assert done.stdout.count("my-rule ") >= 4
    assert done.stderr.count("s of wall time") == 4
