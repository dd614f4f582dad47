"""SignGuard, and its clusters against scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.cluster import MeanShift, estimate_bandwidth

from dynabro_cli.components.aggregators._draws import Draws
from dynabro_cli.components.aggregators.signguard import largest_cluster
from dynabro_cli.components.api import make_aggregator
from dynabro_cli.core.errors import SpecError

# lengths 2, 4, 2, 2, 200; three of four coordinates are positive, or, in the fourth message,
# negative
MESSAGES = torch.tensor(
    [
        [1.0, 1.0, 1.0, -1.0],
        [2.0, 2.0, -2.0, 2.0],
        [1.0, -1.0, 1.0, 1.0],
        [-1.0, -1.0, -1.0, 1.0],
        [100.0, 100.0, 100.0, -100.0],
    ]
)


def test_golden() -> None:
    # The median length is 2: the last message is over 3 times as long, the fourth is alone in its
    # cluster, the second is clipped to (1, 1, -1, 1): (3, 1, 1, 1)/3
    rule = make_aggregator("signguard:share=1", workers=5, byzantine=1)
    torch.testing.assert_close(rule(MESSAGES), torch.tensor([1.0, 1 / 3, 1 / 3, 1 / 3]))


def test_golden_bounds_of_the_length() -> None:
    # R = 100 lets the last one in, clipped to the first: (4, 2, 2, 0)/4. L = 1 leaves none out
    # here; 10 times the second message makes the median 2 still, and the others' 2 is not below it
    rule = make_aggregator("signguard:share=1,R=100", workers=5, byzantine=1)
    torch.testing.assert_close(rule(MESSAGES), torch.tensor([1.0, 0.5, 0.5, 0.0]))
    short = MESSAGES.clone()
    short[0] /= 100
    # the first is under a tenth of the median length, 2: (1, 1, -1, 1) and (1, -1, 1, 1) are left
    rule = make_aggregator("signguard:share=1", workers=5, byzantine=1)
    torch.testing.assert_close(rule(short), torch.tensor([1.0, 0.0, 0.0, 1.0]))


def test_golden_default_bounds_are_a_tenth_and_three_times() -> None:
    # lengths over the median, 1: 3 and 0.1 are in, and 3 is clipped to 1: (1 + 1 + 1 + 0.1)/4; 3.1
    # and 0.09 are out: 1
    for longest, shortest, expected in ((3.0, 0.1, 3.1 / 4), (3.1, 0.09, 1.0)):
        line = torch.tensor([[longest], [1.0], [shortest], [1.0]], dtype=torch.float64)
        aggregate = make_aggregator("signguard", workers=4, byzantine=1)(line)
        torch.testing.assert_close(aggregate, torch.tensor([expected]).double())


def test_golden_an_even_number_of_lengths_has_the_midpoint() -> None:
    # lengths 1, 2, 4, 5: the median is 3, to which 4 and 5 are clipped: (1 + 2 + 3 + 3)/4
    line = torch.tensor([[1.0], [4.0], [5.0], [2.0]])
    assert make_aggregator("signguard", workers=4, byzantine=1)(line).tolist() == [2.25]


def test_nothing_in_both_sets_gives_zero() -> None:
    # the three of one sign are too short or too long, the two of the usual length are of another
    line = torch.tensor([[0.01], [0.02], [50.0], [-2.0], [-2.0]])
    assert make_aggregator("signguard", workers=5, byzantine=1)(line).tolist() == [0.0]


def test_signs_are_counted_among_the_coordinates_drawn() -> None:
    """Worker 3 differs in the sign of one coordinate of ten, and is left out in calls that look at
    that one alone.
    """
    messages = torch.ones(5, 10)
    messages[3, 7] = -1
    rule, draws = make_aggregator("signguard", workers=5, byzantine=1, seed=1), Draws(1)
    seen = [int(draws.coordinates(call, 1, 10, messages.device)) == 7 for call in range(40)]
    assert {True, False} == set(seen)
    for looked in seen:
        assert float(rule(messages)[7]) == pytest.approx(1.0 if looked else 0.6)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(5))
def test_largest_cluster_is_that_of_scikit_learn(seed: int) -> None:
    generator = np.random.default_rng(seed)
    centres = generator.random((3, 3)) * 4
    points = centres[generator.permutation([0] * 8 + [1] * 5 + [2] * 4)] + 0.05 * generator.random(
        (17, 3)
    )
    labels = (
        MeanShift(bandwidth=estimate_bandwidth(points, quantile=0.5), cluster_all=False)
        .fit(points)
        .labels_
    )
    most = np.bincount(labels[labels >= 0]).argmax()
    ours = largest_cluster(torch.from_numpy(points))
    assert ours.storage_offset() == 0  # compiled code refuses memory that is not aligned
    assert (ours.numpy() == (labels == most)).mean() > 0.99


def test_legal_ranges() -> None:
    make_aggregator("signguard:L=1,R=1", workers=5, byzantine=2)
    with pytest.raises(SpecError, match="L=2 is not legal; L must be a number >= 0 and <= 1"):
        make_aggregator("signguard:L=2", workers=5, byzantine=1)
    with pytest.raises(SpecError, match="'signguard': f=2 is not legal with 4 workers"):
        make_aggregator("signguard", workers=4, byzantine=2)
    assert make_aggregator("signguard", workers=5, byzantine=1).kappa is None
