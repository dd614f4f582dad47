"""A little is enough, against the defence in use; the search itself is tested in
``test_optimal_ipm.py``.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dynabro_cli.components.api import make_attack

OWN = torch.tensor([[1.0, 5.0], [3.0, 5.0], [8.0, 5.0], [77.0, 77.0]])
LAST = torch.tensor([False, False, False, True])


def test_golden() -> None:
    # honest 1, 3, 8: mean 4, deviation sqrt((9 + 1 + 16)/2) = sqrt(13) with ddof = 1; honest 5, 5,
    # 5: no deviation; under the mean each of z = 0, 1 and 3 leads farther
    messages = make_attack("optimal-alie:evals=3,delta=1", workers=4)(
        OWN, LAST, lambda rows: rows.mean(0)
    )
    torch.testing.assert_close(messages[3], torch.tensor([4 - 3 * math.sqrt(13), 5.0]))
    assert torch.equal(messages[:3], OWN[:3])


def test_golden_median() -> None:
    # the lower median of 1, 3, 8 and 4 - z sqrt(13) is 3 at z = 0 and 1 at z = 1 (4 - 3.6 = 0.4)
    # and beyond; |1 - 4| = 3 is not surpassed at z = 1 + 2 and 1 + 2 x 0.8
    messages = make_attack("optimal-alie:evals=4,delta=1", workers=4)(
        OWN, LAST, lambda rows: rows.median(0).values
    )
    torch.testing.assert_close(messages[3], torch.tensor([4 - math.sqrt(13), 5.0]))


@pytest.mark.parametrize("count", [1, 5])
def test_one_to_all(count: int) -> None:
    """One honest worker has no spread, and is copied."""
    own = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    byzantine, honest = torch.arange(5) < count, own[count % 5 :]

    def defence(messages: Tensor) -> Tensor:
        return messages.mean(0)

    sent = make_attack("optimal-alie:evals=3,delta=2", workers=5)(own, byzantine, defence)
    spread = honest.std(0) if len(honest) > 1 else torch.zeros(3, dtype=torch.float64)
    torch.testing.assert_close(
        sent, torch.where(byzantine[:, None], honest.mean(0) - 6 * spread, own)
    )
