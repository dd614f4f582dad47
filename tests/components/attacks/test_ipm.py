"""Inner-product manipulation."""

from __future__ import annotations

import pytest
import torch

from dynabro_cli.components.api import make_attack
from dynabro_cli.core.errors import SpecError

OWN = torch.tensor([[2.0, -4.0], [100.0, 100.0], [6.0, 0.0], [-100.0, 7.0]])


def test_golden() -> None:
    # the honest workers 0 and 2 have the mean (4, -2); the paper's epsilon is 0.1
    messages = make_attack("ipm", workers=4)(OWN, torch.tensor([False, True, False, True]))
    torch.testing.assert_close(
        messages, torch.tensor([[2.0, -4.0], [-0.4, 0.2], [6.0, 0.0], [-0.4, 0.2]])
    )


def test_golden_epsilon() -> None:
    messages = make_attack("ipm:epsilon=2", workers=4)(
        OWN, torch.tensor([False, True, False, True])
    )
    assert messages[1].tolist() == [-8.0, 4.0]


def test_all_byzantine_take_their_own_mean_for_the_honest_one() -> None:
    # (2 + 100 + 6 - 100)/4 = 2, (-4 + 100 + 0 + 7)/4 = 25.75
    messages = make_attack("ipm:epsilon=1", workers=4)(OWN, torch.ones(4, dtype=torch.bool))
    assert messages.tolist() == [[-2.0, -25.75]] * 4


def test_epsilon_is_positive() -> None:
    with pytest.raises(SpecError, match="epsilon=0 is not legal; epsilon must be a number > 0"):
        make_attack("ipm:epsilon=0", workers=4)
