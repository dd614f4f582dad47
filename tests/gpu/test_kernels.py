"""Kernels that are written for a GPU: right in Triton's interpreter, and compiled for its architectures, without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytestmark = pytest.mark.thorough

INTERPRETED = """
import json, os
os.environ["TRITON_INTERPRET"] = "1"  # it is read when Triton is imported
import torch
from dynabro_cli.aggregators._weiszfeld_kernel import launch
from dynabro_cli.aggregators.gm import start_of, weiszfeld
from dynabro_cli.vectors.gram import around, gram

worst = {}
for m in (1, 2, 5, 17, 64):
    for case in ("apart", "equal rows", "one far away", "zeros"):
        messages = torch.randn(m, 30, generator=torch.Generator().manual_seed(m))
        if case == "equal rows":
            messages[m // 2 :] = messages[0]
        if case == "one far away":
            messages[0] *= 1e8
        if case == "zeros":
            messages *= 0
        products = gram(messages)
        products = around(products, start_of(products))
        for most in (3, 1000):
            found, expected = launch(products, 1e-6, 1e-6, most), weiszfeld(products, 1e-6, 1e-6, most)
            worst[f"{case}, {m}, {most}"] = float((found - expected).abs().max())
print(json.dumps(worst))
"""

CLUSTERS = """
import json, os
os.environ["TRITON_INTERPRET"] = "1"  # it is read when Triton is imported
import torch
from dynabro_cli.aggregators._mean_shift_kernel import launch
from dynabro_cli.aggregators.signguard import SLACK, STEPS, largest_cluster

different, sizes = [], set()
for m in (1, 2, 3, 5, 17, 64):
    for seed in range(6):
        source = torch.Generator().manual_seed(seed)
        centres = torch.rand(3, 3, generator=source, dtype=torch.float64)
        points = centres[torch.randint(3, (m,), generator=source)]
        points = points + seed / 20 * torch.randn(m, 3, generator=source, dtype=torch.float64)
        found, expected = launch(points, SLACK, STEPS), largest_cluster(points)
        sizes.add(int(expected.sum()))
        if not torch.equal(found, expected):
            different.append((m, seed))
print(json.dumps([different, sorted(sizes)]))
"""

COMPILED = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from dynabro_cli.aggregators import _mean_shift_kernel, _weiszfeld_kernel

if sys.argv[2] == "gm":
    kernel, types = _weiszfeld_kernel.steps, {"gram": "*fp64", "weights": "*fp64"}
    types |= {"nu": "fp64", "tolerance": "fp64", "smallest": "fp64"}
else:
    kernel, types = _mean_shift_kernel.shift, {"points": "*fp64", "chosen": "*i8", "slack": "fp64"}
source = ASTSource(kernel, types | {"most_steps": "i32", "m": "i32", "M": "constexpr"}, constexprs={"M": int(sys.argv[3])})
print(len(triton.compile(source, target=GPUTarget("cuda", int(sys.argv[1]), 32)).asm["cubin"]))
"""


def _run(program: str, folder: Path, *arguments: str) -> str:
    file = folder / "program.py"
    file.write_text(program)
    command = [sys.executable, "-W", "ignore", str(file), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_kernel_of_gm_makes_the_same_steps(tmp_path: Path) -> None:
    worst = json.loads(_run(INTERPRETED, tmp_path))
    assert len(worst) == 40
    assert {case: error for case, error in worst.items() if not error <= 1e-12} == {}


def test_the_kernel_of_signguard_finds_the_same_clusters(tmp_path: Path) -> None:
    different, sizes = json.loads(_run(CLUSTERS, tmp_path))
    assert different == []
    assert len(sizes) > 10


@pytest.mark.parametrize("rule", ["gm", "signguard"])
@pytest.mark.parametrize("workers", ["32", "64"])
@pytest.mark.parametrize("architecture", ["80", "90"])
def test_kernels_compile(architecture: str, workers: str, rule: str, tmp_path: Path) -> None:
    assert int(_run(COMPILED, tmp_path, architecture, rule, workers)) > 0
