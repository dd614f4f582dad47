"""Compiled functions, of the server and of layers: their kernels are built for two architectures without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dynabro_cli.gradients.fusible import Functions

pytest.importorskip("triton")
pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]

PAIRS = ("momentum:beta=0.9", "cwtm", "dynabro", "gm", "sgd", "signguard")
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("architecture", "pairs"),
    [pytest.param(80, PAIRS, marks=pytest.mark.slow), pytest.param(90, PAIRS, marks=pytest.mark.slow), (90, PAIRS[2:4])],
    ids=["80", "90", "90-one pair"],
)
def test_every_kernel_is_built(architecture: int, pairs: tuple[str, ...], tmp_path: Path) -> None:
    """Each of these methods and rules has separate kernels, only for the requested architecture."""
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    command = [sys.executable, "-W", "ignore", "-m", "tests.gpu.compiled", str(architecture), *pairs]
    ended = subprocess.run(command, cwd=ROOT, env=os.environ | caches, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    servers = [one for one in found if "method" in one]
    assert [(one["method"], one["rule"]) for one in servers] == list(zip(pairs[::2], pairs[1::2], strict=True))
    for one in found:
        assert one["kernels"] > 0
        assert {target.rstrip("a,") for target in one["targets"]} == {f"sm_{architecture}"}
    assert all(one["launches"] < 40 for one in servers)  # without compiling it is hundreds
    layers = [one for one in found if "function" in one]
    assert len(layers) == 2 * len(Functions())
    assert not any(one["others"] for one in layers)
    fewer = {one["function"]: (one["launches"], one["launches as it is"]) for one in layers}
    assert all(launches <= 4 for launches, _ in fewer.values())
    assert all(launches < plain for launches, plain in fewer.values())
