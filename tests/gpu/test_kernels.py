"""Kernels that are written for a GPU: right in Triton's interpreter, and compiled for its architectures, without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytestmark = pytest.mark.thorough

TYPES = """
import inspect, json, os, sys
os.environ["TRITON_INTERPRET"] = str(int(sys.argv[1] == "interpret"))  # it is read when Triton is imported
import numpy as np
import torch
from triton.runtime.jit import KernelParam, mangle_type

class Typed:
    "A kernel whose arguments have the types that Triton gives them on a GPU, with the signature of its last call."
    def __init__(self, kernel):
        self.kernel = kernel
        parameters = inspect.signature(kernel.fn).parameters.values()
        self.params = [KernelParam(place, one, False, False) for place, one in enumerate(parameters)]
    def __getitem__(self, grid):
        return lambda *arguments, M: self.call(grid, arguments, M)
    def call(self, grid, arguments, M):
        types = [one.annotation_type or mangle_type(value) for one, value in zip(self.params, arguments)]
        self.signature = {one.name: kind for one, kind in zip(self.params, types)}
        if sys.argv[1] == "interpret":
            given = [float(np.float32(x)) if kind == "fp32" else x for x, kind in zip(arguments, types)]
            self.kernel[grid](*given, M=M)
"""

INTERPRETED = """
from dynabro_cli.aggregators import _weiszfeld_kernel
from dynabro_cli.aggregators.gm import start_of, weiszfeld
from dynabro_cli.vectors.gram import around, gram

kernel = Typed(_weiszfeld_kernel.steps)
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
            found = _weiszfeld_kernel.launch(products, 1e-6, 1e-6, most, kernel)
            expected = weiszfeld(products, 1e-6, 1e-6, most)
            worst[f"{case}, {m}, {most}"] = float((found - expected).abs().max())
print(json.dumps(worst))
"""

CLUSTERS = """
from dynabro_cli.aggregators import _mean_shift_kernel
from dynabro_cli.aggregators.signguard import SLACK, STEPS, largest_cluster

kernel = Typed(_mean_shift_kernel.shift)
different, sizes = [], set()
for m in (1, 2, 3, 5, 17, 24, 64):
    for seed in range(2 if m == 64 else 6):
        source = torch.Generator().manual_seed(seed)
        centres = torch.rand(3, 3, generator=source, dtype=torch.float64)
        points = centres[torch.randint(3, (m,), generator=source)]
        points = points + seed / 20 * torch.randn(m, 3, generator=source, dtype=torch.float64)
        found, expected = _mean_shift_kernel.launch(points, SLACK, STEPS, kernel), largest_cluster(points)
        sizes.add(int(expected.sum()))
        if not torch.equal(found, expected):
            different.append((m, seed))
print(json.dumps([different, sorted(sizes), kernel.signature["slack"]]))
"""

COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from dynabro_cli.aggregators import _mean_shift_kernel, _weiszfeld_kernel

architecture, rule, workers = sys.argv[2:]
M = int(workers)
if rule == "gm":
    kernel = Typed(_weiszfeld_kernel.steps)
    _weiszfeld_kernel.launch(torch.eye(M, dtype=torch.float64), 1e-6, 1e-6, 1000, kernel)
else:
    kernel = Typed(_mean_shift_kernel.shift)
    _mean_shift_kernel.launch(torch.zeros(M, 3, dtype=torch.float64), 1e-9, 300, kernel)
source = ASTSource(kernel.kernel, kernel.signature | {"M": "constexpr"}, constexprs={"M": M})
print(len(triton.compile(source, target=GPUTarget("cuda", int(architecture), 32)).asm["cubin"]))
"""


def _run(program: str, folder: Path, *arguments: str) -> str:
    file = folder / "program.py"
    file.write_text(TYPES + program)
    command = [sys.executable, "-W", "ignore", str(file), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_kernel_of_gm_makes_the_same_steps(tmp_path: Path) -> None:
    worst = json.loads(_run(INTERPRETED, tmp_path, "interpret"))
    assert len(worst) == 40
    assert {case: error for case, error in worst.items() if not error <= 1e-12} == {}


def test_the_kernel_of_signguard_finds_the_same_clusters(tmp_path: Path) -> None:
    different, sizes, slack = json.loads(_run(CLUSTERS, tmp_path, "interpret"))
    assert different == []
    assert slack == "fp64"
    assert len(sizes) > 10


SLOW = [pytest.param(*one, marks=pytest.mark.slow) for one in (("80", "64"), ("90", "32"), ("90", "64"))]
"""Minutes; test_compiled.py builds the kernels for 90, too."""


@pytest.mark.parametrize("rule", ["gm", "signguard"])
@pytest.mark.parametrize(("architecture", "workers"), [("80", "32"), *SLOW])
def test_kernels_compile(architecture: str, workers: str, rule: str, tmp_path: Path) -> None:
    assert int(_run(COMPILED, tmp_path, "compile", architecture, rule, workers)) > 0
