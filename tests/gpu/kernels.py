"""Triton's kernels without a GPU: computed by Triton's interpreter, or built for a GPU.

``TRITON_INTERPRET=1 python -m tests.gpu.kernels NAME ...`` prints a JSON object: each case's error
over its bound, or 0 for equality bit for bit and infinity otherwise. ``python -m tests.gpu.kernels
ARCHITECTURE NAME=SIZE ...`` builds kernels, and prints the architecture of each, its registers, and
the bytes that do not fit into registers. Triton reads the variable when it is imported, so a
process does only one of both.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor, nn
from triton.runtime import interpreter

from dynabro_cli.components.aggregators import _order
from dynabro_cli.components.aggregators._kernels import mean_shift_kernel as _mean_shift_kernel
from dynabro_cli.components.aggregators._kernels import order_kernel as _order_kernel
from dynabro_cli.components.aggregators._kernels import weiszfeld_kernel as _weiszfeld_kernel
from dynabro_cli.components.aggregators.gm import start_of, weiszfeld
from dynabro_cli.components.aggregators.signguard import SLACK, STEPS, largest_cluster
from dynabro_cli.core.machine import gpu_kernels
from dynabro_cli.core.machine.devices import current
from dynabro_cli.core.vectors import _mean_kernel
from dynabro_cli.core.vectors.gram import around, gram
from dynabro_cli.core.vectors.means import weighted
from dynabro_cli.gradients.engine import SHARED, WorkerGradients
from dynabro_cli.gradients.kernels import dropout_kernel, fusible, norm_kernel
from dynabro_cli.gradients.layers import norm
from tests.gradients.norm_results import limits, results

U = 2.0**-24
"""Largest relative error of a rounding to single precision."""
HALF = 2.0**-8
"""The same of bfloat16."""
Case = tuple[str, float]


def parameters(
    kernel: Any, arguments: tuple[object, ...], constants: dict[str, object]
) -> list[tuple[str, str, object]]:
    """Return a kernel's parameters with the types that Triton gives them on a GPU, and their
    values.
    """
    from triton.runtime.jit import KernelParam, mangle_type

    found = []
    for place, parameter in enumerate(inspect.signature(kernel.fn).parameters.values()):
        known = KernelParam(place, parameter, False, False)
        value = arguments[place] if place < len(arguments) else constants[known.name]
        constant = known.is_constexpr or value is None or (type(value) is int and value == 1)
        kind = "constexpr" if constant else known.annotation_type or mangle_type(value)
        found.append((known.name, kind, value))
    return found


def interpret(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Launch a kernel in the interpreter, with numbers in the precision that they have on a GPU."""
    kinds = [kind for _, kind, _ in parameters(kernel, arguments, constants)]
    given = [
        float(np.float32(value)) if kind == "fp32" else value
        for value, kind in zip(arguments, kinds, strict=False)
    ]
    constants.pop("num_warps", None)
    kernel[grid](*given, **constants)


def convert(
    values: Any, source: Any, target: Any, rounding: Any, plain: Any = interpreter._convert_float
) -> Any:
    """Convert floating-point numbers in the interpreter: it cuts bits off for bfloat16, where a GPU
    rounds to nearest.
    """
    if (str(source), str(target)) != ("fp32", "bf16"):
        return plain(values, source, target, rounding)
    return (
        torch.from_numpy(np.ascontiguousarray(values))
        .bfloat16()
        .view(torch.int16)
        .numpy()
        .view(np.uint16)
    )


def on_card(device: torch.device) -> Callable[..., None]:
    """Return a function that launches a kernel on a GPU with copies of its tensors, and copies them
    back.
    """

    def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        moved = [
            torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=device)
            if isinstance(value, Tensor)
            else value
            for value in arguments
        ]
        pairs = [pair for pair in zip(arguments, moved, strict=True) if pair[0] is not pair[1]]
        for value, copy in pairs:
            copy.copy_(value)
        with current(device):
            kernel[grid](*moved, **constants)
        for value, copy in pairs:
            value.copy_(copy)

    return launch


def build(architecture: int) -> Callable[..., None]:
    """Return a function that builds a kernel for an architecture such as 90, in the place of a
    launch.
    """
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"

    def launch(kernel: Any, _: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        options = {"num_warps": constants.pop("num_warps", 4)}
        given = parameters(kernel, arguments, constants)
        aligned = [
            place
            for place, (_, kind, value) in enumerate(given)
            if kind[0] == "*" or (kind[0] == "i" and value % 16 == 0)
        ]
        source = ASTSource(
            kernel,
            {name: kind for name, kind, _ in given},
            constexprs={name: value for name, kind, value in given if kind == "constexpr"},
            attrs={(place,): [["tt.divisibility", 16]] for place in aligned},
        )
        built = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
        targets = [
            line.split()[1].rstrip("a,")
            for line in built.asm["ptx"].splitlines()
            if line.startswith(".target")
        ]
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            Path(file.name).write_bytes(built.asm["cubin"])
            usage = subprocess.run(
                [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
            ).stdout
        used = {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
        print(json.dumps({"kernel": kernel.fn.__name__, "targets": targets} | used), flush=True)

    return launch


def same(found: Tensor, expected: Tensor) -> float:
    """Return 0 if two tensors are equal bit for bit, NaN with NaN, else infinity."""
    equal = found.dtype == expected.dtype and torch.equal(found.isnan(), expected.isnan())
    return (
        0.0 if equal and torch.equal(found.nan_to_num(0.5), expected.nan_to_num(0.5)) else math.inf
    )


def share(found: Tensor, exact: Tensor, bound: float | Tensor) -> float:
    """Return the largest error over its bound."""
    return float(((found.double() - exact).abs() / bound).max())


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(dtype)


def check_gm() -> Iterator[Case]:
    for m in (1, 2, 5, 17, 64):
        messages = {
            name: draw(m, 30, seed=m) for name in ("apart", "equal rows", "one far away", "zeros")
        }
        messages["equal rows"][m // 2 :] = messages["equal rows"][0]
        messages["one far away"][0] *= 1e8
        messages["zeros"] *= 0
        for name, vectors in messages.items():
            products = gram(vectors)
            products = around(products, start_of(products))
            for most in (3, 1000):
                found = _weiszfeld_kernel.weights_of(products, 1e-6, 1e-6, most)
                yield (
                    f"{name}, {m}, {most}",
                    share(found, weiszfeld(products, 1e-6, 1e-6, most), 1e-12),
                )


def check_signguard() -> Iterator[Case]:
    sizes = set()
    for m in (1, 2, 3, 5, 17, 24, 64):
        for seed in range(2 if m == 64 else 6):
            source = torch.Generator().manual_seed(seed)
            centres = torch.rand(3, 3, generator=source, dtype=torch.float64)
            points = centres[torch.randint(3, (m,), generator=source)]
            points = points + seed / 20 * torch.randn(m, 3, generator=source, dtype=torch.float64)
            expected = largest_cluster(points)
            sizes.add(int(expected.sum()))
            yield (
                f"{m}, {seed}",
                same(_mean_shift_kernel.cluster_of(points, SLACK, STEPS), expected),
            )
    yield "sizes of clusters", 0.0 if len(sizes) > 10 else math.inf


def check_order(*sizes: int) -> Iterator[Case]:
    """Compare with torch's minimum and maximum, which are NaN if a value is; ties, and columns that
    end inside a block.
    """
    for m in sizes or (1, 2, 3, 4, 5, 16, 17, 25, 64):
        messages = draw(m, 300, seed=m)
        messages[:, 50:150] = messages[:, 50:150].round()
        messages[:, 150] = messages[0, 150]
        messages[m // 2, 200], messages[0, 201], messages[m - 1, 202] = (
            math.nan,
            math.inf,
            -math.inf,
        )
        wide = torch.cat([messages, messages], 1)[:, :300]  # rows with gaps between them
        for trim in sorted({0, m // 4, (m - 1) // 2}):
            for left_out in (-1, *sorted({0, trim})):
                pairs = _order.comparators(m, *((trim, m - trim) if left_out < 0 else (0, m)))
                found = _order_kernel.order_statistics(wide, pairs, trim, left_out)
                yield f"{m}, {trim}, {left_out}", same(found, ordered(messages, trim, left_out))


def ordered(messages: Tensor, trim: int, left_out: int) -> Tensor:
    """Compute the order statistics by torch's operators."""
    before, _order.KERNEL = _order.KERNEL, NoKernel()  # type: ignore[assignment]
    try:
        return (
            _order.middle_mean(messages, trim)
            if left_out < 0
            else _order.nearest_mean(messages, trim, left_out)
        )
    finally:
        _order.KERNEL = before


class NoKernel:
    def at_hand(self) -> None:
        return None


def check_mean() -> Iterator[Case]:
    """The sum of m products in double precision, and one rounding to single precision."""
    for m in (1, 2, 17, 70):
        messages = torch.cat([draw(m, 700, seed=m)] * 2, 1)[:, :700]  # rows with gaps between them
        weights = {
            "all": torch.ones(m),
            "some": draw(m, seed=m + 1).abs().clamp_max(1),
            "none": torch.zeros(m),
        }
        weights["some"][m // 2] = 0
        for name, chosen in weights.items():
            for total in (None, torch.tensor(float(m), dtype=torch.float64)):
                exact = weighted(messages.double(), chosen, total)
                size = (
                    chosen.double()
                    @ messages.double().abs()
                    / (chosen.double().sum() if total is None else total)
                )
                bound = U * exact.abs() + 2 * (m + 1) * 2.0**-52 * size.nan_to_num() + 1e-45
                yield (
                    f"{m}, {name}, {total}",
                    share(_mean_kernel.mean_of(messages, chosen, total), exact, bound),
                )


def check_norm() -> Iterator[Case]:
    """Output, statistics and gradients of batch norm; ``before`` is added to the input first."""
    names = (
        "output",
        "mean",
        "variance",
        "input's gradient",
        "weight's",
        "bias's",
        "bias's of the convolution",
    )
    shapes = (
        (1, 1, 1, 16),
        (2, 1, 50, 7),
        (1, 2, 128, 64),
        (2, 2, 131, 20),
        (1, 1, 4100, 5),
        (1, 1, 260, 130),
    )
    for workers, batches, places, channels in shapes:
        for dtype in (torch.float32, torch.bfloat16) if places < 256 else (torch.float32,):
            for relu, affine, joined, offset in (
                (True, True, True, 0.0),
                (True, False, False, 3.0),
                (False, True, False, -100.0),
            ):
                shape = workers * batches, places, channels
                x, gy = (
                    draw(*shape, seed=places).add(offset).to(dtype),
                    draw(*shape, seed=channels).to(dtype),
                )
                vectors = (draw(channels, seed=1), draw(channels, seed=2)) if affine else None
                before = draw(channels, seed=3) if joined else None
                found = results(
                    norm_kernel, x, gy, vectors, relu, workers, *([before] if joined else [])
                )
                values = x.double() if before is None else x.double() + before.double()
                doubles = None if vectors is None else (vectors[0].double(), vectors[1].double())
                exact = list(results(fusible, values, gy.double(), doubles, relu, workers))
                bounds = limits(values, gy, vectors, relu, exact)
                bounds = [(places * batches + 20) * U * bound for bound in bounds]
                if before is not None:
                    exact.append(exact[3].view(workers, -1, channels).sum(1))
                    bounds.append(places * batches * bounds[3])
                title = (
                    f"{shape}, {str(dtype)[6:]}, relu {relu}, affine {affine}, bias "
                    f"{joined}, offset {offset}"
                )
                assert len(found) == len(exact) == len(bounds)
                for name, ours, theirs, bound in zip(names, found, exact, bounds, strict=False):
                    rounding = HALF * theirs.abs() if ours.dtype == torch.bfloat16 else 0.0
                    yield f"{title}: {name}", share(ours, theirs, bound + rounding)


def check_dropout() -> Iterator[Case]:
    """Values and masks, both ways, for mini-batches of any number of values and any layout."""
    seeds = torch.randint(-(2**63), 2**63 - 1, (3,), generator=torch.Generator().manual_seed(3))
    last = torch.channels_last
    inputs = {
        "rows": draw(6, 77),
        "odd": draw(3, 1027),
        "images": draw(6, 5, 3, 4).contiguous(memory_format=last),
    }
    inputs |= {"channels first": draw(6, 5, 3, 4), "tokens": draw(6, 5, 3)}
    for name, values in inputs.items():
        for dtype in (torch.float32, torch.bfloat16):
            for p, layer in ((0.25, 3632233996), (0.5, 7), (1e-9, 1), (0.999999, 2**31)):
                x, gy = values.to(dtype), values.flip(0).to(dtype)
                found, kept = dropout_kernel.drop(x, seeds, layer, p)
                expected, dropped = fusible.drop(x, seeds, layer, p)
                yield f"{name}, {dtype}, {p}", same(found, expected)
                backward = fusible.drop_backward(gy, dropped, layer, p)
                yield (
                    f"{name}, {dtype}, {p}, backward",
                    same(dropout_kernel.drop_backward(gy, kept, layer, p), backward),
                )


def check_engine() -> Iterator[Case]:
    """A network whose batch norms, ReLUs, biases and dropout are joined has its gradients; the last
    batch norm has no ReLU.

    In a second network, the first batch norm keeps its statistics in training, so the convolution
    before it adds its own bias.
    """

    class Kept(nn.Sequential):
        def train(self, mode: bool = True) -> nn.Sequential:
            super().train(mode)
            self[2].eval().requires_grad_(False)
            return self

    def network(kind: type[nn.Sequential]) -> nn.Module:
        torch.manual_seed(0)
        first = (
            nn.Conv2d(2, 6, 3),
            nn.ReLU(),
            nn.BatchNorm2d(6),
            nn.Dropout(0.3),
            nn.Conv2d(6, 4, 3, bias=False),
            nn.ReLU(),
        )
        second = (
            nn.BatchNorm2d(4, affine=False),
            nn.Conv2d(4, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
        )
        return kind(*first, *second, nn.Linear(16, 5)).train()

    inputs, labels = draw(3, 4, 2, 8, 8), torch.arange(12).view(3, 4) % 5
    for kind in (nn.Sequential, Kept):
        made = []
        for joined in (False, True):
            engine = WorkerGradients(network(kind), 3, kinds=(SHARED,))
            if joined:
                norm.use_gpu_kernels(engine._twin, engine._shared)  # type: ignore[arg-type]
            losses = engine(inputs, labels, 2, torch.arange(6))
            made.append([losses, engine.matrix, engine.statistics, engine.logits(inputs[0])])
        for name, ours, theirs in zip(
            ("losses", "gradients", "statistics", "logits"), made[1], made[0], strict=True
        ):
            # no ReLU's kink is near
            error = share(ours, theirs.double(), 1e-4 * float(theirs.abs().max()))
            yield f"{kind.__name__}, {name}", error


CHECKS: dict[str, Callable[[], Iterator[Case]]] = {
    name.removeprefix("check_"): function
    for name, function in list(globals().items())
    if name.startswith("check_")
}


def build_gm(m: int) -> None:
    _weiszfeld_kernel.weights_of(torch.eye(m, dtype=torch.float64), 1e-6, 1e-6, 1000)


def build_signguard(m: int) -> None:
    _mean_shift_kernel.cluster_of(torch.zeros(m, 3, dtype=torch.float64), SLACK, STEPS)


def build_order(m: int) -> None:
    middle, f = (m - 1) // 2, (m - 1) // 4
    _order_kernel.order_statistics(
        torch.zeros(m, 1024), _order.comparators(m, middle, m - middle), middle, -1
    )
    _order_kernel.order_statistics(torch.zeros(m, 1024), _order.comparators(m, 0, m), middle, f)


def build_mean(m: int) -> None:
    _mean_kernel.mean_of(torch.zeros(m, 1024), torch.ones(m), None)


def build_norm(channels: int) -> None:
    vectors = torch.ones(channels), torch.zeros(channels)
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.zeros(2, 65536, channels, dtype=dtype)
        results(norm_kernel, x, x, vectors, True, 2, vectors[0])


def build_dropout(_: int) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        dropout_kernel.drop(torch.zeros(2, 4096, dtype=dtype), torch.arange(2), 5, 0.25)


def main(what: str, *names: str) -> None:
    """Interpret a check, or build kernels, each with a size, such as ``order=25``."""
    if what in CHECKS:
        gpu_kernels.launch = interpret
        interpreter._convert_float = convert
        found = {
            f"{check}: {case}": error for check in (what, *names) for case, error in CHECKS[check]()
        }
        print(json.dumps(found))
        return
    gpu_kernels.launch = build(int(what))
    for name in names:
        kind, _, size = name.partition("=")
        globals()[f"build_{kind}"](int(size))


if __name__ == "__main__":
    main(*sys.argv[1:])
