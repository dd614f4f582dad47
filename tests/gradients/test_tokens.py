"""Embeddings, layer norms and attention against the slow and obvious way, in double precision."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dynabro_cli.components.models._api import REGISTRY
from dynabro_cli.components.tasks._api import ImageShape
from dynabro_cli.gradients.engine import LOOP, MAPPED, SHARED, WorkerGradients
from tests.gradients.worker_by_worker import CLASSES, check, generator, one_by_one, seeded
from tests.tables import each_row

LENGTH = 6
SMALL = "gpt:width=8,layers=2,heads=2"


def windows(workers: int, samples: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Windows of character numbers [m, n, 1, 1, length] as numbers, and the characters after
    them.
    """
    drawn = torch.randint(CLASSES, (workers, samples, LENGTH + 1), generator=generator(seed))
    return drawn[:, :, None, None, :-1].double(), drawn[..., -1]


def gpt(text: str = SMALL) -> nn.Module:
    return seeded(lambda: REGISTRY.parse(text).build(ImageShape(1, 1, LENGTH, CLASSES)))


def with_norms(model: nn.Module) -> nn.Module:
    """Move the weights of layer norms from the ones and zeros that would hide mistakes."""
    for number, module in enumerate(model.modules()):
        if isinstance(module, nn.LayerNorm) and module.elementwise_affine:
            module.weight.data = torch.rand(module.weight.shape, generator=generator(number)) + 0.5
            module.bias.data = torch.randn(module.bias.shape, generator=generator(number + 100))
    return model


@each_row("first", [SHARED, MAPPED, LOOP])
@each_row(("workers", "batches"), [(3, 3), (1, 1)])
def test_gpt(workers: int, first: str, batches: int) -> None:
    check(with_norms(gpt()), *windows(workers, 2 * batches), batches, first, first=first)


class Taken(nn.Module):
    """The sum over the places of a window of what a table has for its numbers, so that rows are
    asked for twice.
    """

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.table, self.norm, self.last = nn.Embedding(CLASSES + 2, 4), norm, nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.norm(self.table(x.flatten(1).long())).sum(1))
        return found


@each_row(
    "norm",
    [
        nn.LayerNorm(4),
        nn.LayerNorm((LENGTH, 4)),
        nn.LayerNorm(4, elementwise_affine=False),
        nn.LayerNorm(4, bias=False),
    ],
)
def test_norms_and_rows_that_nobody_asks_for(norm: nn.Module) -> None:
    check(with_norms_of(norm), *windows(3, 4), 2, SHARED)


def with_norms_of(norm: nn.Module) -> nn.Module:
    model = seeded(lambda: Taken(norm))
    for name, parameter in model.named_parameters():
        if name.startswith("norm"):
            parameter.data = torch.rand(parameter.shape, generator=generator(3)) + 0.5
    return model


def test_an_embedding_with_options_is_mapped() -> None:
    model = seeded(lambda: nn.Sequential(Taken(nn.Identity())))
    model[0].table = nn.Embedding(CLASSES, 4, padding_idx=0)
    engine = WorkerGradients(model.double(), 2)
    inputs, labels = windows(2, 2)
    engine(inputs, labels, 1, [])
    assert engine.kind in (MAPPED, LOOP)
    torch.testing.assert_close(engine.matrix, one_by_one(model, inputs, labels, 1)[1])


def test_a_character_sees_only_what_is_before_it() -> None:
    """A window's features at place k do not depend on later places."""
    decoder = with_norms(gpt())[0].double().eval()
    seen = []
    decoder.norm.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    blocks: list[Tensor] = []
    decoder.blocks[-1].register_forward_hook(lambda _, __, out: blocks.append(out))
    first, _ = windows(1, 1)
    other = first.clone()
    other[..., 3:] = (other[..., 3:] + 1) % CLASSES
    decoder(first[0])
    decoder(other[0])
    assert torch.equal(blocks[0][:, :3], blocks[1][:, :3])
    assert not torch.allclose(blocks[0][:, 3:], blocks[1][:, 3:])
    assert torch.equal(seen[0], blocks[0][:, -1])


def test_sizes() -> None:
    """Tables (103 + 32) 64, four blocks of 12 64^2 + 13 64, a norm of 128, and a last layer of 103
    (64 + 1).
    """
    model = REGISTRY.parse("gpt").build(ImageShape(1, 1, 32, 103))
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == 135 * 64 + 4 * (12 * 64**2 + 13 * 64) + 128 + 103 * 65
    assert 190_000 < count < 230_000


class AtEach(nn.Module):
    """Logits at each position of a text, or of a row of numbers: [n, k] -> [n, k, classes]."""

    def __init__(self, embeds: bool) -> None:
        super().__init__()
        self.first = nn.Embedding(CLASSES, 4) if embeds else nn.Linear(1, 4)
        self.last, self.embeds = nn.Linear(4, CLASSES), embeds

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.tanh(self.first(x if self.embeds else x.unsqueeze(-1))))
        return out


def at_each(logits: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy of each position [n, k]."""
    return F.cross_entropy(logits.movedim(-1, 1), targets, reduction="none")


@each_row("batches", [1, 2])
@each_row("kind", ["table", "flat table", "numbers", "tokens"])
def test_tables_with_a_target_for_each_row_or_each_position(kind: str, batches: int) -> None:
    table = [nn.Linear(LENGTH, 8), nn.ReLU(), nn.Linear(8, CLASSES)]
    model = {
        "table": lambda: nn.Sequential(*table),
        "flat table": lambda: nn.Sequential(nn.Flatten(), *table),
        "numbers": lambda: AtEach(False),
        "tokens": lambda: AtEach(True),
    }[kind]()
    model = seeded(lambda: model).double()
    loss = None if "table" in kind else at_each
    shape, drawn = (3, 4, LENGTH), generator(1)
    inputs = (
        torch.randint(CLASSES, shape, generator=drawn)
        if kind == "tokens"
        else torch.randn(shape, generator=drawn, dtype=torch.float64)
    )
    targets = torch.randint(CLASSES, shape[:2] if loss is None else shape, generator=drawn)
    engine = WorkerGradients(model, 3, loss=loss)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a slower way
        losses = engine(inputs, targets, batches, ())
    assert engine.kind == SHARED
    for worker in range(3):
        mean = (loss or F.cross_entropy)(model(inputs[worker]), targets[worker]).mean()
        gradient = torch.autograd.grad(mean, list(model.parameters()))
        expected = torch.cat([part.flatten() for part in gradient])
        torch.testing.assert_close(engine.matrix[worker], expected, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(losses[worker].double(), mean.detach(), rtol=1e-12, atol=0.0)
    assert torch.equal(engine.logits(inputs[0]), model(inputs[0]))
