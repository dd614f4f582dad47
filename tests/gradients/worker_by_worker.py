"""Per-worker gradients the slow and obvious way, in double precision: what the engine is checked
against.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dynabro_cli.components.models._api import REGISTRY
from dynabro_cli.components.tasks._api import ImageShape
from dynabro_cli.gradients.engine import KINDS, LOOP, MAPPED, SHARED, WorkerGradients

CLASSES = 5
RGB_16 = ImageShape(3, 16, 16, CLASSES)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch_of(
    workers: int, samples: int, shape: tuple[int, ...], seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Random inputs [workers, samples, *shape] in double precision, and labels."""
    source = generator(seed)
    inputs = torch.randn(workers, samples, *shape, generator=source, dtype=torch.float64)
    return inputs, torch.randint(CLASSES, (workers, samples), generator=source)


def seeded(build: object, seed: int = 0) -> nn.Module:
    """Call ``build`` with torch's default generator at ``seed``, and leave that generator as it
    was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = build()  # type: ignore[operator]
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        # its default of ones and zeros would hide mistakes
        if isinstance(module, nn.BatchNorm2d) and module.affine:
            module.weight.data = (
                torch.rand(module.num_features, generator=generator(seed + 1)) + 0.5
            )
            module.bias.data = torch.randn(module.num_features, generator=generator(seed + 2))
    return model


def registered(text: str, shape: ImageShape = RGB_16) -> nn.Module:
    return seeded(lambda: REGISTRY.parse(text).build(shape))


def one_by_one(
    model: nn.Module, inputs: Tensor, labels: Tensor, batches: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses [m], gradients [m, d] and batch-norm statistics [m, s], worker after worker, on a copy
    of ``model``.

    A worker's loss is the mean over its mini-batches of the mini-batch's mean loss, differentiated
    in one go. Statistics come from what goes into the batch norms, not from their buffers.
    """
    model = copy.deepcopy(model).train()
    seen: list[tuple[Tensor, Tensor]] = []

    def watch(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        x = arguments[0].detach().transpose(0, 1).flatten(1)  # [features, values]
        seen.append((x.mean(1), x.var(1, correction=1)))

    norms = [
        module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)
    ]
    for norm in norms:
        if norm.track_running_stats:
            norm.register_forward_pre_hook(watch)
    losses, statistics = [], []
    matrix = inputs.new_empty(
        len(inputs), sum(parameter.numel() for parameter in model.parameters())
    )
    for row, own, classes in zip(matrix, inputs, labels, strict=True):
        parts, of_parts = [], []
        for part, target in zip(own.chunk(batches), classes.chunk(batches), strict=True):
            seen.clear()
            parts.append(F.cross_entropy(model(part), target))
            of_parts.append(
                torch.cat([torch.cat(pair) for pair in seen]) if seen else own.new_empty(0)
            )
        loss = torch.stack(parts).mean()
        gradient = torch.autograd.grad(loss, list(model.parameters()))
        losses.append(loss.detach())
        torch.cat([part.flatten() for part in gradient], out=row)
        statistics.append(torch.stack(of_parts).mean(0))
    return torch.stack(losses), matrix, torch.stack(statistics)


FROM = {kind: KINDS[place:] for place, kind in enumerate((SHARED, MAPPED, LOOP))}
"""The ways that are left for an engine which is to begin with this one."""


def check(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    batches: int,
    kind: str,
    *,
    first: str = SHARED,
) -> None:
    """Compare all that an engine which begins with the way ``first`` reports with ``one_by_one``,
    in double precision.
    """
    model = model.double()
    losses, matrix, statistics = one_by_one(model, inputs, labels, batches)
    assert float(matrix.norm(dim=1).min()) > 1e-6, "a vanishing gradient would prove nothing"
    engine = WorkerGradients(model, len(inputs), kinds=FROM[first])
    seeds = [7] * (len(inputs) * batches) if engine.random else []
    exact = {"rtol": 1e-9, "atol": 1e-11}
    for _ in range(2):  # a second call must overwrite the first, not add to it
        torch.testing.assert_close(engine(inputs, labels, batches, seeds), losses, **exact)
        assert engine.kind == kind
        # at once, a comparison takes the memory of five matrices
        for ours, theirs in zip(engine.matrix, matrix, strict=True):
            torch.testing.assert_close(ours, theirs, **exact)
        torch.testing.assert_close(engine.statistics, statistics, **exact)


def between(*layers: nn.Module) -> nn.Module:
    """A small convolutional network with ``layers`` in its middle."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), *layers, nn.Flatten(), nn.Linear(64, CLASSES)
    )
