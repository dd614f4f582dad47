"""Divide and conquer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dynabro_cli.components.aggregators._draws import Draws
from dynabro_cli.components.api import make_aggregator
from dynabro_cli.core.errors import SpecError
from tests.tables import each_row

LINE = torch.tensor([[0.0], [1.0], [2.0], [10.0]])


def test_golden() -> None:
    # mu = 3.25: 10 scores most, then 0. c = 1 takes out one: (0 + 1 + 2)/3; c = 2 two: 1.5; c = 0.5
    # none: 3.25
    assert make_aggregator("dnc", workers=4, byzantine=1)(LINE).tolist() == [1.0]
    assert make_aggregator("dnc:c=2", workers=4, byzantine=1)(LINE).tolist() == [1.5]
    assert make_aggregator("dnc:c=0.5", workers=4, byzantine=1)(LINE).tolist() == [3.25]


def test_golden_two_dimensions_and_a_tie() -> None:
    # variances 50 and 6.75, covariance 0, so that the first axis decides: (10, 0) and (-10, 0)
    # score 100, and the last of them is taken out; (0, 6), the furthest along the other axis,
    # scores 0
    messages = torch.tensor([[0.0, 0.0], [10.0, 0.0], [-10.0, 0.0], [0.0, 6.0]])
    torch.testing.assert_close(
        make_aggregator("dnc", workers=4, byzantine=1)(messages), torch.tensor([10 / 3, 2.0])
    )


@pytest.mark.parametrize("error", [-3e-16, 0.0, 3e-16])
def test_a_tie_does_not_hang_on_rounding(error: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eigenvectors differ in the last digit from processor to processor; the messages that are kept
    do not.
    """
    exact = torch.linalg.eigh

    def rounded_otherwise(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, vectors = exact(matrix)
        leading = torch.zeros_like(vectors)
        leading[1, -1] = error
        return values, vectors + leading

    messages = torch.tensor([[0.0, 0.0], [10.0, 0.0], [-10.0, 0.0], [0.0, 6.0]])
    rule = make_aggregator("dnc", workers=4, byzantine=1)
    monkeypatch.setattr(torch.linalg, "eigh", rounded_otherwise)
    torch.testing.assert_close(rule(messages), torch.tensor([10 / 3, 2.0]))


@each_row(("m", "f"), [(5, 1), (9, 3), (17, 8)])
@each_row("seed", range(2))
def test_equals_singular_vectors(m: int, f: int, seed: int) -> None:
    messages = torch.randn(m, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    messages[:f] += 1
    offsets = (messages - messages.mean(0)).numpy()
    scores = (offsets @ np.linalg.svd(offsets)[2][0]) ** 2
    expected = messages[np.argsort(scores)[: m - f].copy()].mean(0)
    torch.testing.assert_close(make_aggregator("dnc", workers=m, byzantine=f)(messages), expected)


def test_an_iteration_sees_the_coordinates_drawn_for_it_and_no_others() -> None:
    """Worker 0 is far off in one coordinate of two: it is taken out in those calls that look at
    it.
    """
    d, m = 2, 4
    messages = torch.tensor([[9.0, 0.0], [1.0, 1.0], [0.0, 2.0], [0.5, 8.0]])
    rule, draws = make_aggregator("dnc:b=1", workers=m, byzantine=1, seed=3), Draws(3)
    looked = [int(draws.coordinates(call, 1, d, messages.device)) for call in range(20)]
    assert set(looked) == {0, 1}
    for coordinate in looked:
        kept = [1, 2, 3] if coordinate == 0 else [0, 1, 2]
        torch.testing.assert_close(rule(messages), messages[kept].mean(0))


def test_a_message_is_averaged_that_is_bad_in_no_iteration() -> None:
    messages = torch.tensor([[9.0, 0.0], [1.0, 1.0], [0.0, 2.0], [0.5, 8.0], [0.0, 1.0]])
    rule = make_aggregator("dnc:b=1,iterations=4", workers=5, byzantine=1, seed=0)
    draws = Draws(0)
    for call in range(6):
        looked = {int(draws.coordinates(4 * call + k, 1, 2, messages.device)) for k in range(4)}
        kept = [
            worker
            for worker in range(5)
            if (worker, 0) != (0, min(looked)) and (worker, 1) != (3, max(looked))
        ]
        torch.testing.assert_close(rule(messages), messages[kept].mean(0))


def test_seeds_draw_other_coordinates() -> None:
    messages = torch.tensor([[9.0, 0.0], [1.0, 1.0], [0.0, 2.0], [0.5, 8.0]])
    made = []
    for seed in (0, 0, 1):
        rule = make_aggregator("dnc:b=1", workers=4, byzantine=1, seed=seed)
        made.append([rule(messages).tolist() for _ in range(20)])
    assert made[0] == made[1] != made[2]


def test_legal_ranges() -> None:
    make_aggregator("dnc:iterations=2", workers=17, byzantine=8)
    with pytest.raises(
        SpecError,
        match=r"c=1 with f=8 takes out 8 messages in each of 3 iterations, .* all of 17 workers",
    ):
        make_aggregator("dnc:iterations=3", workers=17, byzantine=8)
    with pytest.raises(SpecError, match="'dnc': f=2 is not legal with 4 workers"):
        make_aggregator("dnc", workers=4, byzantine=2)
    assert make_aggregator("dnc", workers=5, byzantine=1).kappa is None
