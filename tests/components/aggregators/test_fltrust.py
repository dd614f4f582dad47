"""FLTrust: by hand, and beside a loop of NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dynabro_cli.components.api import make_aggregator


def rows(*values: tuple[float, float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_golden() -> None:
    """g_0 = (3, 4) has length 5. (6, 8) has its direction: trust 1, and (3, 4) at its length. (10,
    0) has the cosine 30/50: trust 3/5, and (5, 0). (-300, -400) is opposite: trust 0. A = (1 (3, 4)
    + 3/5 (5, 0))/(8/5) = (6, 4)/1.6.
    """
    rule = make_aggregator("fltrust", workers=3, byzantine=1)
    found = rule(rows((6, 8), (10, 0), (-300, -400)), server=rows((3, 4))[0])
    torch.testing.assert_close(found, rows((3.75, 2.5))[0])


def test_one_honest_worker_is_enough() -> None:
    """Opposite and orthogonal messages have no trust, however many they are."""
    rule = make_aggregator("fltrust", workers=5, byzantine=2)
    messages = rows((-1, 0), (0, 7), (-1e9, 0), (2, 0), (0, -1e300))
    assert rule(messages, server=rows((4, 0))[0]).tolist() == [4.0, 0.0]


@pytest.mark.parametrize("server", [(1.0, 0.0), (0.0, 0.0)])
def test_without_trust_nothing_moves(server: tuple[float, float]) -> None:
    rule = make_aggregator("fltrust", workers=3, byzantine=1)
    assert rule(rows((-1, 0), (-2, 0), (0, 0)), server=rows(server)[0]).tolist() == [0.0, 0.0]


def test_equals_a_loop() -> None:
    for seed in range(5):
        generator = np.random.default_rng(seed)
        messages, server = generator.normal(size=(9, 4)), generator.normal(size=4)
        total, trusted = np.zeros(4), 0.0
        for message in messages:
            cosine = message @ server / np.linalg.norm(message) / np.linalg.norm(server)
            trust = max(cosine, 0.0)
            total += trust * np.linalg.norm(server) / np.linalg.norm(message) * message
            trusted += trust
        rule = make_aggregator("fltrust", workers=9, byzantine=4)
        made = rule(torch.from_numpy(messages), server=torch.from_numpy(server))
        np.testing.assert_allclose(made.numpy(), total / trusted, rtol=1e-12, atol=1e-14)


def test_lengths_from_end_to_end_of_single_precision() -> None:
    """Neither the square of 1e-30 nor of 1e30 is a number of single precision."""
    rule, server = make_aggregator("fltrust", workers=3, byzantine=1), torch.tensor([3.0, 4.0])
    for size in (1e-30, 1e30):
        found = rule(
            size * torch.tensor([[6.0, 8.0], [10.0, 0.0], [-300.0, -400.0]]), server=server / size
        )
        torch.testing.assert_close(found * size, torch.tensor([3.75, 2.5]))


def test_the_servers_gradient_is_needed_and_checked() -> None:
    rule, messages = make_aggregator("ctma:rule=fltrust", workers=3, byzantine=1), torch.ones(3, 2)
    with pytest.raises(ValueError, match="the rule needs the server's gradient; pass server="):
        rule(messages)
    for wrong in (torch.ones(3), torch.ones(2, dtype=torch.float64)):
        with pytest.raises(
            ValueError,
            match=r"server is torch.float.* the messages need torch.float32 \[2\] on cpu",
        ):
            rule(messages, server=wrong)
    assert rule(messages, server=messages[0]).tolist() == [1.0, 1.0]
    assert make_aggregator("cwtm", workers=3, byzantine=1)(
        messages, server=messages[0]
    ).tolist() == [1.0, 1.0]
