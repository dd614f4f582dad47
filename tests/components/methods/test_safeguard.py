"""SafeguardSGD by hand, and in runs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from dynabro_cli.components.methods._api import JudgingMethod, Measured, Method, MethodSetting
from dynabro_cli.components.methods.safeguard import _long, _short, usual_window
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.errors import SpecError
from tests.components.methods.made import made
from tests.simulation.reference import quadratic
from tests.tables import each_row


def method(text: str, workers: int = 3, budget: int = 100, noise: float | None = None) -> Method:
    return made(text, MethodSetting(workers, budget), Measured(noise=noise))


def judged(made: Method, rounds: list[list[float]]) -> list[list[int]]:
    """The workers that count in each round of gradients, in one dimension."""
    state: dict[str, Tensor] = {}
    found = []
    assert isinstance(made, JudgingMethod)
    for gradients in rounds:
        good, state = made.judge(
            torch.tensor(gradients, dtype=torch.float64)[:, None], torch.zeros(1), state
        )
        found.append(good.nonzero()[:, 0].tolist())
    return found


WINDOWS = "T0=2,T1=4,threshold0=1,threshold1=2"
HISTORY = [
    # all three are good, so shares are thirds: A = B = 1, 1.1, 3. B_med = 1, with two workers
    # within 1; 3 is 2 x 1 away
    [3.0, 3.3, 9.0],
    # A = B = 2, 2.2, 4.1: worker 2 is 2.1 > 2 away
    [3.0, 3.3, 3.3],
    # two are good: halves. B begins anew: 1.5, 1.65; A = 3.5, 3.85. Worker 2 does as the others,
    # and stays out
    [3.0, 3.3, 3.0],
    # B = 3, 3.75; A = 5, 5.95
    [3.0, 4.2, 3.0],
    # a multiple of T1: all are good again. A = B = 1, 1, 1.2
    [3.0, 3.0, 3.6],
    # B = 2, 2, 3.2: within 2; A is the same, within 4
    [3.0, 3.0, 6.0],
    # B begins anew: 1, 1, 2; A = 3, 3, 5.2
    [3.0, 3.0, 6.0],
    # B = 2, 2, 4: 2 away. A = 4, 4, 7.2: 3.2 away, within 4
    [3.0, 3.0, 6.0],
]


def test_by_hand() -> None:
    assert judged(method(f"safeguard:{WINDOWS}"), HISTORY) == [
        [0, 1, 2],
        [0, 1],
        [0, 1],
        [0, 1],
        *[[0, 1, 2]] * 4,
    ]


def test_by_hand_before_the_judgement() -> None:
    """The same one round later: whom a round's judgement removes, that round's step has still
    counted.
    """
    found = judged(method(f"safeguard:{WINDOWS},step=before"), HISTORY)
    assert found == [[0, 1, 2], [0, 1, 2], [0, 1], [0, 1], *[[0, 1, 2]] * 4]


def test_by_hand_without_a_reset() -> None:
    assert judged(method(f"safeguard:{WINDOWS},reset=never"), HISTORY) == [[0, 1, 2], *[[0, 1]] * 7]


def test_by_hand_with_a_single_guard() -> None:
    """Windows of two rounds alone: all are good again in the third."""
    found = judged(method("safeguard:guards=single,T0=2,threshold0=1"), HISTORY)
    # rounds 5 to 8 are under the threshold of B as with two guards
    assert found == [[0, 1, 2], [0, 1], *[[0, 1, 2]] * 6]


def test_the_long_window_sees_what_the_short_one_does_not() -> None:
    """Worker 2 is 2/3 farther in each round: 4/3 in a short window, under 2, and 8/3 in the long
    one, over 2.6.
    """
    rounds = [[0.0, 0.0, 2.0]] * 4
    assert judged(method("safeguard:T0=2,T1=4,threshold0=1,threshold1=1.3"), rounds) == [
        *[[0, 1, 2]] * 3,
        [0, 1],
    ]
    assert judged(method("safeguard:guards=single,T0=2,threshold0=1"), rounds) == [[0, 1, 2]] * 4


NOBODY = [
    [0.0, 0.1, 9.0],  # B = 0, 0.03, 3: worker 2 goes
    # halves: B = 0, 4.5 of the good ones: neither has more than 3/2 within 1, so nobody is left
    [0.0, 9.0, 0.0],
    [0.0, 0.1, 0.0],  # everything restarts, although it is not a multiple of T1
    [0.0, 0.1, 9.0],  # B = 0, 0.07, 3
    [0.0, 0.1, 0.0],
]


def test_where_nobody_is_left() -> None:
    text = "safeguard:T0=2,T1=4,threshold0=1,threshold1=9"
    assert judged(method(text), NOBODY) == [[0, 1], [], [0, 1, 2], [0, 1], [0, 1]]
    # nothing moves before the window ends, with the fourth round
    assert judged(method(f"{text},empty=wait"), NOBODY) == [[0, 1], [], [], [], [0, 1, 2]]


def test_shares_are_of_those_who_are_good() -> None:
    """Two are left after the first round: halves of 3 and 5.2 are 1.1 > 1 apart, and no two are a
    majority; thirds are 0.73.
    """
    rounds = [[0.0, 0.0, 9.0], [3.0, 5.2, 0.0], [3.0, 4.8, 0.0]]
    text = "safeguard:guards=single,T0=4,threshold0=1"
    assert judged(method(text), rounds[:2]) == [[0, 1], []]
    assert judged(method(text), rounds[::2]) == [[0, 1], [0, 1]]


def test_windows() -> None:
    # 70.7107 and 205.047
    assert (usual_window(5000, 1 / 2), usual_window(5000, 5 / 8)) == (71, 206)
    assert (usual_window(100, 1 / 2), usual_window(256, 5 / 8)) == (10, 32)  # exact powers
    assert usual_window(1, 5 / 8) == 1
    setting = MethodSetting(3, 5000)
    cases = {
        "": (71, 206),
        "T0=9": (9, 206),
        "T1=900": (71, 900),
        "T0=300": (300, 300),
        "T1=9": (9, 9),
        "T0=3,T1=5": (3, 5),
    }
    for text, expected in cases.items():
        block = REGISTRIES["methods"].parse(f"safeguard:{text}".rstrip(":")).parameters
        assert (block.T0 or _short(block, setting), block.T1 or _long(block, setting)) == expected


def test_the_papers_thresholds() -> None:
    """8 V/m sqrt(T0 log(16 m T/p)): sqrt(4 log 48,000) = sqrt(43.1158252) = 6.5662641, with V =
    3/2, m = 3 four times that.
    """
    limit = 2 * 4 * 6.5662641
    for factor, good in ((0.999, [0, 1, 2]), (1.001, [0, 1])):
        rounds = [[0.0, 0.0, factor * 3 * limit]]
        assert judged(method("safeguard:guards=single,T0=4,noise_bound=1.5"), rounds) == [good]
        assert judged(method("safeguard:T0=4,T1=4,threshold1=1e9,noise_bound=1.5"), rounds) == [
            good
        ]
        assert judged(method("safeguard:T0=1,T1=4,threshold0=1e9,noise_bound=1.5"), rounds) == [
            good
        ]
        tenth = [[0.0, 0.0, factor * 0.3 * limit]]
        assert judged(method("safeguard:guards=single,T0=4,scale=0.1,noise_bound=1.5"), tenth) == [
            good
        ]


@each_row(
    ("text", "wants"),
    [
        ("", True),
        ("noise_bound=1", False),
        ("threshold0=1", True),
        ("threshold0=1,threshold1=2", False),
        ("guards=single,threshold0=1", False),
        ("guards=single", True),
    ],
)
def test_v_is_wanted_where_a_threshold_needs_it(text: str, wants: bool) -> None:
    assert method(f"safeguard:{text}".rstrip(":")).wants_noise == wants


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "guards=single,T1=9",
            "method 'safeguard': guards=single has one window, T0, and T1=9 is given; leave T1 out",
        ),
        ("T0=9,T1=8", "method 'safeguard': T1=8 is under T0=9; T1 must be at least T0: type T1=9"),
    ],
)
def test_windows_that_do_not_fit(text: str, line: str) -> None:
    with pytest.raises(SpecError) as caught:
        method(f"safeguard:{text}")
    assert caught.value.problems == [line]


def test_a_worker_that_sent_nan_is_out_to_the_windows_end() -> None:
    rounds = [[0.0, 0.0, math.nan], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    assert judged(method("safeguard:guards=single,T0=2,threshold0=1"), rounds) == [
        [0, 1],
        [0, 1],
        [0, 1, 2],
    ]


FIELDS: dict[str, Any] = {
    "workers": 9,
    "byzantine": 4,
    "budget": 400,
    "attack": "sf",
    "learning_rate": 0.02,
}
TUNED = "safeguard:scale=0.1"


@pytest.mark.thorough
def test_better_than_the_mean_where_identities_stay() -> None:
    gaps = [
        quadratic(method=text, aggregator="mean", switching="static", **FIELDS).gaps[-1] or 0.0
        for text in ("sgd", TUNED, f"{TUNED},guards=single")
    ]
    assert gaps[1] < gaps[0] / 5
    assert gaps[2] < gaps[0] / 2


@pytest.mark.thorough
def test_under_switching_within_its_windows_it_loses_what_it_had() -> None:
    """New identities every five rounds, in windows of 20 and 43: 0.02 if they stay, 1.1 here, 1.5
    for the mean.
    """
    still, moving = (
        quadratic(method=TUNED, switching=switching, **FIELDS).gaps[-1] or 0.0
        for switching in ("static", "periodic:K=5")
    )
    assert moving > 10 * still


@pytest.mark.thorough
def test_nobody_is_caught_without_byzantine_workers() -> None:
    """The mean of all, to the last bit but rounding: at the paper's thresholds no honest worker is
    taken for Byzantine.
    """
    fields = FIELDS | {"byzantine": 0, "attack": "none", "budget": 200}
    (plain, guarded, history) = (
        quadratic(method=text, aggregator="mean", switching="static", **fields).norms
        for text in ("sgd", "safeguard:noise_bound=1.5", "byzantine-sgd:noise_bound=1.5")
    )
    assert guarded == pytest.approx(plain, rel=1e-9)
    assert history == pytest.approx(plain, rel=1e-9)
