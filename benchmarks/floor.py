"""The gradients of all workers, compared with the time that only their multiplications would take on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measuring import chosen, in_turn, machine, table
from dynabro_cli.experiment.resolve import REGISTRIES
from dynabro_cli.gradients.engine import WorkerGradients
from dynabro_cli.gradients.memory import keep_pages
from dynabro_cli.simulation import precision
from dynabro_cli.tasks import cifar10, digits, mnist
from dynabro_cli.tasks._api import ImageShape

HEADER = ["gradients", "ms", "forward GFLOP", "rate, GFLOP/s", "best product", "floor, ms", "ratio"]


class Case(NamedTuple):
    """A network on images of a shape, for m workers of B images each."""

    model: str
    shape: ImageShape
    workers: int
    batch_size: int


CASES = (
    Case("cnn-mnist", mnist.SHAPE, 17, 32),
    Case("cnn-mnist-50", mnist.SHAPE, 17, 32),
    Case("cnn-cifar", cifar10.SHAPE, 25, 64),
    Case("cnn-digits", digits.SHAPE, 17, 16),
)


def products(size: int) -> list[tuple[int, int, int]]:
    """Return shapes (rows, inner, columns) of matrix products: square, and long as in convolutions."""
    return [(size, size, size), (size // 2, size // 2, size // 2), (16 * size, size // 4, size // 8), (32 * size, 64, 64)]


def probes(size: int, device: str) -> dict[str, tuple[Callable[[], object], int]]:
    """Return calls that measure the machine's rate, with their floating-point operations.

    They are matrix products, and a 1 x 1 convolution: a matrix product by another library, which is faster on some processors.
    """
    found: dict[str, tuple[Callable[[], object], int]] = {}
    for rows, inner, columns in products(size):
        call = _product(rows, inner, columns, device)
        found[f"{rows} x {inner} x {columns}"] = call, 2 * rows * inner * columns
    channels = max(8, size // 8)
    images = torch.randn(size // 8, channels, 32, 32, device=device).contiguous(memory_format=torch.channels_last)
    kernels = torch.randn(channels, channels, 1, 1, device=device)
    operations = 2 * images.numel() * channels
    found[f"1 x 1 convolution, {channels} channels"] = lambda: F.conv2d(images, kernels), operations
    return found


def cases(models: Sequence[str], workers: int | None, batch_size: int | None) -> list[Case]:
    """Return the cases of these models (default: all), with other numbers if given; raise SpecError for an unknown model."""
    names = chosen(models, [case.model for case in CASES], "model")
    return [
        case._replace(workers=workers or case.workers, batch_size=batch_size or case.batch_size)
        for case in CASES
        if case.model in names
    ]


def measure(
    chosen_cases: Sequence[Case],
    size: int,
    repeats: int,
    device: str,
    threads: int | None,
    compile: str = "auto",  # noqa: A002
) -> str:
    """Time each case's gradients in turn with matrix products of about ``size``; return a table."""
    keep_pages()
    precision.apply("fp32", torch.device(device))
    if threads is not None:
        torch.set_num_threads(threads)
    rows = [row(case, size, repeats, device, compile) for case in chosen_cases]
    return (
        "Floor: 3 x the forward pass's floating-point operations, at the rate of the fastest fp32 product; "
        f"kernels: compile={compile}\n{machine(device)}\n\n{table(HEADER, rows)}"
    )


def row(case: Case, size: int, repeats: int, device: str, compile: str) -> list[object]:  # noqa: A002
    """Return the row of a case: its time, its operations, the machine's rate in the same run, and their ratio."""
    gradients, kind = _gradients(case, device, compile)
    calls: dict[str, Callable[[], object]] = {"gradients": gradients}
    tried = probes(size, device)
    seconds = in_turn(calls | {name: call for name, (call, _) in tried.items()}, repeats, device)
    rates = {name: operations / seconds[name] for name, (_, operations) in tried.items()}
    best = max(rates, key=rates.__getitem__)
    forward = forward_operations(case)
    floor = 3 * forward / rates[best]
    title = f"{case.model}, m = {case.workers}, B = {case.batch_size} ({kind()})"
    return [
        *(title, 1000 * seconds["gradients"], forward / 1e9, rates[best] / 1e9, best),
        *(1000 * floor, seconds["gradients"] / floor),
    ]


def forward_operations(case: Case) -> int:
    """Count the floating-point operations of the forward pass over all workers' images, without computing it."""
    with torch.device("meta"):
        model = REGISTRIES["models"].parse(case.model).build(case.shape)
        images = torch.empty(case.workers * case.batch_size, case.shape.channels, case.shape.height, case.shape.width)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(images)
    return int(counter.get_total_flops())


def _gradients(case: Case, device: str, compile: str) -> tuple[Callable[[], Any], Callable[[], str]]:  # noqa: A002
    """Return a call that computes the gradients of all workers on images of noise, and a call that describes its way."""
    generator = torch.Generator().manual_seed(0)
    model = REGISTRIES["models"].parse(case.model).build(case.shape).to(device)
    engine = WorkerGradients(model, case.workers, compile=compile)
    samples = (case.workers, case.batch_size)
    size = (*samples, case.shape.channels, case.shape.height, case.shape.width)
    images = torch.randn(size, generator=generator).to(device)
    labels = torch.randint(case.shape.classes, samples, generator=generator).to(device)
    seeds = list(range(case.workers)) if engine.random else []
    return lambda: engine(images, labels, 1, seeds), lambda: engine.kind


def _product(rows: int, inner: int, columns: int, device: str) -> Callable[[], object]:
    left, right = torch.randn(rows, inner, device=device), torch.randn(inner, columns, device=device)
    out = torch.empty(rows, columns, device=device)
    return lambda: torch.mm(left, right, out=out)
