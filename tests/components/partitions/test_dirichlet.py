"""Label proportions drawn from a Dirichlet distribution."""

from __future__ import annotations

import numpy as np
import pytest

from dynabro_cli.components.partitions._api import REGISTRY
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.streams import Streams
from tests.components.partitions.scripted import Scripted, split
from tests.tables import each_row

# four of label 0 at 0, 2, 4, 6; four of label 1 at 1, 3, 5, 7; one of label 2 at 8
LABELS = [0, 1, 0, 1, 0, 1, 0, 1, 2]


def test_golden_by_worker() -> None:
    # Worker 0, of three samples: 2, 0 and 1. Worker 1: 3 of label 0, where 2 are left, so that one
    # more is drawn of the labels that are left, 1 alone: it has 2, 1 and 0. What is left to worker
    # 2 is 3 of label 1.
    streams = Scripted(
        [[0.5, 0.2, 0.3], [0.8, 0.1, 0.1], [0.3, 0.6, 0.1]],
        [[2, 0, 1], [3, 0, 0], [0, 1, 0], [0, 3, 0]],
    )
    assert split("dirichlet:alpha=0.5", LABELS, 3, streams) == [[0, 2, 8], [4, 6, 1], [3, 5, 7]]
    assert streams.asked == [
        ("partition", 0),
        ("dirichlet", [0.5] * 3, None),
        ("multinomial", 3, [0.5, 0.2, 0.3]),
        ("dirichlet", [0.5] * 3, None),
        ("multinomial", 3, [0.888889, 0.111111, 0.0]),  # 8/9 and 1/9: nothing is left of label 2
        ("multinomial", 1, [0.0, 1.0, 0.0]),
        ("dirichlet", [0.5] * 3, None),
        ("multinomial", 3, [0.0, 1.0, 0.0]),
    ]


def test_a_worker_without_proportions_for_what_is_left() -> None:
    """The last worker wants label 0 alone, of which nothing is left."""
    streams = Scripted([[1, 0], [1, 0]], [[2, 0], [0, 2]])
    assert split("dirichlet:alpha=1", [0, 0, 1, 1], 2, streams) == [[0, 1], [2, 3]]
    assert streams.asked[-1] == ("multinomial", 2, [0.0, 1.0])


def test_golden_by_label() -> None:
    # Ends of label 0: floor(4 * 0.5), floor(4 * 0.9) = 2, 3, so counts 2, 1, 1; of label 1: 1, 3,
    # so 1, 2, 1; of label 2, with one sample: floor(0.4), floor(0.8) = 0, 0, so 0, 0, 1.
    streams = Scripted([[[0.5, 0.4, 0.1], [0.25, 0.5, 0.25], [0.4, 0.4, 0.2]]])
    assert split("dirichlet:alpha=0.5,by=label", LABELS, 3, streams) == [
        [0, 2, 1],
        [4, 3, 5],
        [6, 7, 8],
    ]
    assert streams.asked == [("partition", 0), ("dirichlet", [0.5] * 3, 3)]


def test_draws_that_leave_a_worker_without_a_sample_are_repeated() -> None:
    streams = Scripted([[[1, 0], [1, 0]], [[1, 0], [0, 1]]])
    assert split("dirichlet:alpha=1,by=label", [0, 0, 1, 1], 2, streams) == [[0, 1], [2, 3]]
    assert [asked for asked in streams.asked if asked[0] == "partition"] == [
        ("partition", 0),
        ("partition", 1),
    ]


def test_a_hundred_such_draws_are_refused() -> None:
    with pytest.raises(SpecError) as caught:
        split("dirichlet:alpha=0.001,by=label", [0, 1] * 50, 5, Streams(0))
    left = "left one of 5 workers without a sample in each of 100 draws"
    assert (
        str(caught.value)
        == f"data=dirichlet:alpha=0.001,by=label {left}. Try: a larger alpha, or by=worker"
    )


@pytest.mark.thorough
@pytest.mark.parametrize("alpha", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("by", ["worker", "label"])
def test_the_spread_is_that_of_the_distribution(alpha: float, by: str) -> None:
    """A share of Dir(a, ..., a) over n outcomes has mean 1/n and variance (n-1)/(n^2 (n a + 1)):
    here n = 2.

    Seen at the first of many workers, and at one of two, before anything of a label is used up.
    """
    seeds = 600
    labels = np.tile([0, 1], 1000).tolist()
    shares = []
    for seed in range(seeds):
        first = split(
            f"dirichlet:alpha={alpha},by={by}", labels, 20 if by == "worker" else 2, Streams(seed)
        )[0]
        zeros = sum(labels[place] == 0 for place in first)
        shares.append(zeros / (len(first) if by == "worker" else 1000))
    variance = 1 / (4 * (2 * alpha + 1))
    sampling = 1 / 4 / 100 if by == "worker" else 0.0  # at most, as a worker has 100 samples
    assert np.mean(shares) == pytest.approx(0.5, abs=4 * np.sqrt(variance / seeds))
    # four standard errors of 600 draws
    assert variance * 0.82 < np.var(shares) < (variance + sampling) * 1.18


def test_parts_have_one_size_by_worker_and_not_by_label() -> None:
    labels = np.tile(range(10), 100).tolist()
    sizes = {
        by: [len(part) for part in split(f"dirichlet:alpha=0.3,by={by}", labels, 7, Streams(0))]
        for by in ("worker", "label")
    }
    assert sizes["worker"] == [143] * 6 + [142]
    assert max(sizes["label"]) > 1.3 * min(sizes["label"])


@each_row(
    "text", ["dirichlet", "dirichlet:alpha=0", "dirichlet:alpha=-1", "dirichlet:alpha=1,by=client"]
)
def test_illegal_parameters(text: str) -> None:
    with pytest.raises(SpecError):
        REGISTRY.parse(text)


@each_row("alpha", ["1e-300", "1e300"])
@each_row("by", ["worker", "label"])
def test_extremes_are_partitions_all_the_same(alpha: str, by: str) -> None:
    labels = np.tile(range(5), 20).tolist()
    try:
        parts = split(f"dirichlet:alpha={alpha},by={by}", labels, 5, Streams(1))
    except SpecError:
        assert (alpha, by) == ("1e-300", "label")
        return
    assert sorted(place for part in parts for place in part) == list(range(100))
