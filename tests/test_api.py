"""The components from Python."""

from __future__ import annotations

import doctest
from typing import Any

import pytest
import torch

from dynabro_cli import api
from dynabro_cli.aggregators._api import REGISTRY as AGGREGATORS
from dynabro_cli.api import make_aggregator, make_attack, make_switching
from dynabro_cli.attacks._api import REGISTRY as KINDS
from dynabro_cli.errors import SpecError
from dynabro_cli.testing._rules import made


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


REFUSED = {
    "whole numbers": (
        torch.ones(3, 4, dtype=torch.int64),
        ValueError,
        r"must be floating-point numbers \(.*\), not torch.int64; ",
    ),
    "truth values": (
        torch.ones(3, 4, dtype=torch.bool),
        ValueError,
        "must be floating-point numbers .*, not torch.bool; pass ",
    ),
    "complex": (torch.ones(3, 4, dtype=torch.complex64), ValueError, "must be floating-point numbers .*, not torch.complex64$"),
    "no columns": (
        torch.ones(3, 0),
        ValueError,
        r"expected a matrix of shape \[3, d\], .*, not \[3, 0\]; d must be at",
    ),
    "no values": (torch.ones(3, 4, device="meta"), ValueError, "must be a dense tensor with values, not .* on meta"),
    "sparse": (torch.ones(3, 4).to_sparse(), ValueError, "must be a dense tensor with values, not torch.sparse_coo"),
    "a list": ([[1.0, 2.0]] * 3, TypeError, r"must be a torch tensor, not list; pass torch.as_tensor\("),
}
RULES = [*(name for name in AGGREGATORS.entries() if name not in ("mfm", "centered-clipping")), "mfm:threshold=1"]
RULES += ["centered-clipping:tau=1", "nnm+krum", "nnm+cwtm", "arc+mean", "bucketing:s=1+gm", "clipping:c=1+caf"]
ATTACKS = [
    {"shift": "shift:lambda=2", "momentum-tailored": "momentum-tailored:lambda=2"}.get(name, name) for name in KINDS.entries()
]


@pytest.mark.parametrize(("given", "error", "line"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("rule", RULES)
def test_what_no_rule_can_compute_with_is_refused_by_every_rule(
    rule: str, given: Any, error: type[Exception], line: str
) -> None:
    aggregator = made(rule, workers=3, byzantine=0)
    for call in (aggregator, aggregator.preview):
        with pytest.raises(error, match=f"messages.*{line}"):
            call(given)


@pytest.mark.parametrize(("given", "error", "line"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("text", ATTACKS)
def test_what_no_attack_can_compute_with_is_refused_by_every_attack(
    text: str, given: Any, error: type[Exception], line: str
) -> None:
    attack = make_attack(text, workers=3, beta=0.9)
    with pytest.raises(error, match=f"gradients.*{line}"):
        attack(given, torch.zeros(3, dtype=torch.bool), lambda messages: messages[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rule", RULES)
def test_half_precision_is_computed_with_in_single_precision(rule: str, dtype: torch.dtype) -> None:
    messages = torch.randn(3, 40, generator=torch.Generator().manual_seed(0)).to(dtype)
    aggregate = made(rule, workers=3, byzantine=0)(messages)
    assert aggregate.dtype == dtype
    assert torch.equal(aggregate, made(rule, workers=3, byzantine=0)(messages.float()).to(dtype))


@pytest.mark.parametrize("text", ATTACKS)
def test_attacks_compute_with_half_precision_in_single_precision(text: str) -> None:
    own, mask = torch.randn(3, 40, generator=torch.Generator().manual_seed(0)).half(), torch.tensor([True, False, False])
    attacks = [make_attack(text, workers=3, beta=0.9) for _ in range(2)]
    sent, single = (one(vectors, mask, median) for one, vectors in zip(attacks, (own, own.float()), strict=True))
    assert sent.dtype == torch.float16
    torch.testing.assert_close(sent, single.half(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(sent[1:], own[1:])


def median(messages: torch.Tensor) -> torch.Tensor:
    return messages.median(0).values


@pytest.mark.parametrize("rule", RULES)
def test_messages_may_have_any_strides_and_a_gradient(rule: str) -> None:
    columns = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    aggregators = [made(rule, workers=3, byzantine=0) for _ in range(3)]
    plain = aggregators[0](columns.T.contiguous())
    torch.testing.assert_close(aggregators[1](columns.T), plain)
    learned = columns.T.clone().requires_grad_()
    for _ in range(2):  # what a rule remembers has no gradient, or a second one would go through it
        aggregate = aggregators[2](learned)
        aggregate.sum().backward()
    assert learned.grad is not None
    assert not all(value.requires_grad for value in aggregators[2]._state.values()) or not aggregators[2]._state


def test_a_rule_that_remembers_vectors_refuses_others() -> None:
    rule = make_aggregator("centered-clipping:tau=1", workers=3, byzantine=1)
    rule(torch.ones(3, 4))
    with pytest.raises(ValueError, match=r"messages have 5 columns in torch.float32, and the rule remembers a vector of 4 in "):
        rule(torch.ones(3, 5))
    with pytest.raises(ValueError, match=r"messages have 4 columns in torch.float64, and the rule .* in torch.float32; make "):
        rule(torch.ones(3, 4).double())
    rule(torch.ones(3, 4).half())
    make_aggregator("dnc", workers=3, byzantine=1)(torch.ones(3, 5))


def test_labels_are_whole_numbers() -> None:
    attack = make_attack("label-flip", workers=3)
    with pytest.raises(ValueError, match=r"labels must be whole numbers, not torch\.float32"):
        attack.labels(torch.ones(3, 4), torch.zeros(3, dtype=torch.bool), 10)


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
    with pytest.raises(SpecError, match="unknown attack 'signflop'"):
        make_attack("signflop", workers=3)
    with pytest.raises(SpecError, match=r"unknown switching strategy 'perodic' \(did you mean 'periodic'\?\)"):
        make_switching("perodic:K=3", workers=3, byzantine=1)


@pytest.mark.parametrize("byzantine", [-1, 4])
def test_a_number_of_byzantine_workers_that_cannot_be_is_refused(byzantine: int) -> None:
    for rule in ("cwmed", "cwtm", "gm", "krum", "nnm+cwtm"):
        with pytest.raises(SpecError):
            made(rule, workers=3, byzantine=byzantine)
    for strategy in ("static", "periodic:K=2"):
        with pytest.raises(SpecError):
            make_switching(strategy, workers=3, byzantine=byzantine)


def test_the_plus_of_a_number_joins_nothing() -> None:
    messages = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    plus, plain = (
        make_aggregator(f"nnm:f={f}+gm:nu={nu}", workers=5, byzantine=2)(messages) for f, nu in (("1e+0", "1e+2"), ("1", "100"))
    )
    assert torch.equal(plus, plain)
