"""Fall of Empires."""

from __future__ import annotations

import pytest
import torch

from dynabro_cli.components.api import make_attack
from dynabro_cli.core.errors import SpecError
from tests.tables import each_row

OWN = torch.tensor([[2.0, -4.0], [100.0, 100.0], [6.0, 0.0], [-100.0, 7.0]])
MASKS = [
    [False] * 4,
    [False, True, False, False],
    [False, True, False, True],
    [True, True, False, True],
    [True] * 4,
]


def test_golden() -> None:
    # the honest workers 0 and 2 have the mean (4, -2)
    messages = make_attack("foe", workers=4)(OWN, torch.tensor([False, True, False, True]))
    assert messages.tolist() == [[2.0, -4.0], [-4.0, 2.0], [6.0, 0.0], [-4.0, 2.0]]


@each_row("byzantine", MASKS)
def test_one_and_all_byzantine(byzantine: list[bool]) -> None:
    """By a loop over workers; where all are Byzantine, all count as honest."""
    honest = [
        row for row, bad in zip(OWN.tolist(), byzantine, strict=True) if not bad
    ] or OWN.tolist()
    mean = [sum(column) / len(honest) for column in zip(*honest, strict=True)]
    expected = [
        [-3 * value for value in mean] if bad else row
        for row, bad in zip(OWN.tolist(), byzantine, strict=True)
    ]
    torch.testing.assert_close(
        make_attack("foe:epsilon=3", workers=4)(OWN, torch.tensor(byzantine)),
        torch.tensor(expected),
    )


def test_is_ipm_at_another_default() -> None:
    mask = torch.tensor([False, True, False, True])
    for foe, ipm in (("foe", "ipm:epsilon=1"), ("foe:epsilon=0.1", "ipm")):
        assert torch.equal(
            make_attack(foe, workers=4)(OWN, mask), make_attack(ipm, workers=4)(OWN, mask)
        )


def test_epsilon_is_positive() -> None:
    with pytest.raises(SpecError, match="epsilon=0 is not legal; epsilon must be a number > 0"):
        make_attack("foe:epsilon=0", workers=4)
