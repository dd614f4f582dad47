"""RFA: by hand, and beside a loop of NumPy's."""

from __future__ import annotations

import numpy as np
import torch

from dynabro_cli.components.api import make_aggregator
from tests.tables import each_row


def test_golden_two_steps() -> None:
    """Messages 1, 2 and -4 on a line.

    The first weights are 1, 1/2, 1/4, so that z = (1 + 1 - 1)/(7/4) = 4/7. The distances from there
    are 3/7, 10/7, 32/7: the weights are 7/3, 7/10, 7/32 (times 480/7: 160, 48, 15), and z = (160 +
    96 - 60)/223 = 196/223.
    """
    messages = torch.tensor([[1.0], [2.0], [-4.0]], dtype=torch.float64)
    for steps, expected in ((1, 4 / 7), (2, 196 / 223)):
        found = make_aggregator(f"rfa:T={steps}", workers=3, byzantine=1)(messages)
        torch.testing.assert_close(found, torch.tensor([expected], dtype=torch.float64))


def test_golden_smoothing_is_absolute() -> None:
    """Lengths up to nu = 2 all count as 2, so the three weights are equal; times 10 they differ."""
    messages = torch.tensor([[1.0], [2.0], [0.0]], dtype=torch.float64)
    one = make_aggregator("rfa:T=1,nu=2", workers=3, byzantine=1)
    assert one(messages).tolist() == [1.0]
    assert one(10 * messages).tolist() != [10.0]


def loop(messages: np.ndarray, steps: int, nu: float) -> np.ndarray:
    z = np.zeros(messages.shape[1])
    for _ in range(steps):
        weights = 1 / np.maximum(nu, np.sqrt(((messages - z) ** 2).sum(1)))
        z = weights @ messages / weights.sum()
    return z


@each_row(("steps", "nu"), [(1, 0.1), (3, 0.1), (8, 0.1), (3, 1e-3), (3, 3.0)])
def test_equals_a_loop(steps: int, nu: float) -> None:
    for seed in range(5):
        messages = torch.randn(
            9, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        messages[:3] += 5
        found = make_aggregator(f"rfa:T={steps},nu={nu}", workers=9, byzantine=3)(messages)
        np.testing.assert_allclose(
            found.numpy(), loop(messages.numpy(), steps, nu), rtol=1e-12, atol=1e-14
        )
