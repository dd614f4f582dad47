"""Checks of models, tasks and partitions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from dynabro_cli.components.partitions._api import PartitionSetting
from dynabro_cli.components.tasks._api import Images, ImageShape, Objective, TaskSetting
from dynabro_cli.core.streams import Streams
from dynabro_cli.experiment.build import data_directory
from dynabro_cli.gradients import WorkerGradients
from dynabro_cli.testing._common import check_run, component, require


def check_model(
    text: str, *, plugin: str | Path | None = None, shape: tuple[int, int, int, int] = (1, 8, 8, 10)
) -> int:
    """Check a model: it maps images to logits, and its parameters depend only on torch's seed. A
    run is reproducible.

    The shared pass is compared with each worker's own pass. If runs have to use a slower way, a
    RuntimeWarning says why.

    Args:
        text: Such as ``my-model:width=32``.
        plugin: The file that defines it.
        shape: Channels, height, width and classes.

    Returns:
        The number of its trainable parameters, d.

    Raises:
        AssertionError: A promise is broken; the message says which.
        SpecError: The model does not exist, or not for this shape.
    """
    parsed, images = component("models", text, plugin), ImageShape(*shape)
    models = []
    for _ in range(2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            models.append(parsed.build(images))
    model, again = models
    inputs = torch.rand(5, *shape[:3])
    logits = model(inputs)
    require(
        logits.shape == (5, shape[3]),
        f"{text}: images [n, c, h, w] must give logits [n, {shape[3]}]",
    )
    require(logits.isfinite().all(), f"{text}: its logits are not finite")
    alike = all(
        torch.equal(first, second)
        for first, second in zip(model.parameters(), again.parameters(), strict=True)
    )
    require(
        alike,
        f"{text}: with the same seed of torch, its parameters differ; draw them by torch's own "
        "initialisation",
    )
    require(
        any(weight.requires_grad for weight in model.parameters()),
        f"{text}: it has nothing to train",
    )
    d: int = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    labels = torch.randint(shape[3], (2, 5), generator=torch.Generator().manual_seed(0))
    WorkerGradients(again, 2)(torch.rand(2, 5, *shape[:3]), labels, 1, (0, 1))
    if shape == (1, 8, 8, 10):
        check_run(text, task="digits", model=text)
    return d


def check_task(
    text: str, *, plugin: str | Path | None = None, data_dir: str | Path | None = None
) -> Images | Objective:
    """Check a task: its data have the declared shape and sizes, and are equal if loaded twice. A
    run is reproducible.

    Args:
        text: Such as ``my-task``.
        plugin: The file that defines it.
        data_dir: The folder of data sets.

    Returns:
        Its data.

    Raises:
        AssertionError: A promise is broken; the message says which.
        SpecError: The task does not exist.
    """
    parsed = component("tasks", text, plugin)
    setting = TaskSetting(data_directory(data_dir))
    task = parsed.build(setting)
    data: Images | Objective = task.load()
    require(
        isinstance(data, Images) == task.trains_model,
        f"{text}: load must return Images, or the task must have trains_model=False",
    )
    if isinstance(data, Images):
        _check_images(text, data, parsed.build(setting).load())
        require(
            task.shape in (None, data.shape),
            f"{text}: its data have the shape {data.shape}, but it declares {task.shape}",
        )
        sizes = len(data.train_labels), len(data.test_labels)
        declared = task.train_size, task.test_size
        fitting = all(
            size_declared in (None, size)
            for size_declared, size in zip(declared, sizes, strict=True)
        )
        require(fitting, f"{text}: its data have {sizes} samples, but it declares {declared}")
        require(task.defaults.model is not None, f"{text}: its defaults need a model")
        check_run(text, task=text, batch_size=min(2, sizes[0]))
    else:
        gradient = data.gradient(data.start)
        require(gradient.shape == data.start.shape, f"{text}: the gradient must be [d], like x")
        require(float(data.gap(data.start)) >= 0, f"{text}: f(x) - f* is negative at the start")
        require(
            torch.equal(data.project(data.start), data.start),
            f"{text}: the start is outside the domain",
        )
        require(
            task.dimension in (None, data.start.numel()),
            f"{text}: dimension={task.dimension}, but x has another size",
        )
        check_run(text, task=text, attack="shift:lambda=1")
    return data


def _check_images(text: str, data: Images, again: Images) -> None:
    shape = data.shape
    for name in ("train", "test"):
        images, labels = getattr(data, f"{name}_images"), getattr(data, f"{name}_labels")
        expected = (len(labels), shape.channels, shape.height, shape.width)
        require(
            tuple(images.shape) == expected,
            f"{text}: {name}_images must be {expected}, not {tuple(images.shape)}",
        )
        kinds = (torch.uint8, torch.float32)
        require(
            images.dtype in kinds,
            f"{text}: {name}_images must be uint8 or float32, not {images.dtype}",
        )
        require(
            labels.dtype == torch.int64, f"{text}: {name}_labels must be int64, not {labels.dtype}"
        )
        require(
            ((labels >= 0) & (labels < shape.classes)).all(),
            f"{text}: {name}_labels must be under {shape.classes}",
        )
        alike = torch.equal(images, getattr(again, f"{name}_images")) and torch.equal(
            labels, getattr(again, f"{name}_labels")
        )
        require(alike, f"{text}: loaded twice, its {name} data differ")
    require(
        len(data.mean) == len(data.std) == shape.channels,
        f"{text}: mean and std must have a number for each channel",
    )


def check_partition(
    text: str, *, plugin: str | Path | None = None, workers: int = 5, samples: int = 203
) -> list[int]:
    """Check a partition: each sample has one worker, each worker has samples, and only the seed
    decides. A run is reproducible.

    Args:
        text: Such as ``my-partition``.
        plugin: The file that defines it.
        workers: m.
        samples: Size of the training set.

    Returns:
        The sizes of the parts.

    Raises:
        AssertionError: A promise is broken; the message says which.
        SpecError: The partition does not exist, or not for m.
    """
    parsed = component("partitions", text, plugin)
    split = parsed.build(PartitionSetting(workers)).split
    if split is None:
        return [samples] * workers
    labels = np.random.Generator(np.random.Philox(1)).integers(4, size=samples)
    before = labels.copy()
    parts, again = (split(labels, Streams(seed)) for seed in (0, 0))
    require(np.array_equal(labels, before), f"{text}: it changes the labels; copy them")
    require(len(parts) == workers, f"{text}: it makes {len(parts)} parts for {workers} workers")
    whole = np.array_equal(np.sort(np.concatenate(parts)), np.arange(samples))
    require(whole, f"{text}: the parts must have each sample once")
    require(min(map(len, parts)) > 0, f"{text}: a worker has no sample")
    require(
        all(map(np.array_equal, parts, again)),
        f"{text}: with the same seed its parts differ; draw only from streams",
    )
    check_run(text, task="digits", model="logistic", data=text)
    return [len(part) for part in parts]
