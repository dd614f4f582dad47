"""Different attacks of different workers."""

from __future__ import annotations

import pytest
import torch

from dynabro_cli import RunSpec
from dynabro_cli.components.api import make_attack
from dynabro_cli.core.errors import SpecError
from dynabro_cli.experiment.resolve import resolve
from tests.tables import each_row

OWN = torch.tensor([[1.0, -2.0], [3.0, 4.0], [-5.0, 0.5], [7.0, 7.0], [1.0, 2.0]])


def mean(messages: torch.Tensor) -> torch.Tensor:
    return messages.mean(0)


def test_golden() -> None:
    # honest 1 and 3: mean (5, 5.5); workers 0, 2 and 4 take parts 0, 2 and 1: sf, shift by 1, and
    # ipm
    byzantine = torch.tensor([True, False, True, False, True])
    sent = make_attack("mixed:parts=sf/ipm:epsilon=2/shift:lambda=1", workers=5)(OWN, byzantine)
    assert sent.tolist() == [[-1.0, 2.0], [3.0, 4.0], [-4.0, 1.5], [7.0, 7.0], [-10.0, -11.0]]


@pytest.mark.parametrize("count", [1, 5])
def test_one_to_all(count: int) -> None:
    byzantine = torch.arange(5) < count
    honest = OWN[count % 5 :].mean(0)
    expected = [
        (-own if i % 2 == 0 else -0.1 * honest) if i < count else own for i, own in enumerate(OWN)
    ]
    torch.testing.assert_close(
        make_attack("mixed:parts=sf/ipm", workers=5)(OWN, byzantine), torch.stack(expected)
    )


def test_a_part_that_sees_the_defence_and_one_that_learns() -> None:
    """Each as if it were alone."""
    byzantine = torch.tensor([True, True, False, False, False])
    mixed = make_attack("mixed:parts=optimal-ipm:evals=2:delta=3/mimic:target=learned", workers=5)
    alone = (
        make_attack("optimal-ipm:evals=2,delta=3", workers=5),
        make_attack("mimic:target=learned", workers=5),
    )
    for round_ in range(4):
        own = OWN.roll(round_, 0)
        sent, parts = mixed(own, byzantine, mean), [part(own, byzantine, mean) for part in alone]
        assert torch.equal(sent, torch.stack([parts[0][0], parts[1][1], own[2], own[3], own[4]]))


def test_state_of_each_part() -> None:
    # theta of the first part is the theta of its attack alone
    byzantine = torch.tensor([True, False, True, False, True])
    mixed = make_attack("mixed:parts=momentum-tailored:lambda=1:beta=0.5/sf/gaussian", workers=5)
    alone = make_attack("momentum-tailored:lambda=1,beta=0.5", workers=5)
    for mask in (byzantine, ~byzantine, byzantine):
        sent, expected = mixed(OWN, mask), alone(OWN, mask)
        assert torch.equal(sent[[0, 3]], expected[[0, 3]])
    assert set(mixed._state) == {"0.theta", "2.tick"}


def test_labels_of_the_part_that_flips_them() -> None:
    """Workers 1 and 3 belong to label-flip. The other parts decide the entry, and sf acts on the
    computed vectors.
    """
    attack, byzantine = (
        make_attack("mixed:parts=sf/label-flip", workers=5),
        torch.tensor([True, True, False, False, True]),
    )
    labels = torch.zeros(5, 2, dtype=torch.int64)
    assert attack.labels(labels, byzantine, 10).tolist() == [[0, 0], [9, 9], [0, 0], [0, 0], [0, 0]]
    assert attack(OWN, byzantine).tolist() == [
        [-1.0, 2.0],
        [3.0, 4.0],
        [-5.0, 0.5],
        [7.0, 7.0],
        [-1.0, -2.0],
    ]


def entries(text: str) -> tuple[str, ...]:
    return make_attack(text, workers=5, beta=0.9)._attack.entries


def test_it_enters_where_all_parts_can() -> None:
    every = ("gradient", "computation", "message", "state")
    assert entries("mixed:parts=sf/alie") == every
    assert entries("mixed:parts=sf/momentum-tailored:lambda=1") == ("gradient", "computation")
    assert entries("mixed:parts=label-flip/alie") == every
    assert entries("mixed:parts=label-flip/label-flip") == ("data",)
    with pytest.raises(
        SpecError,
        match=r"attack 'mixed' acts on gradients or single gradient computations, and "
        r"attack_entry=message. .* gradient$",
    ):
        resolve(
            RunSpec(
                method="momentum",
                attack="mixed:parts=sf/momentum-tailored:lambda=1",
                attack_entry="message",
            )
        )
    with pytest.raises(
        SpecError, match="attack 'mixed' changes labels, and task 'quadratic' has none"
    ):
        resolve(RunSpec(task="quadratic", attack="mixed:parts=sf/label-flip"))


def test_one_mixture_has_one_key() -> None:
    usual, spelled, other = (
        resolve(RunSpec(attack=f"mixed:parts={parts}"))
        for parts in ("sf/ipm", "sf/ipm:epsilon=1e-1", "ipm/sf")
    )
    assert spelled.key == usual.key
    assert spelled.spec.attack == "mixed:parts=sf/ipm"
    assert other.key != usual.key


@each_row(
    ("parts", "line"),
    [
        ("sf", "attack 'mixed': parts=sf is one attack. Try: two or more, joined by /"),
        (
            "sf/mixed",
            "attack 'mixed', part 2: attack 'mixed' cannot be a part of itself. Try: its parts",
        ),
        (
            "sf/shift",
            (
                "attack 'mixed', part 2: attack 'shift' needs lambda=. Try: 'shift:lambda=VALUE' "
                "(a number)"
            ),
        ),
        (
            "momentum-tailored:lambda=1/sf",
            "attack 'mixed', part 1: attack 'momentum-tailored' needs a momentum parameter",
        ),
        (
            "ipm:epsilon=0/sf",
            (
                "attack 'mixed', part 1: attack 'ipm': epsilon=0 is not legal; epsilon must be a "
                "number > 0"
            ),
        ),
    ],
)
def test_what_is_no_part(parts: str, line: str) -> None:
    with pytest.raises(SpecError) as error:
        make_attack(f"mixed:parts={parts}", workers=4)
    (problem,) = error.value.problems
    assert problem.startswith(line)
    (problem,) = problems(f"mixed:parts={parts}")
    assert problem.startswith(line)


def problems(attack: str) -> list[str]:
    with pytest.raises(SpecError) as error:
        resolve(RunSpec(method="sgd", attack=attack))
    return error.value.problems


def test_an_unknown_part_is_told_with_its_place() -> None:
    with pytest.raises(SpecError, match=r"part 2: unknown attack 'ipn' .did you mean 'ipm'"):
        make_attack("mixed:parts=sf/ipn", workers=4)
