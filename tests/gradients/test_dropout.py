"""Dropout and other random layers: how much is dropped, for whom, and from which seeds."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from dynabro_cli.gradients.engine import LOOP, SHARED, WorkerGradients
from tests.gradients.worker_by_worker import batch_of, between, seeded
from tests.tables import each_row


def dropped(
    p: float, workers: int, samples: int, size: int, seed: int = 0, *, kind: str = SHARED
) -> Tensor:
    """Inputs of ones after Dropout(p), averaged over each worker's equal samples: [m, size * size].

    For y = W x + b the gradients are gy x^T and gy, so that their quotient is the masked and scaled
    x.
    """

    def build() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Dropout(p), nn.Linear(size * size, 2))

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = build().double()
    # equal logits whatever is dropped, so that every sample has the same gy
    model[2].weight.data.zero_()
    engine = WorkerGradients(model, workers, kinds=(kind,))
    assert engine.random == (p > 0)
    inputs = torch.ones(workers, samples, 1, size, size, dtype=torch.float64)
    engine(
        inputs,
        torch.zeros(workers, samples, dtype=torch.int64),
        1,
        range(100 * seed, 100 * seed + workers),
    )
    # class 0's row of W, and its b
    weight, bias = engine.matrix[:, : size * size], engine.matrix[:, -2:-1]
    return weight / bias


@each_row(("p", "kind"), [(0.0, SHARED), (0.25, SHARED), (0.6, SHARED), (0.25, LOOP)])
def test_dropout_keeps_the_right_share_and_scales_it(p: float, kind: str) -> None:
    """Hoeffding: P(|share - (1 - p)| > t) <= 2 exp(-2 n t^2) is 1e-9 at the t used here."""
    left = dropped(p, workers=20, samples=1, size=20, kind=kind).flatten()
    kept = left > 0.5
    torch.testing.assert_close(left, kept.double() / (1 - p), rtol=1e-9, atol=1e-12)
    bound = math.sqrt(math.log(2e9) / (2 * len(left)))
    assert abs(float(kept.double().mean()) - (1 - p)) <= (bound if p else 0)


@pytest.mark.parametrize("kind", [SHARED, LOOP])
def test_dropout_masks_differ_between_workers_and_samples(kind: str) -> None:
    # all samples are equal; two masks over 100 units agree with probability (5/8)^100 < 1e-20 at p
    # = 1/4
    left = dropped(0.25, workers=6, samples=1, size=10, kind=kind)
    assert len(torch.unique(left.round(decimals=6), dim=0)) == 6
    # two samples with one mask would give means of 0 and 4/3 only; 2/3 says that one kept the unit
    # and the other did not
    means = dropped(0.25, workers=2, samples=2, size=10, kind=kind)
    assert all(bool(((row - 2 / 3).abs() < 1e-9).any()) for row in means)


@pytest.mark.parametrize("kind", [SHARED, LOOP])
def test_a_workers_mask_does_not_depend_on_who_else_computes(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = dropped(0.25, workers=6, samples=1, size=10, kind=kind)
    assert torch.equal(dropped(0.25, workers=4, samples=1, size=10, kind=kind), together[:4])
    monkeypatch.setattr("dynabro_cli.gradients.engine.PASS_VALUES", 250)
    torch.testing.assert_close(dropped(0.25, workers=6, samples=1, size=10, kind=kind), together)


def test_dropout_masks_differ_between_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dynabro_cli.gradients.engine.PASS_VALUES", 1)
    assert (
        len(torch.unique(dropped(0.25, workers=6, samples=1, size=10).round(decimals=6), dim=0))
        == 6
    )


@pytest.mark.parametrize("kind", [SHARED, LOOP])
def test_dropout_is_drawn_from_the_given_seeds_alone(kind: str) -> None:
    torch.manual_seed(1)
    first = dropped(0.25, 3, 2, 8, seed=7, kind=kind)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    again = dropped(0.25, 3, 2, 8, seed=7, kind=kind)
    assert torch.equal(first, again)
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.equal(first, dropped(0.25, 3, 2, 8, seed=8, kind=kind))


@pytest.mark.parametrize("layer", [nn.Dropout2d, nn.AlphaDropout, nn.RReLU])
def test_other_random_layers_draw_from_the_given_seeds_too(layer: type[nn.Module]) -> None:
    inputs, labels = batch_of(3, 4, (2, 4, 4))
    model = seeded(lambda: between(layer())).double()
    engine = WorkerGradients(model, 3)
    results = []
    for noise, seed in ((1, 7), (2, 7), (2, 8)):
        torch.manual_seed(noise)
        engine(inputs, labels, 2, range(seed, seed + 6))
        results.append(engine.matrix.clone())
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
