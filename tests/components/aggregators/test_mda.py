"""Minimum diameter averaging, against all subsets."""

from __future__ import annotations

import itertools

import pytest
import torch

from dynabro_cli.components.api import make_aggregator
from dynabro_cli.core.errors import SpecError
from tests.tables import each_row


def test_golden() -> None:
    # of 4 messages each, {0, 1, 3, 4} has the diameter 4, all others 26 and more
    messages = torch.tensor([[0.0], [1.0], [3.0], [4.0], [30.0]])
    assert make_aggregator("mda", workers=5, byzantine=1)(messages).tolist() == [2.0]


def test_golden_two_dimensions() -> None:
    # squared distances: AB 25, AC 36, AD 1, BC 25, BD 18, CD 37. Largest of three: ABC 36, ABD 25,
    # ACD 37, BCD 37
    messages = torch.tensor([[0.0, 0.0], [3.0, 4.0], [6.0, 0.0], [0.0, 1.0]])
    torch.testing.assert_close(
        make_aggregator("mda", workers=4, byzantine=1)(messages), torch.tensor([1.0, 5 / 3])
    )


def test_golden_tie_goes_to_the_first_subset() -> None:
    # {0, 2} and {2, 4} have the diameter 2
    assert make_aggregator("mda", workers=3, byzantine=1)(
        torch.tensor([[0.0], [2.0], [4.0]])
    ).tolist() == [1.0]
    assert make_aggregator("mda", workers=3, byzantine=1)(
        torch.tensor([[4.0], [2.0], [0.0]])
    ).tolist() == [3.0]


@each_row(("m", "f"), [(4, 0), (5, 2), (8, 3), (9, 1)])
@each_row("seed", range(2))
def test_equals_a_loop(m: int, f: int, seed: int) -> None:
    messages = torch.randn(m, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    def diameter(subset: tuple[int, ...]) -> float:
        return max(
            (
                float((messages[i] - messages[j]).norm())
                for i, j in itertools.combinations(subset, 2)
            ),
            default=0,
        )

    best = min(
        itertools.combinations(range(m), m - f), key=lambda subset: round(diameter(subset), 12)
    )
    torch.testing.assert_close(
        make_aggregator("mda", workers=m, byzantine=f)(messages), messages[list(best)].mean(0)
    )


def test_sizes_that_would_not_end_are_refused() -> None:
    make_aggregator("mda", workers=17, byzantine=8)
    # C(30, 14) = 145422675; C(30, 5) = 142506, C(30, 6) = 593775
    with pytest.raises(SpecError) as error:
        make_aggregator("mda", workers=30, byzantine=14)
    assert error.value.problems == [
        (
            "aggregator 'mda': 30 workers with f=14 have 145422675 subsets of 16, and each "
            "aggregate compares all of them, "
            "which takes reasonable time up to 500000. Try: 'mda:f=5'"
        )
    ]
    # C(24, 6) = 134596, C(29, 6) = 475020: one worker fewer would do
    with pytest.raises(SpecError, match="Try: 'mda:f=5', or 29 workers"):
        make_aggregator("mda", workers=30, byzantine=6)


def test_no_kappa_and_legal_range_of_f() -> None:
    assert make_aggregator("mda", workers=5, byzantine=1).kappa is None
    with pytest.raises(SpecError, match="'mda': f=2 is not legal with 4 workers"):
        make_aggregator("mda", workers=4, byzantine=2)
