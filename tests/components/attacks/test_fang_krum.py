"""Fang et al.'s attack on Krum."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dynabro_cli.components.api import make_aggregator, make_attack
from dynabro_cli.core.errors import SpecError
from tests.tables import each_row

DOUBLE = torch.float64
# m = 7, c = 2: Krum scores 3 neighbours. Among the honest -4, -3, 1, 5, 8 the sums of the 3 least
# squares are 107, 81, 57, 89 and 179, and m - 2c - 1 = 2: lambda <= sqrt(57/2) + 8 = 13.34. The two
# copies of -lambda are at distance 0 from each other. At 13.34 their score is 9.34^2 + 10.34^2 =
# 194, and over the score of -4, 1 + 25 + 81. At 6.67 it is 2.67^2 + 3.67^2 = 20.6, and over the
# score of -4, 1 + 2 (2.67^2) = 15.3. At 3.33 it is 0.67^2 + 0.33^2 = 0.55, and under the score of
# -3, 1 + 2 (0.33^2), and all others.
HONEST = [-4.0, -3, 1, 5, 8]
GOLDEN = (math.sqrt(57 / 2) + 8) / 4


def with_attackers(honest: list[float], *attackers: float) -> tuple[Tensor, Tensor]:
    own = torch.tensor([*honest, *attackers], dtype=DOUBLE)[:, None]
    return own, torch.arange(len(own)) >= len(honest)


def test_golden() -> None:
    for sign in (1, -1):  # the mean of all is positive, or negative
        own, byzantine = with_attackers([sign * value for value in HONEST], 0, 0)
        sent = make_attack("fang-krum:direction=mean", workers=7)(own, byzantine)
        torch.testing.assert_close(sent[5:], torch.full((2, 1), -sign * GOLDEN, dtype=DOUBLE))
        assert torch.equal(sent[:5], own[:5])
        selected = make_aggregator("krum", workers=7, byzantine=2)
        assert selected(sent).tolist() == sent[5].tolist()


def test_golden_aggregate() -> None:
    # own vectors of -50 make the mean of all negative; the median of all, -3, is negative as well,
    # the largest value is not
    own, byzantine = with_attackers(HONEST, -50, -50)
    attack = make_attack("fang-krum", workers=7)
    assert float(attack(own, byzantine, lambda rows: rows.amax(0))[6]) == pytest.approx(-GOLDEN)
    assert float(attack(own, byzantine, lambda rows: rows.median(0).values)[6]) > 0
    assert float(make_attack("fang-krum:direction=mean", workers=7)(own, byzantine)[6]) > 0


def krum(messages: Tensor, f: int) -> int:
    """The worker that Krum selects, among equal ones the last, in a loop over workers."""
    m, best = len(messages), (math.inf, 0)
    for i in range(m):
        distances = sorted(
            float((messages[i] - messages[j]).square().sum()) for j in range(m) if j != i
        )
        score = sum(distances[: m - f - 2])
        best = min(best, (score, -i))
    return -best[1]


@each_row("seed", range(2))
@each_row(("m", "c", "d"), [(9, 3, 2), (9, 3, 30), (9, 1, 3), (12, 5, 8), (7, 4, 3), (5, 3, 2)])
def test_is_the_search(m: int, c: int, d: int, seed: int) -> None:
    """The paper's search, by halved lambda, with Krum in a loop; also where Byzantine workers are a
    majority.
    """
    own = torch.randn(m, d, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE) + 0.2
    honest, byzantine = own[: m - c], torch.arange(m) >= m - c
    sign = own.mean(0).sign()
    sums = []
    for i in range(m - c):
        distances = sorted(
            float((honest[i] - honest[j]).square().sum()) for j in range(m - c) if j != i
        )
        sums.append(sum(distances[: max(0, m - c - 2)]))
    tried = math.sqrt(min(sums) / (max(1, m - 2 * c - 1) * d)) + max(
        float(row.norm()) for row in honest
    ) / math.sqrt(d)
    least = tried * 1e-5
    while True:
        messages = own.clone()
        messages[m - c :] = -tried * sign
        if krum(messages, c) >= m - c or tried / 2 < least:
            break
        tried /= 2
    sent = make_attack("fang-krum:direction=mean", workers=m)(own, byzantine)
    torch.testing.assert_close(sent, messages)


def test_where_krum_selects_none_of_them() -> None:
    # one attacker of four, all honest vectors equal: the score of -lambda is never the least; 16
    # halvings end above 1e-5
    own, byzantine = with_attackers([2.0, 2, 2], 0)
    sent = make_attack("fang-krum:direction=mean", workers=4)(own, byzantine)
    assert float(sent[3]) == pytest.approx(-2 * 2.0**-16)
    sent = make_attack("fang-krum:direction=mean,threshold=0.25", workers=4)(own, byzantine)
    assert float(sent[3]) == pytest.approx(-2 / 4)


@pytest.mark.parametrize("count", [1, 6])
def test_one_to_all(count: int) -> None:
    """All workers count as honest for the bound if all are Byzantine, and Krum can select nothing
    else.
    """
    own = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    byzantine = torch.arange(6) < count
    sent = make_attack("fang-krum:direction=mean", workers=6)(own, byzantine)
    assert torch.equal(sent[count:], own[count:])
    for row in sent[:count]:
        torch.testing.assert_close(row.sign(), -own.mean(0).sign())
        torch.testing.assert_close(row.abs(), row.abs()[:1].expand(3))
    if count == 6:  # no neighbours to score, so only the lengths bound it
        assert float(sent[0].norm()) == pytest.approx(float(own.norm(dim=1).max()))


def test_legal_ranges() -> None:
    with pytest.raises(SpecError) as error:
        make_attack("fang-krum:threshold=1,direction=median", workers=3)
    assert [line.split("; ")[1] for line in error.value.problems] == [
        "threshold must be a number > 0 and < 1",
        "direction must be aggregate or mean",
    ]
