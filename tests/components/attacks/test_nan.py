"""Vectors that are no numbers; runs with them are in ``test_inf.py``."""

from __future__ import annotations

import pytest
import torch

from dynabro_cli.components.api import make_attack
from dynabro_cli.core.errors import SpecError


def test_golden() -> None:
    own = torch.tensor([[1.0, -2.0], [3.0, 4.0], [-5.0, 0.5]])
    messages = make_attack("nan", workers=3)(own, torch.tensor([True, False, True]))
    assert messages.isnan().tolist() == [[True, True], [False, False], [True, True]]
    assert messages[1].tolist() == [3.0, 4.0]


@pytest.mark.parametrize("count", [1, 4])
def test_one_to_all(count: int) -> None:
    messages = make_attack("nan", workers=4)(torch.zeros(4, 2), torch.arange(4) < count)
    assert messages.isnan().all(1).tolist() == [True] * count + [False] * (4 - count)


def test_no_parameters() -> None:
    with pytest.raises(SpecError, match="'nan' has no parameter 'x'"):
        make_attack("nan:x=1", workers=3)
