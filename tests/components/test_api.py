"""The components from Python."""

from __future__ import annotations

import copy
import doctest
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dynabro_cli.components import api
from dynabro_cli.components.aggregators._api import REGISTRY as AGGREGATORS
from dynabro_cli.components.api import (
    make_aggregator,
    make_attack,
    make_pre_aggregator,
    make_switching,
)
from dynabro_cli.core.errors import SpecError
from dynabro_cli.testing._rules import made
from tests.tables import each_row


def test_examples_in_docstrings() -> None:
    results = doctest.testmod(api)
    assert results.attempted >= 5
    assert results.failed == 0


def test_aggregator_behind_a_chain_has_the_kappa_of_the_whole() -> None:
    messages = torch.tensor([[0.0], [1.0], [3.0], [90.0]])
    assert make_aggregator("nnm+mean", workers=4, byzantine=1)(messages).item() == pytest.approx(
        (4 + 94 / 3) / 4
    )
    assert make_aggregator(" nnm:f=1 + cwtm:f=1 ", workers=5, byzantine=0).kappa == pytest.approx(
        22 / 3
    )


@each_row("shape", [(3,), (0, 4), (4, 3), (3, 2, 1)])
def test_aggregator_refuses_a_matrix_of_another_shape(shape: tuple[int, ...]) -> None:
    aggregator = make_aggregator("mean", workers=3, byzantine=0)
    with pytest.raises(
        ValueError, match=r"expected a matrix of shape \[3, d\], one row a worker, not \["
    ):
        aggregator(torch.zeros(shape))


ROWS = np.random.default_rng(0).normal(size=(5, 6))
"""Messages of 5 workers."""
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
    "complex": (
        torch.ones(3, 4, dtype=torch.complex64),
        ValueError,
        "must be floating-point numbers .*, not torch.complex64$",
    ),
    "no columns": (
        torch.ones(3, 0),
        ValueError,
        r"expected a matrix of shape \[3, d\], .*, not \[3, 0\]; d must be at",
    ),
    "no values": (
        torch.ones(3, 4, device="meta"),
        ValueError,
        "must be a dense tensor with values, not .* on meta",
    ),
    "sparse": (
        torch.ones(3, 4).to_sparse(),
        ValueError,
        "must be a dense tensor with values, not torch.sparse_coo",
    ),
    "numbers": (
        [[1.0, 2.0]] * 3,
        TypeError,
        r"must be a torch tensor or a NumPy array .*, not float; pass torch.as_tensor\(",
    ),
    "texts": (
        np.array([["a"]] * 3),
        TypeError,
        r"must be a torch tensor or a NumPy array .*, not an array of <U1; ",
    ),
    "whole numbers by name": (
        {"w": torch.ones(3, 4), "n": np.ones(3, int)},
        ValueError,
        r"\['n'\] .* not torch.int64 \[3\]. Try",
    ),
    "another shape": (
        [torch.ones(2), torch.ones(2), torch.ones(3)],
        ValueError,
        r"\[2\] has the shape \[3\], and \w+\[0\] \w+ ",
    ),
    "other names": (
        [{"w": torch.ones(2)}, {"b": torch.ones(2)}],
        ValueError,
        r"\[1\] has the parameters \['b'\], and ",
    ),
    "other rows": (
        {"w": torch.ones(3, 4), "b": torch.ones(2)},
        ValueError,
        "must have parameters, all .* the same number of rows",
    ),
    "no messages": ([], ValueError, "is empty; expected one message a worker"),
    "more rows": (
        np.ones((4, 2)),
        ValueError,
        r"expected a matrix of shape \[3, d\], one row a worker, not \[4, 2\]",
    ),
}
RULES = [
    *(name for name in AGGREGATORS.entries() if name not in ("mfm", "centered-clipping")),
    "mfm:threshold=1",
]
RULES += [
    "centered-clipping:tau=1",
    "nnm+cwtm",
    "arc+mean",
    "bucketing:s=1+gm",
    "clipping:c=1+caf",
]
every_refusal = each_row(("given", "error", "line"), REFUSED.values(), ids=list(REFUSED))
"""All components read their vectors in one place, so one component shows what is refused."""


@every_refusal
def test_what_no_rule_can_compute_with_is_refused(
    given: Any, error: type[Exception], line: str
) -> None:
    aggregator = made("nnm+cwtm", workers=3, byzantine=0)
    for call in (aggregator, aggregator.preview):
        with pytest.raises(error, match=f"messages.*{line}"):
            call(given)


@every_refusal
def test_what_no_attack_can_compute_with_is_refused(
    given: Any, error: type[Exception], line: str
) -> None:
    attack = make_attack("sf", workers=3)
    with pytest.raises(error, match=f"gradients.*{line}"):
        attack(given, torch.zeros(3, dtype=torch.bool), lambda messages: messages[0])


@each_row("dtype", [torch.float16, torch.bfloat16])
@each_row("rule", ["rfa", "centered-clipping:tau=1", "nnm+cwtm"])
def test_half_precision_is_computed_with_in_single_precision(rule: str, dtype: torch.dtype) -> None:
    messages = torch.randn(3, 40, generator=torch.Generator().manual_seed(0)).to(dtype)
    aggregate = made(rule, workers=3, byzantine=0)(messages)
    assert aggregate.dtype == dtype
    assert torch.equal(aggregate, made(rule, workers=3, byzantine=0)(messages.float()).to(dtype))


@pytest.mark.parametrize("text", ["gaussian", "ipm", "momentum-tailored:lambda=2"])
def test_attacks_compute_with_half_precision_in_single_precision(text: str) -> None:
    own, mask = (
        torch.randn(3, 40, generator=torch.Generator().manual_seed(0)).half(),
        torch.tensor([True, False, False]),
    )
    attacks = [make_attack(text, workers=3, beta=0.9) for _ in range(2)]
    sent, single = (
        one(vectors, mask, median) for one, vectors in zip(attacks, (own, own.float()), strict=True)
    )
    assert sent.dtype == torch.float16
    torch.testing.assert_close(sent, single.half(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(sent[1:], own[1:])


def median(messages: torch.Tensor) -> torch.Tensor:
    return messages.median(0).values


@each_row("rule", RULES)
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
    assert (
        not all(value.requires_grad for value in aggregators[2]._state.values())
        or not aggregators[2]._state
    )


@each_row("rule", [*RULES, "gm:tolerance=1e-12", "gm:T=5"])
def test_gradients_through_rules_are_right(rule: str) -> None:
    messages = torch.randn(7, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    messages[:1] += 3
    assert torch.autograd.gradcheck(
        lambda given: made(rule, workers=7, byzantine=1)(given), messages.requires_grad_()
    )


EXTREMES = {
    "zeros": lambda rows: rows * 0,  # equal, and without a direction
    "a worker that sends NaN": lambda rows: torch.where(
        torch.arange(7)[:, None] == 3, torch.nan, rows
    ),
    "large": lambda rows: rows * 1e30,
    "small": lambda rows: rows * 1e-30,
}


@each_row("change", EXTREMES.values(), ids=EXTREMES)
@each_row("rule", RULES)
def test_gradients_through_rules_are_finite(
    rule: str, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    messages = torch.randn(7, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    made(rule, workers=7, byzantine=1)(change(messages)).sum().backward()
    assert messages.grad is not None
    assert messages.grad.isfinite().all()


def test_a_rule_that_remembers_vectors_refuses_others() -> None:
    rule = make_aggregator("centered-clipping:tau=1", workers=3, byzantine=1)
    rule(torch.ones(3, 4))
    with pytest.raises(
        ValueError,
        match=r"messages have 5 columns in torch.float32, and the rule remembers a vector of 4 in ",
    ):
        rule(torch.ones(3, 5))
    with pytest.raises(
        ValueError,
        match=r"messages have 4 columns in torch.float64, and the rule .* in torch.float32; make ",
    ):
        rule(torch.ones(3, 4).double())
    rule(torch.ones(3, 4).half())
    make_aggregator("dnc", workers=3, byzantine=1)(torch.ones(3, 5))


FORMS: dict[str, tuple[Callable[[np.ndarray[Any, Any]], Any], Callable[[Any], Any]]] = {
    "array": (lambda rows: rows, lambda row: row),
    "read-only array, reversed strides": (
        lambda rows: np.broadcast_to(rows[:, ::-1], rows.shape)[:, ::-1],
        lambda row: row,
    ),
    "list of vectors": (list, lambda row: row),
    "list of tensors": (
        lambda rows: [torch.from_numpy(row) for row in rows],
        lambda row: row.numpy(),
    ),
    "list of matrices": (lambda rows: list(rows.reshape(-1, 2, 3)), lambda row: row.reshape(6)),
    "dicts of parameters": (
        lambda rows: [
            {"b": torch.tensor(row[0]), "w": torch.tensor(row[1:]).view(1, 5)} for row in rows
        ],
        lambda row: np.r_[row["b"].numpy(), row["w"].numpy()[0]],
    ),
    "lists of parameters": (lambda rows: [[row[:2], row[2:]] for row in rows], np.concatenate),
    "stacked parameters": (
        lambda rows: {"b": torch.tensor(rows[:, 0]), "w": torch.tensor(rows[:, 1:])},
        lambda row: np.r_[row["b"].numpy(), row["w"].numpy()],
    ),
}


@each_row(("write", "back"), FORMS.values(), ids=FORMS)
def test_messages_may_have_any_form(
    write: Callable[[Any], Any], back: Callable[[Any], Any]
) -> None:
    def row(form: Any, place: int) -> Any:
        return (
            {name: part[place] for name, part in form.items()}
            if isinstance(form, dict)
            else form[place]
        )

    matrix, form, mask = torch.from_numpy(ROWS), write(ROWS), torch.arange(5) < 2
    for rule in ("nnm+krum", "cwtm", "fltrust"):
        aggregate = make_aggregator(rule, workers=5, byzantine=1)(form, server=row(form, 0))
        expected = make_aggregator(rule, workers=5, byzantine=1)(matrix, server=matrix[0])
        assert np.array_equal(back(aggregate), expected.numpy())
    for text in ("alie", "none"):
        sent = make_attack(text, workers=5)(form, mask.tolist())
        expected = make_attack(text, workers=5)(matrix, mask)
        assert np.array_equal([back(row(sent, worker)) for worker in range(5)], expected.numpy())
    mixed = make_pre_aggregator("bucketing:s=2", workers=5, byzantine=1)(form)
    expected = make_pre_aggregator("bucketing:s=2", workers=5, byzantine=1)(matrix)
    assert np.array_equal([back(row(mixed, place)) for place in range(3)], expected.numpy())


def test_types_of_parameters_are_kept() -> None:
    rows = {
        "w": torch.tensor(ROWS).bfloat16(),
        "b": ROWS[:, :1].astype("float16"),
        "s": ROWS[:, 0].astype(">f4"),
    }
    aggregate = make_aggregator("nnm+cwtm", workers=5, byzantine=1)(rows)
    assert (aggregate["w"].dtype, aggregate["b"].dtype, aggregate["s"].dtype) == (
        torch.bfloat16,
        np.float16,
        np.dtype(">f4"),
    )
    sent = make_attack("sf", workers=5)(rows, np.arange(5) < 2)
    assert torch.equal(sent["w"], torch.where(torch.arange(5)[:, None] < 2, -rows["w"], rows["w"]))
    network = torch.nn.Linear(3, 2)
    parameters = make_aggregator("cwtm", workers=3, byzantine=1)(
        [dict(network.named_parameters())] * 3
    )
    network.load_state_dict(parameters)


@each_row("rule", ["nnm+krum", "cwtm", "centered-clipping:tau=1", "bucketing:s=1+gm"])
def test_workers_that_did_not_answer_have_no_row(rule: str) -> None:
    # 5 of 9, and the Byzantine worker may be among them
    some = make_aggregator(rule, workers=9, byzantine=1)(ROWS)
    assert np.array_equal(some, make_aggregator(rule, workers=5, byzantine=1)(ROWS))
    mask = np.arange(5) < 1
    sent = make_attack("alie", workers=9)(ROWS, mask)
    assert np.array_equal(sent, make_attack("alie", workers=5)(ROWS, mask))
    with pytest.raises(SpecError, match="f=3 is not legal with 5 workers"):
        make_aggregator("cwtm", workers=9, byzantine=3)(ROWS)
    with pytest.raises(
        ValueError,
        match=r"make_attack\('mimic', workers=9\) needs 9 rows, because it knows workers by "
        r".*, not 5",
    ):
        make_attack("mimic", workers=9)(ROWS, mask)


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda bound: pickle.loads(pickle.dumps(bound))]
)
def test_objects_are_copied_with_their_state(duplicate: Callable[[Any], Any]) -> None:
    rule = make_aggregator("bucketing:s=2+centered-clipping:tau=1", workers=5, byzantine=1, seed=3)
    attack, mask = make_attack("momentum-tailored:lambda=1", workers=5, beta=0.75), np.arange(5) < 1
    stage = make_pre_aggregator("bucketing:s=2", workers=5, byzantine=1)
    calls: list[tuple[Any, tuple[Any, ...]]] = [
        (rule, (ROWS,)),
        (attack, (ROWS, mask)),
        (stage, (ROWS,)),
    ]
    for bound, given in calls:
        first = bound(*given)
        again = duplicate(bound)
        second = bound(*given)
        assert not np.array_equal(first, second)  # the state matters
        assert np.array_equal(second, again(*given))
        assert eval(repr(bound))(*given).tolist() == first.tolist()


def test_labels_are_whole_numbers() -> None:
    attack = make_attack("label-flip", workers=3)
    with pytest.raises(ValueError, match=r"labels must be whole numbers, not torch\.float32"):
        attack.labels(torch.ones(3, 4), torch.zeros(3, dtype=torch.bool), 10)


@pytest.mark.parametrize("shape", [(3,), (4, 4)])
def test_attack_refuses_gradients_of_another_shape(shape: tuple[int, ...]) -> None:
    attack = make_attack("sf", workers=3)
    with pytest.raises(ValueError, match=r"expected a matrix of shape \[3, d\]"):
        attack(torch.zeros(shape), torch.zeros(3, dtype=torch.bool))


@pytest.mark.parametrize(
    ("shape", "dtype"), [((2,), torch.bool), ((3, 1), torch.bool), ((3,), torch.float32)]
)
def test_attack_refuses_another_mask(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    attack, mask = make_attack("sf", workers=3), torch.zeros(shape, dtype=dtype)
    with pytest.raises(
        ValueError, match=r"byzantine must be a bool mask of shape \[3\], not torch"
    ):
        attack(torch.zeros(3, 2), mask)


def test_stateful_attack_keeps_its_state() -> None:
    # alpha = 1/4, v = 1: v/alpha = 4 in the first round of a turn, 1 in the next; another attack
    # object starts anew
    own, mask = torch.zeros(2, 1), torch.tensor([True, False])
    attack = make_attack("momentum-tailored:lambda=1", workers=2, beta=0.75)
    assert [float(attack(own, mask)[0]) for _ in range(3)] == [4.0, 1.0, 1.0]
    assert (
        float(make_attack("momentum-tailored:lambda=1", workers=2, beta=0.75)(own, mask)[0]) == 4.0
    )


def test_seed_and_beta_reach_the_strategy() -> None:
    sets = {
        tuple(make_switching("static", workers=17, byzantine=8, seed=seed).mask(0).tolist())
        for seed in range(5)
    }
    assert len(sets) == 5  # two of five would agree by chance with probability 10/24310
    assert bool(make_switching("rotating", workers=3, byzantine=1, beta=0.9).mask(3)[1])


def test_unknown_names_are_refused_with_a_hint() -> None:
    with pytest.raises(
        SpecError, match=r"unknown aggregator 'cwmt' \(did you mean 'cwtm'\?\); legal: bulyan, caf"
    ):
        make_aggregator("cwmt", workers=3, byzantine=1)
    with pytest.raises(SpecError, match="unknown pre-aggregator 'cwtm'"):
        make_aggregator("cwtm+mean", workers=3, byzantine=1)
    with pytest.raises(SpecError, match="unknown attack 'signflop'"):
        make_attack("signflop", workers=3)
    with pytest.raises(
        SpecError, match=r"unknown switching strategy 'perodic' \(did you mean 'periodic'\?\)"
    ):
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
        make_aggregator(f"nnm:f={f}+gm:nu={nu}", workers=5, byzantine=2)(messages)
        for f, nu in (("1e+0", "1e+2"), ("1", "100"))
    )
    assert torch.equal(plus, plain)
