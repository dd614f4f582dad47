"""Estimate the memory of a run at its peak from its spec, and compare it with the free memory,
before anything is allocated.

The estimate is the sum of the data set, some copies of the messages [m, d] and of the model [d],
and activations. It agrees with measurements within a factor of about two. It does not include
tables of pairs of thousands of workers, activations of a model that cannot be traced, or missing
images.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, NamedTuple

import numpy as np
import torch

from dynabro_cli.components.methods._api import Method
from dynabro_cli.components.tasks._api import ImageShape, Task
from dynabro_cli.core.errors import DynabroError, OccupiedError, PluginError, SpecError
from dynabro_cli.core.machine.host_memory import free_host_memory, private_memory
from dynabro_cli.core.registration import Component
from dynabro_cli.core.streams import Streams
from dynabro_cli.experiment.complete import chain_setting
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.gradients.engine import GPU_PASS_BYTES, GPU_PASS_VALUES, PASS_SHARE, PASS_VALUES
from dynabro_cli.gradients.generators import seeded
from dynabro_cli.gradients.graphs import BACKWARD, GRAPH_VALUES
from dynabro_cli.gradients.state import torch_defaults
from dynabro_cli.simulation.problem.images import EVALUATION_VALUES, TOGETHER
from dynabro_cli.simulation.problem.interface import MOST_COMPUTATIONS

PROCESS = 400e6
"""Memory of a process with torch before a run, without pages of libraries that processes share."""
GPU_PROCESS, GPU_CONTEXT = 1.5e9, 600e6
"""Additional memory of a process that uses a GPU, on the machine and on the GPU, before any
tensor.
"""
COMPILING = 600e6
DATA_COPIES = 3
"""Number of copies of a data set in memory while it is read, cut and put in order."""
MATRICES = 13
"""Copies of the messages [m, d]: gradients, their sums, the workers' memory, attacked vectors,
intermediates of attack and rule, and copies of the probe. A simple method and rule need half of
them.
"""
VECTORS = 16
"""Copies of the model [d]: initial model, parameters, gradients, aggregates, directions, and
checkpoints.
"""
TICK = 2500
"""Bytes of a clock tick within a round, besides the masks of the workers."""
DRAWS = 16


class Need(NamedTuple):
    """The memory of a run at its peak, in bytes.

    Attributes:
        host: Memory of the machine, without the pages of libraries that processes share.
        device: Memory of the GPU; 0 without one.
        largest: The name of the largest part.
        advice: Options that reduce it.
        spare: The part that can shrink: passes of several workers at a time become smaller if the
            free memory requires it.
    """

    host: float
    device: float
    largest: str
    advice: str
    spare: float = 0

    def within(self, free: float) -> Need:
        """Return the need if ``free`` bytes are free: passes use at most a share of a CPU's, and on
        a GPU what is left.
        """
        if self.device:
            return self._replace(device=self.device - min(self.spare, max(0.0, self.device - free)))
        return self._replace(
            host=self.host - max(0.0, self.spare - BACKWARD * PASS_SHARE * max(0.0, free))
        )


TRIED = 20_000_000
"""Parameters of the largest model that is run on the CPU to measure the activations of a sample."""


class ModelSize(NamedTuple):
    """Numbers of a model's parameters and running statistics, and the bytes of activations of a
    sample.
    """

    parameters: int
    statistics: int
    activations: float


def build_network(model: Component[Any], shape: ImageShape, streams: Streams) -> torch.nn.Module:
    """Build a model with the initial parameters of a run.

    Raises:
        PluginError: A trainable parameter is not in single precision, or a parameter has no shape
            yet.
    """
    with seeded(streams.integer("init", 0)):
        network: torch.nn.Module = model.build(shape)
    for name, parameter in network.named_parameters():
        lazy = torch.nn.parameter.is_lazy(parameter)
        if lazy or (parameter.requires_grad and parameter.dtype != torch.float32):
            has = "no shape yet" if lazy else f"the type {parameter.dtype}"
            raise PluginError(
                f"model {model.text!r}: its parameter {name} has {has}; expected torch.float32 and "
                "a shape. Try: layers with all sizes, and .float()"
            )
    return network


@functools.lru_cache(maxsize=256)
@torch_defaults(torch.float32, torch.device("cpu"))
def model_size(model: Component[Any], shape: ImageShape) -> ModelSize:
    """Measure a model without memory for its tensors.

    Activations count as 0 if they cannot be measured in this way, for example if the model's layers
    look at values.

    Raises:
        SpecError: The model does not exist for images of this shape, or has no parameter to train.
    """
    with torch.device("meta"):
        network = build_network(model, shape, Streams(0))
        parameters = sum(tensor.numel() for tensor in network.parameters() if tensor.requires_grad)
        statistics = sum(
            tensor.numel() for tensor in network.buffers() if tensor.is_floating_point()
        )
    if not parameters:
        raise SpecError(
            f"model {model.text!r} has no parameter to train. Try: requires_grad_(True) for "
            "some of its layers"
        )
    activations = 0.0
    # then a pass on the CPU is faster than loading torch's fake tensors
    small = parameters <= TRIED
    with torch.device("cpu" if small else "meta"), seeded(0):
        # ``to_empty`` of a meta tensor would load sympy
        network = build_network(model, shape, Streams(0)) if small else network
        # the model may read values
        with contextlib.suppress(RuntimeError, NotImplementedError, TypeError, ValueError):
            fewer, more = (_saved(network, shape, samples) for samples in (2, 4))
            activations = (more - fewer) / 2
    return ModelSize(parameters, statistics, activations)


def _saved(network: torch.nn.Module, shape: ImageShape, samples: int) -> int:
    """Return the bytes that the backward pass of ``samples`` samples would read from the forward
    pass.
    """
    kept = 0

    def count(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        kept += tensor.numel() * tensor.element_size()
        return tensor

    # also legal as characters
    images = torch.zeros(samples, shape.channels, shape.height, shape.width)
    with (
        torch.enable_grad(),
        torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor),
    ):
        network.train()(images)
    return kept


def need_of(run: Run, *, gpu: bool = False, compiles: bool = True) -> Need:
    """Estimate the memory of a run.

    Args:
        run: The run.
        gpu: True if it computes on a GPU.
        compiles: True if its functions may be compiled.

    Raises:
        SpecError: A component cannot be built.
    """
    task, method = looked_at(run.parts.task), run.assemble()[0]
    gpu = gpu and task.trains_model
    parts, spare = _tensors(run, task, method, gpu)
    tables, data = _tables(run, task, method), _data(task)
    host = (
        PROCESS
        + DATA_COPIES * data
        + (COMPILING if compiles and run.model is not None else 0)
        + sum(tables.values())
    )
    tensors = sum(parts.values())
    parts |= tables | {"data": DATA_COPIES * data}
    largest = max(parts, key=lambda name: parts[name])
    if gpu:
        return Need(host + GPU_PROCESS, GPU_CONTEXT + data + tensors, *ADVICE[largest], spare)
    return Need(host + tensors, 0, *ADVICE[largest], spare)


ADVICE = {
    "messages": ("the messages [m, d]", "fewer --workers, or a smaller --model"),
    "model": ("the model", "a smaller --model"),
    "samples": (
        "the mini-batches and their activations",
        "a smaller --batch-size, or fewer --workers",
    ),
    "workers": ("tables of the workers", "fewer --workers"),
    "ticks": (
        "who is Byzantine at each computation of the longest round",
        "--clock round, or a smaller jmax",
    ),
    "data": ("the data set", "another --task"),
}
"""Parts of a run's memory, and the options that reduce them."""


def looked_at(task: Task) -> Task:
    """Return the task with the shape and sizes of its data set, if its files show them."""
    if task.look is None or task.shape is not None:
        return task
    try:
        shape, train, test = task.look()
    except DynabroError:  # the error is reported when the files are read
        return task
    return task._replace(shape=shape, train_size=train, test_size=test)


def _data(task: Task) -> float:
    """Return the bytes of a task's images and labels."""
    if task.shape is None or task.train_size is None:
        return 0
    return (task.train_size + (task.test_size or 0)) * (_pixels(task.shape) + 8)


def _pixels(shape: ImageShape) -> int:
    return shape.channels * shape.height * shape.width


def _tensors(run: Run, task: Task, method: Method, gpu: bool) -> tuple[dict[str, float], float]:
    """Return the bytes of tensors on the run's device, and the part of passes that can shrink."""
    spec, senders, spare, matrices = run.spec, chain_setting(run.spec).workers, 0.0, MATRICES
    workers, batch = spec.workers, spec.batch_size
    if not task.trains_model:
        width, d = 8, task.dimension or 0
        samples = 4.0 * width * workers * batch * d
    elif run.model is None or task.shape is None:
        return {"samples": 0.0}, spare
    else:
        size, pixels = model_size(run.model, task.shape), _pixels(task.shape)
        width, d, all_samples = (
            4,
            size.parameters + size.statistics,
            _most_computations(method) * senders * batch,
        )
        if gpu:
            most = min(GPU_PASS_VALUES // pixels, int(GPU_PASS_BYTES / max(size.activations, 1)))
            together, evaluated = (
                max(batch, min(all_samples, most)),
                min(task.test_size or most, most),
            )
            # graphs have separate memory, for gradients and for the server
            captured = senders * batch * pixels <= GRAPH_VALUES
            longest = min(together, MOST_COMPUTATIONS * senders * batch) if captured else 0
            graphs, matrices = BACKWARD * longest * size.activations, (1 + captured) * MATRICES
        else:
            together = max(batch, min(senders * batch, PASS_VALUES // pixels))
            together = max(together, min(all_samples, int(TOGETHER / max(size.activations, 1))))
            evaluated, graphs = EVALUATION_VALUES // pixels, 0.0
        passes = max(BACKWARD * together, evaluated) * size.activations
        samples = 16.0 * senders * batch * pixels + 24.0 * workers * batch + passes + graphs
        spare = passes - max(BACKWARD * batch, evaluated) * size.activations
    return {
        "messages": width * matrices * workers * float(d),
        "model": float(width * VECTORS * d),
        "samples": samples,
    }, spare


def _tables(run: Run, task: Task, method: Method) -> dict[str, float]:
    """Return the bytes of the tables of workers, samples and ticks in the machine's memory."""
    spec, workers = run.spec, run.spec.workers
    ticks = _most_computations(method) if spec.clock == "computation" else 1
    tables = {"workers": 200.0 * workers, "ticks": ticks * (4.0 * workers + TICK)}
    if run.data.name != "iid" and task.train_size is not None and task.shape is not None:
        tables["workers"] += 48.0 * task.train_size + 300.0 * workers * task.shape.classes
    return tables


def _most_computations(method: Method) -> int:
    """Return the largest number of gradient computations in a round, from some draws of rounds."""
    plans = [method.plan(np.random.default_rng(seed)) for seed in range(DRAWS)] + (
        [method.first] if method.first else []
    )
    return max(
        [2**method.jmax if method.jmax is not None else 1, *(plan.prefixes[-1] for plan in plans)]
    )


def check_room(run: Run, device: torch.device, *, compiles: bool, host: bool = True) -> None:
    """Compare a run's need in this process with the free memory of this machine and its GPU.

    Args:
        run: The run.
        device: Where it computes.
        compiles: True if its functions may be compiled.
        host: True to check the machine's memory, too.

    Raises:
        SpecError: The run needs more than is free.
        OccupiedError: It would fit into the GPU, but others use its memory.
    """
    need = need_of(run, gpu=device.type == "cuda", compiles=compiles)
    free = free_host_memory() if host else None
    if free is not None and (more := need.within(free).host - private_memory()) > free:
        raise too_much(need, more, free, "are free")
    if device.type == "cuda":
        room, total = torch.cuda.mem_get_info(device)
        if (more := need.within(room).device) > room:
            error = too_much(need, more, room, f"are free on {device}")
            raise error if need.within(total).device > total else OccupiedError(error.problems)


def too_much(need: Need, needed: float, free: float, where: str) -> SpecError:
    """Return the error for a run that needs more than the free bytes."""
    return SpecError(
        f"memory: a run here needs about {needed / 1e9:,.1f} GB, most of it for {need.largest}, "
        f"and {free / 1e9:,.1f} GB {where}. Try: {need.advice}, or --force to begin all the same"
    )
