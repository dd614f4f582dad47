"""The search for the worst case of a rule: it finds those that are known, and breaks no bound that
is proved.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from dynabro_cli.answers.theory import kappa
from dynabro_cli.answers.theory._inputs import made_by_hand, move, random_start
from dynabro_cli.answers.theory.kappa import ratio, search
from dynabro_cli.answers.theory.subjects import Effort, Subject, subject, subjects
from dynabro_cli.components.aggregators._api import REGISTRY as RULES
from dynabro_cli.components.aggregators._api import Aggregator
from dynabro_cli.core.errors import SpecError
from tests.tables import each_row

QUICK = Effort(restarts=2, steps=30)


def rule(text: str, m: int, f: int) -> Subject:
    return subject(text, [], m, f)


def matrix(*rows: float) -> Tensor:
    """Messages of one number each."""
    return torch.tensor(rows, dtype=torch.float64)[:, None]


# --- the ratio


def test_a_ratio_by_hand() -> None:
    """The median of 9, 0, 2 is 2; the honest mean is 1, and the variance ((0 - 1)^2 + (2 - 1)^2)/2
    = 1: (2 - 1)^2/1 = 1.

    The mean is 11/3: (11/3 - 1)^2 = 64/9 = 7.1111.
    """
    messages = matrix(9, 0, 2)
    assert float(ratio(rule("cwmed", 3, 1).rule, messages, 1)) == pytest.approx(1, rel=1e-5)
    assert float(ratio(rule("mean", 3, 1).rule, messages, 1)) == pytest.approx(64 / 9, rel=1e-5)


def test_rounding_is_no_error() -> None:
    """Three times 0.1 have a mean that is not 0.1, so that both distances are rounding."""
    assert float(ratio(rule("cwmed", 4, 1).rule, matrix(5, 0.1, 0.1, 0.1), 1)) == 0
    assert float(ratio(rule("cwmed", 4, 1).rule, matrix(0, 0, 0, 0), 1)) == 0
    assert float(ratio(rule("mean", 4, 1).rule, matrix(5, 0.1, 0.1, 0.1), 1)) > 1e12


def test_an_aggregate_that_is_no_number_is_infinitely_far() -> None:
    broken = Aggregator(lambda messages, state, _: (messages[0] * torch.nan, state), 3.0)
    found = search(Subject("broken", broken, 5, 1), QUICK)
    assert found.unbounded
    assert found.violated


# --- known worst cases


@each_row(("m", "f"), [(5, 2), (5, 1), (9, 4), (9, 2)])
def test_the_exact_kappa_of_the_median(m: int, f: int) -> None:
    """k/(h - k), h = m - f and k = (m - 1)/2: of the h sorted honest numbers, k + 1 to k + h - m +
    1 can be made the median.

    At worst the Byzantine ones are above all, and it is the (k + 1)-th, with k numbers at 0 and h -
    k at 1: the mean is (h - k)/h, the error k/h, the variance k (h - k)/h^2, the ratio k/(h - k).
    With (5, 2): 0, 0, 1, and kappa = 2. No dimension makes it worse, as both sums run over
    coordinates.
    """
    h, k = m - f, (m - 1) // 2
    found = search(rule("cwmed", m, f), QUICK)
    assert found.empirical == pytest.approx(k / (h - k), rel=1e-4)
    assert found.empirical <= k / (h - k)
    assert not found.unbounded


@pytest.mark.thorough
def test_random_moves_climb_to_the_worst_case() -> None:
    """Among 0, ..., 8 the first four are Byzantine: median 4, honest mean 6 and variance 2 give 2;
    the exact value is 4.
    """
    start = np.arange(9.0)[:, None]
    state = kappa._Search(rule("cwmed", 9, 4), Effort(dimension=1, steps=1500))
    assert state.value(start) == pytest.approx(2, rel=1e-5)
    state.climb(start, np.random.default_rng(0))
    assert state.best > 0.95 * 4
    assert state.evaluations == 1502


def test_a_climb_never_goes_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each move begins from an input that is at least as good as the input before."""
    own, seen = rule("krum", 7, 2), list[float]()

    def watched(messages: np.ndarray, byzantine: int, generator: np.random.Generator) -> np.ndarray:
        seen.append(float(ratio(own.rule, torch.from_numpy(messages), byzantine)))
        return move(messages, byzantine, generator)

    monkeypatch.setattr(kappa, "move", watched)
    search(own, Effort(restarts=1, steps=100))
    assert len(seen) > 50
    assert seen == sorted(seen)
    assert seen[-1] > 1.1 * seen[0]


@pytest.mark.parametrize("text", ["mean", "mfm"])
def test_what_has_no_kappa_has_none(text: str) -> None:
    """The mean follows one far vector; MFM averages vectors nearer than its threshold, however
    close the honest ones are.
    """
    found = search(rule(text, 5, 2), QUICK)
    assert found.unbounded
    assert found.proved is None
    assert not found.violated
    assert found.empirical == kappa.LARGE
    assert found.notes[0] == "no bound in sight"


def test_the_mean_of_honest_vectors_is_exact() -> None:
    found = search(rule("mean", 5, 0), QUICK)
    assert (found.empirical, found.proved, found.violated) == (0.0, 0.0, False)


# --- proved bounds

PLACES = [(5, 2), (5, 1), (9, 4), (9, 3), (17, 8), (17, 7)]


def is_legal(text: str, m: int, f: int) -> bool:
    """Return True if a rule is defined for this number of workers; Krum and Bulyan are not defined
    for all.
    """
    try:
        rule(text, m, f)
    except SpecError:
        return False
    return True


PROVED = [
    pytest.param(text, m, f, marks=pytest.mark.thorough if m < 17 else pytest.mark.slow)
    for text, (m, f) in itertools.product([*RULES.entries(), "nnm+cwmed", "nnm+gm"], PLACES)
    if text != "mfm" and is_legal(text, m, f)
]


@pytest.mark.parametrize(("text", "m", "f"), PROVED)
def test_no_proved_bound_is_broken(text: str, m: int, f: int) -> None:
    own = rule(text, m, f)
    found = search(own, QUICK)
    assert not found.violated
    if own.rule.kappa is not None:
        assert 0 < found.empirical <= own.rule.kappa


def test_a_wrong_bound_is_found_out() -> None:
    right = rule("cwmed", 5, 2)
    wrong = right._replace(rule=right.rule._replace(kappa=1.9))
    assert not search(right, QUICK).violated
    assert search(wrong, QUICK).violated


# --- the search


@pytest.mark.thorough
def test_the_worst_input_has_the_ratio_that_is_told() -> None:
    own = rule("gm", 5, 2)
    found = search(own, QUICK)
    assert found.worst.shape == (5, 2)
    assert float(ratio(own.rule, torch.from_numpy(found.worst), 2)) == found.empirical
    assert found.row["worst"] == found.worst.tolist()


@pytest.mark.thorough
def test_a_seed_is_a_search() -> None:
    own, effort = rule("krum", 7, 2), Effort(restarts=3, steps=40)
    first, again = search(own, effort), search(own, effort)
    assert (first.empirical, first.evaluations) == (again.empirical, again.evaluations)
    assert np.array_equal(first.worst, again.worst)
    other = search(own, Effort(restarts=3, steps=40, seed=1))
    assert not np.array_equal(first.worst, other.worst)


@pytest.mark.thorough
def test_more_effort_finds_no_less() -> None:
    own = rule("krum", 7, 2)
    assert (
        search(own, Effort(restarts=4, steps=40)).empirical
        >= search(own, Effort(restarts=2, steps=40)).empirical
    )


def test_a_search_ends_in_time() -> None:
    found = search(rule("cwmed", 5, 2), Effort(seconds=1e-9))
    assert not found.complete
    assert found.evaluations <= 1
    assert found.notes == ["stopped after 1e-09 s"]
    assert search(rule("cwmed", 5, 2), QUICK).complete


def test_progress() -> None:
    seen: list[tuple[int, int]] = []
    search(rule("cwmed", 5, 2), QUICK, lambda done, total: seen.append((done, total)))
    assert seen == [(0, 2), (1, 2)]


def test_a_state_is_the_initial_one() -> None:
    """A rule that takes half of what it said before is searched as at its first call."""

    def remember(
        messages: Tensor, state: dict[str, Tensor], _: object
    ) -> tuple[Tensor, dict[str, Tensor]]:
        now = messages.mean(0) + state.get("before", 1000.0)
        return now - 1000.0 if not state else now, {"before": now}

    found = search(Subject("remember", Aggregator(remember, 0.0), 4, 0), QUICK)
    assert found.stateful
    assert not found.violated
    assert found.notes == ["has a state: its initial one is searched"]
    assert not search(rule("cwmed", 4, 0), QUICK).stateful


# --- starts and moves


def test_starts_are_inputs() -> None:
    generator = np.random.default_rng(0)
    for m, f, d in ((5, 2, 1), (3, 0, 2), (1, 0, 1), (40, 19, 3)):
        starts = [*made_by_hand(m, f, d, generator), random_start(m, f, d, generator)]
        assert {start.shape for start in starts} == {(m, d)}
        assert all(np.isfinite(start).all() for start in starts)


def test_moves_leave_their_input_as_it_is() -> None:
    generator = np.random.default_rng(0)
    messages = generator.standard_normal((5, 2))
    before = messages.copy()
    moved = [move(messages, 2, generator) for _ in range(200)]
    assert np.array_equal(messages, before)
    rows = {tuple((one != messages).any(1)) for one in moved}
    assert (True,) * 5 in rows
    assert (True, True, False, False, False) in rows
    assert any(sum(changed) == 1 for changed in rows)
    assert all(np.isfinite(one).all() for one in moved)


# --- what is searched


def test_rules_and_pre_aggregators() -> None:
    found, refused = subjects(["cwtm:f=2", "nnm+gm"], ["nnm"], 7, 2, QUICK)
    assert [one.text for one in found] == ["nnm+cwtm", "nnm+nnm+gm"]
    assert refused == {}
    assert found[0].rule.kappa == pytest.approx(8 * 2 / 5 * (6 * 2 / 3 * (1 + 2 / 3) + 1))


def test_every_rule_there_is() -> None:
    found, refused = subjects([], [], 5, 2, QUICK)
    names = {one.text for one in found}
    assert names.isdisjoint(refused)
    assert names | set(refused) == set(RULES.entries())
    assert {"cwmed", "cwtm", "gm", "mean", "mfm"} <= names
    assert refused["krum"][0].startswith("aggregator 'krum': f=2 is not legal with 5 workers")


def test_all_problems_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        subjects(["cwmed"], [], 4, 2, Effort(dimension=0, restarts=0, seconds=0))
    assert caught.value.problems == [
        "dimension=0 is not legal. Try: --dimension with a whole number >= 1",
        "restarts=0 is not legal. Try: --restarts with a whole number >= 1",
        "seconds=0 is not legal. Try: --seconds with a number > 0",
        "f=2 of m=4 is not legal: 0 <= 2f < m must hold. Try: --f with at most 1",
    ]
    with pytest.raises(SpecError) as caught:
        subjects(["cwmd", "krum"], [], 5, 2, QUICK)
    first, second = caught.value.problems
    assert first.startswith("unknown aggregator 'cwmd' (did you mean 'cwmed'?)")
    assert second.startswith("aggregator 'krum': f=2 is not legal")
