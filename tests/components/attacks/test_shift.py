"""The static attack of Appendix E."""

from __future__ import annotations

import pytest
import torch

from dynabro_cli.components.api import make_attack
from dynabro_cli.core.errors import SpecError


def test_golden() -> None:
    own = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
    messages = make_attack("shift:lambda=0.5", workers=2)(own, torch.tensor([True, False]))
    assert messages.tolist() == [[1.5, -1.5], [3.0, 4.0]]


def test_strength_has_no_silent_default() -> None:
    with pytest.raises(SpecError, match=r"'shift' needs lambda=. Try: 'shift:lambda=VALUE'"):
        make_attack("shift", workers=2)
