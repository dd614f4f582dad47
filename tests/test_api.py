"""The components from Python."""

from __future__ import annotations

import doctest

import pytest
import torch

from dynabro_cli import api
from dynabro_cli.api import make_aggregator, make_attack, make_switching
from dynabro_cli.errors import SpecError


def test_examples_in_docstrings() -> None:
    results = doctest.testmod(api)
    assert results.attempted >= 5
    assert results.failed == 0


def test_aggregator_behind_a_chain_has_the_kappa_of_the_whole() -> None:
    messages = torch.tensor([[0.0], [1.0], [3.0], [90.0]])
    assert make_aggregator("nnm+mean", workers=4, byzantine=1)(messages).item() == pytest.approx((4 + 94 / 3) / 4)
    assert make_aggregator(" nnm:f=1 + cwtm:f=1 ", workers=5, byzantine=0).kappa == pytest.approx(22 / 3)


@pytest.mark.parametrize("shape", [(3,), (2, 4), (4, 3), (3, 2, 1)])
def test_aggregator_refuses_a_matrix_of_another_shape(shape: tuple[int, ...]) -> None:
    aggregator = make_aggregator("mean", workers=3, byzantine=0)
    with pytest.raises(ValueError, match=r"expected a matrix of shape \[3, d\], one row a worker, not \["):
        aggregator(torch.zeros(shape))


@pytest.mark.parametrize("shape", [(3,), (2, 4)])
def test_attack_refuses_gradients_of_another_shape(shape: tuple[int, ...]) -> None:
    attack = make_attack("sf", workers=3)
    with pytest.raises(ValueError, match=r"expected a matrix of shape \[3, d\]"):
        attack(torch.zeros(shape), torch.zeros(3, dtype=torch.bool))


@pytest.mark.parametrize(("shape", "dtype"), [((2,), torch.bool), ((3, 1), torch.bool), ((3,), torch.float32)])
def test_attack_refuses_another_mask(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    attack, mask = make_attack("sf", workers=3), torch.zeros(shape, dtype=dtype)
    with pytest.raises(ValueError, match=r"byzantine must be a bool tensor of shape \[3\], not torch"):
        attack(torch.zeros(3, 2), mask)


def test_stateful_attack_keeps_its_state() -> None:
    # alpha = 1/4, v = 1: v/alpha = 4 in the first round of a turn, 1 in the next; another attack object starts anew
    own, mask = torch.zeros(2, 1), torch.tensor([True, False])
    attack = make_attack("momentum-tailored:lambda=1", workers=2, beta=0.75)
    assert [float(attack(own, mask)[0]) for _ in range(3)] == [4.0, 1.0, 1.0]
    assert float(make_attack("momentum-tailored:lambda=1", workers=2, beta=0.75)(own, mask)[0]) == 4.0


def test_seed_and_beta_reach_the_strategy() -> None:
    sets = {tuple(make_switching("static", workers=17, byzantine=8, seed=seed).mask(0).tolist()) for seed in range(5)}
    assert len(sets) == 5  # two of five would agree by chance with probability 10/24310
    assert bool(make_switching("rotating", workers=3, byzantine=1, beta=0.9).mask(3)[1])


def test_unknown_names_are_refused_with_a_hint() -> None:
    with pytest.raises(SpecError, match=r"unknown aggregator 'cwmt' \(did you mean 'cwtm'\?\); legal: bulyan, caf"):
        make_aggregator("cwmt", workers=3, byzantine=1)
    with pytest.raises(SpecError, match="unknown pre-aggregator 'cwtm'"):
        make_aggregator("cwtm+mean", workers=3, byzantine=1)
    with pytest.raises(SpecError, match="unknown attack 'signflip'"):
        make_attack("signflip", workers=3)
    with pytest.raises(SpecError, match=r"unknown switching strategy 'perodic' \(did you mean 'periodic'\?\)"):
        make_switching("perodic:K=3", workers=3, byzantine=1)


@pytest.mark.parametrize("byzantine", [-1, 4])
def test_a_number_of_byzantine_workers_that_cannot_be_is_refused(byzantine: int) -> None:
    for rule in ("cwmed", "cwtm", "gm", "krum", "nnm+cwtm"):
        with pytest.raises(SpecError):
            make_aggregator(rule, workers=3, byzantine=byzantine)
    for strategy in ("static", "periodic:K=2"):
        with pytest.raises(SpecError):
            make_switching(strategy, workers=3, byzantine=byzantine)


def test_the_plus_of_a_number_joins_nothing() -> None:
    messages = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    plus, plain = (
        make_aggregator(f"nnm:f={f}+gm:nu={nu}", workers=5, byzantine=2)(messages) for f, nu in (("1e+0", "1e+2"), ("1", "100"))
    )
    assert torch.equal(plus, plain)
