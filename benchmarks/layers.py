"""The convolutions of a network, one by one: floating-point operations per second of forward pass
and both gradients.

Its batch norms, too: their time in torch, and compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.floor import Case, noise
from benchmarks.measuring import in_turn, machine, peak, table
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.gradients.kernels import conv_weights, fusible
from dynabro_cli.gradients.layers import norm
from dynabro_cli.gradients.layers.twin import twin
from dynabro_cli.gradients.layers.worker_layers import Shared, WorkerConv2d
from dynabro_cli.gradients.memory import keep_pages
from dynabro_cli.simulation import precision

NORMS = [
    "batch norm after ReLU, forward and backward",
    "torch, ms",
    "compiled, ms",
    "torch over compiled",
]
HEADER = [
    "convolution",
    "GFLOP",
    "forward, GFLOP/s",
    "input gradient",
    "weight gradients",
    "compiled",
    "a core's peak",
]


class Seen(NamedTuple):
    """A convolution with its last input."""

    layer: WorkerConv2d
    input: Tensor


def measure(case: Case, repeats: int, threads: int | None) -> str:
    """Time every convolution of a network, with the gradients of all workers; return a table."""
    keep_pages()
    precision.apply("fp32", torch.device("cpu"))
    if threads is not None:
        torch.set_num_threads(threads)
    rate = peak()
    rows = [row(seen, case.workers, repeats, rate) for seen in convolutions(case)]
    title = (
        f"{case.model}, m = {case.workers}, B = {case.batch_size}: the layers, without "
        "compiled blocks"
    )
    norms = [norm_row(shape, case, repeats) for shape in normalised(case)]
    return f"{title}\n{machine()}\n\n{table(HEADER, rows)}" + (
        f"\n\n{table(NORMS, norms)}" if norms else ""
    )


def convolutions(case: Case) -> list[Seen]:
    """Return the network's convolutions, and their inputs for images of noise."""
    model = REGISTRIES["models"].parse(case.model).build(case.shape).eval()
    copied = twin(model, Shared(case.workers))
    layers = {layer.name: layer for layer in copied.modules() if isinstance(layer, WorkerConv2d)}
    found: list[Seen] = []
    for name, module in model.named_modules():
        if name in layers:
            module.register_forward_pre_hook(
                lambda _, inputs, layer=layers[name]: found.append(Seen(layer, inputs[0]))
            )
    images = noise(case).flatten(0, 1)
    with torch.no_grad():
        model.to(memory_format=torch.channels_last)(
            images.contiguous(memory_format=torch.channels_last)
        )
    return found


def normalised(case: Case) -> list[tuple[int, int, int]]:
    """Return the channels, height and width of the inputs of the network's batch norms."""
    model = REGISTRIES["models"].parse(case.model).build(case.shape).eval()
    found: list[tuple[int, int, int]] = []
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.register_forward_pre_hook(
                lambda _, inputs: found.append(tuple(inputs[0].shape[1:]))
            )
    with torch.no_grad():
        model(torch.zeros(1, case.shape.channels, case.shape.height, case.shape.width))
    return found


def norm_row(shape: tuple[int, int, int], case: Case, repeats: int) -> list[object]:
    """Return the row of a batch norm: the time of both passes over all workers' mini-batches, by
    torch and by the kernel.
    """
    channels, height, width = shape
    x, gy = torch.randn(2, case.workers, case.batch_size * height * width, channels)
    weight, bias = torch.ones(channels), torch.zeros(channels)

    def both(functions: Any) -> None:
        *_, kept = functions.normalise(x, weight, bias, 1e-5, True)
        functions.normalise_backward(gy, kept, weight, True, case.workers, True)

    kernel = norm.load()
    parts = {"torch": lambda: both(fusible)} | (
        {} if kernel is None else {"compiled": lambda: both(kernel)}
    )
    seconds = in_turn(parts, repeats)
    ratio = seconds["torch"] / seconds["compiled"] if "compiled" in seconds else None
    times = [1000 * seconds[part] if part in seconds else None for part in ("torch", "compiled")]
    return [f"{channels} channels, {height} x {width}", *times, ratio]


def row(seen: Seen, workers: int, repeats: int, rate: float | None) -> list[object]:
    """Return the row of a layer: its operations, and their rate in each of the three products."""
    layer, x = seen
    weight = layer.weight.detach()
    arguments = weight, None, layer.stride, layer.padding, layer.dilation, layer.groups
    y = F.conv2d(x, *arguments)
    gy = torch.randn_like(y, memory_format=torch.channels_last)
    layer.shared.gradients = {
        f"{layer.name}.{key}": torch.empty(workers, *parameter.shape)
        for key, parameter in nn.Module.named_parameters(layer)
    }
    parts: dict[str, Callable[[], object]] = {
        "forward": lambda: F.conv2d(x, *arguments),
        "input": lambda: layer.backward(gy, x, weight, [True, False, False]),
        "weights": lambda: layer.write_gradients(gy, x, weight),
    }
    compiled, target = conv_weights.load(), torch.empty(workers, *weight.shape)
    if compiled is not None and compiled(gy, x, layer.padding, target):
        parts["compiled"] = lambda: compiled(gy, x, layer.padding, target)
    seconds = in_turn(parts, repeats)
    operations = 2 * y.numel() * weight[0].numel()
    rates = [
        operations / seconds[part] / 1e9 if part in seconds else None
        for part in ("forward", "input", "weights", "compiled")
    ]
    title = f"{tuple(weight.shape)} on {x.shape[2]} x {x.shape[3]}"
    return [title, operations / 1e9, *rates, None if rate is None else rate / 1e9]
