"""The gradients of all workers, compared with the time of their multiplications alone on this
machine, and with ``vmap``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measuring import chosen, in_turn, machine, table
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.components.tasks import cifar10, digits, mnist
from dynabro_cli.components.tasks._api import ImageShape
from dynabro_cli.gradients.engine import WorkerGradients
from dynabro_cli.gradients.memory import keep_pages
from dynabro_cli.simulation import precision

HEADER = [
    "gradients",
    "ms",
    "forward GFLOP",
    "rate, GFLOP/s",
    "best product",
    "floor, ms",
    "ratio",
    "vmap, ms",
    "vmap over ours",
]


class Case(NamedTuple):
    """A network on images of a shape, for m workers of B images each; of height 1, windows of
    characters.
    """

    model: str
    shape: ImageShape
    workers: int
    batch_size: int


CASES = (
    Case("cnn-mnist", mnist.SHAPE, 17, 32),
    Case("cnn-mnist-50", mnist.SHAPE, 17, 32),
    Case("cnn-cifar", cifar10.SHAPE, 25, 64),
    Case("cnn-digits", digits.SHAPE, 17, 16),
    Case("gpt", ImageShape(1, 1, 32, 103), 17, 16),  # the shape of text-file
)


def products(size: int) -> list[tuple[int, int, int]]:
    """Return shapes (rows, inner, columns) of matrix products: square, and long as in
    convolutions.
    """
    return [
        (size, size, size),
        (size // 2, size // 2, size // 2),
        (16 * size, size // 4, size // 8),
        (32 * size, 64, 64),
    ]


def probes(size: int, device: str) -> dict[str, tuple[Callable[[], object], int]]:
    """Return calls that measure the machine's rate, with their floating-point operations.

    They are matrix products, and a 1 x 1 convolution: a matrix product by another library, which is
    faster on some processors.
    """
    found: dict[str, tuple[Callable[[], object], int]] = {}
    for rows, inner, columns in products(size):
        call = _product(rows, inner, columns, device)
        found[f"{rows} x {inner} x {columns}"] = call, 2 * rows * inner * columns
    channels = max(8, size // 8)
    images = torch.randn(size // 8, channels, 32, 32, device=device).contiguous(
        memory_format=torch.channels_last
    )
    kernels = torch.randn(channels, channels, 1, 1, device=device)
    operations = 2 * images.numel() * channels
    found[f"1 x 1 convolution, {channels} channels"] = lambda: F.conv2d(images, kernels), operations
    return found


def cases(models: Sequence[str], workers: int | None, batch_size: int | None) -> list[Case]:
    """Return the cases of these models (default: all), with other numbers if given; raise SpecError
    for an unknown model.
    """
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
        "Floor: 3 x the forward pass's floating-point operations, at the rate of the fastest "
        "fp32 product; "
        f"kernels: compile={compile}\n{machine(device)}\n\n{table(HEADER, rows)}"
    )


def row(case: Case, size: int, repeats: int, device: str, compile: str) -> list[object]:  # noqa: A002
    """Return the row of a case: its time, its operations, the machine's rate in the same run, and
    the ratios.
    """
    gradients, kind, mapped = _gradients(case, device, compile)
    calls: dict[str, Callable[[], object]] = {"gradients": gradients} | (
        {} if mapped is None else {"vmap": mapped}
    )
    tried = probes(size, device)
    seconds = in_turn(calls | {name: call for name, (call, _) in tried.items()}, repeats, device)
    rates = {name: operations / seconds[name] for name, (_, operations) in tried.items()}
    best = max(rates, key=rates.__getitem__)
    forward = forward_operations(case)
    floor = 3 * forward / rates[best]
    title = f"{case.model}, m = {case.workers}, B = {case.batch_size} ({kind()})"
    by_vmap = None if mapped is None else 1000 * seconds["vmap"]
    return [
        *(title, 1000 * seconds["gradients"], forward / 1e9, rates[best] / 1e9, best),
        *(
            1000 * floor,
            seconds["gradients"] / floor,
            by_vmap,
            None if mapped is None else seconds["vmap"] / seconds["gradients"],
        ),
    ]


def forward_operations(case: Case) -> int:
    """Count the floating-point operations of the forward pass over all workers' images, without
    computing it.
    """
    with torch.device("meta"):
        model = REGISTRIES["models"].parse(case.model).build(case.shape)
        images = torch.empty(
            case.workers * case.batch_size, case.shape.channels, case.shape.height, case.shape.width
        )
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(images)
    return int(counter.get_total_flops())


def _gradients(
    case: Case,
    device: str,
    compile: str,  # noqa: A002
) -> tuple[Callable[[], Any], Callable[[], str], Callable[[], Any] | None]:
    """Return calls for the gradients of all workers on noise: dynabro's, a description of its way,
    and ``torch.func.vmap``.

    ``vmap`` of a model that draws, or that changes its buffers, is None.
    """
    model = REGISTRIES["models"].parse(case.model).build(case.shape).to(device)
    engine = WorkerGradients(model, case.workers, compile=compile)
    labels = torch.randint(
        case.shape.classes,
        (case.workers, case.batch_size),
        generator=torch.Generator().manual_seed(1),
    )
    inputs, labels = noise(case).to(device), labels.to(device)
    seeds = list(range(case.workers)) if engine.random else []
    mapped = None if engine.random or list(model.buffers()) else by_vmap(model, inputs, labels)
    return lambda: engine(inputs, labels, 1, seeds), lambda: engine.kind, mapped


def noise(case: Case) -> Tensor:
    """Return random inputs of all workers, [m, B, c, h, w]: images of noise, or numbers of
    characters.
    """
    size = case.workers, case.batch_size, case.shape.channels, case.shape.height, case.shape.width
    generator = torch.Generator().manual_seed(0)
    if case.shape.height == 1:
        return torch.randint(case.shape.classes, size, generator=generator).float()
    return torch.randn(size, generator=generator)


def by_vmap(model: nn.Module, inputs: Tensor, labels: Tensor) -> Callable[[], dict[str, Tensor]]:
    """Return a call of ``vmap`` over the workers of one functional gradient, as torch's tutorial
    has it.

    Attention is computed by plain products: ``vmap`` has no rule for torch's fused one on a CPU,
    and loops over the workers.
    """
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(weights: dict[str, Tensor], batch: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(model, weights, (batch,)), target)

    mapped = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))

    def call() -> dict[str, Tensor]:
        with sdpa_kernel(SDPBackend.MATH):
            found: dict[str, Tensor] = mapped(weights, inputs, labels)
        return found

    return call


def _product(rows: int, inner: int, columns: int, device: str) -> Callable[[], object]:
    left, right = (
        torch.randn(rows, inner, device=device),
        torch.randn(inner, columns, device=device),
    )
    out = torch.empty(rows, columns, device=device)
    return lambda: torch.mm(left, right, out=out)
