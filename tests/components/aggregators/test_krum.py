"""Krum, against a reference that follows the paper word for word."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dynabro_cli.answers.theory import kappa, subjects
from dynabro_cli.components.aggregators.krum import proved_kappa
from dynabro_cli.components.api import make_aggregator
from dynabro_cli.core.errors import SpecError
from tests.tables import each_row


def reference(messages: np.ndarray, scored: int) -> int:
    """The index with the smallest sum of its ``scored`` smallest squared distances to others."""
    m = len(messages)
    scores = []
    for i in range(m):
        distances = sorted(
            float(((messages[i] - messages[j]) ** 2).sum()) for j in range(m) if j != i
        )
        scores.append(sum(distances[:scored]))
    return scores.index(min(scores))


def test_golden() -> None:
    # m = 5, f = 1, so 2 nearest others. On the line 0, 1, 3, 4, 30 the squared distances to them
    # are 0: 1 + 9 = 10; 1: 1 + 4 = 5; 3: 1 + 4 = 5; 4: 1 + 9 = 10; 30: 676 + 729. The lower index
    # of the tie is that of 1.
    messages = torch.tensor([[0.0], [1.0], [3.0], [4.0], [30.0]])
    assert make_aggregator("krum", workers=5, byzantine=1)(messages).tolist() == [1.0]
    assert make_aggregator("krum", workers=5, byzantine=1)(messages.flip(0)).tolist() == [3.0]


def test_golden_variant_with_one_neighbour_more() -> None:
    # On the line 0, 1, 2, 8, 9, 10, 12 with f = 2: 3 others (m - f - 2): 2: 1 + 4 + 36 = 41; 8: 1 +
    # 4 + 16 = 21; 9: 1 + 1 + 9 = 11; 10: 1 + 4 + 4 = 9; 12: 29 -> 10 4 others (m - f - 1): 2: 90;
    # 8: 1 + 4 + 16 + 36 = 57; 9: 1 + 1 + 9 + 49 = 60; 10: 1 + 4 + 4 + 64 = 73 -> 8
    messages = torch.tensor([0.0, 1.0, 2.0, 8.0, 9.0, 10.0, 12.0])[:, None]
    assert make_aggregator("krum", workers=7, byzantine=2)(messages).tolist() == [10.0]
    assert make_aggregator("krum:neighbours=m-f-1", workers=7, byzantine=2)(messages).tolist() == [
        8.0
    ]


def test_distances_are_those_of_whole_vectors() -> None:
    # worker 3 has a coordinate in the middle of each column, and is nearest to no one; worker 0 has
    # 1 and 1 to 1 and 2
    messages = torch.tensor([[0.0, 9.0], [0.0, 10.0], [1.0, 9.0], [5.0, 5.0], [9.0, 0.0]])
    assert make_aggregator("krum", workers=5, byzantine=1)(messages).tolist() == [0.0, 9.0]


@each_row(("m", "f"), [(3, 0), (5, 1), (7, 2), (10, 3), (17, 7)])
@each_row("seed", range(3))
def test_equals_the_reference(m: int, f: int, seed: int) -> None:
    messages = torch.randn(m, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for variant, scored in (("paper", m - f - 2), ("m-f-1", m - f - 1)):
        chosen = make_aggregator(f"krum:f={f},neighbours={variant}", workers=m, byzantine=0)(
            messages
        )
        assert torch.equal(chosen, messages[reference(messages.numpy(), scored)])


@each_row("size", [1e3, 1e10, 1e18])
@each_row("seed", [0, 1, 8])  # also the number of the worker that sends it
def test_an_enormous_message_does_not_blur_the_honest_ones(seed: int, size: float) -> None:
    # in single precision 1e10^2 swallows everything else: the choice must still be that of double
    # precision
    messages = 3 + torch.randn(9, 200, generator=torch.Generator().manual_seed(seed))
    messages[seed] = size
    chosen = make_aggregator("krum", workers=9, byzantine=2)(messages)
    assert torch.equal(chosen, messages[reference(messages.double().numpy(), 5)])


@pytest.mark.parametrize("seed", range(3))
def test_messages_far_from_the_origin_are_told_apart(seed: int) -> None:
    # |g_i|^2 + |g_j|^2 - 2 <g_i, g_j> in single precision would lose distances of 400 in squares of
    # 2e8
    messages = 1000 + torch.randn(9, 200, generator=torch.Generator().manual_seed(seed))
    chosen = make_aggregator("krum", workers=9, byzantine=2)(messages)
    assert torch.equal(chosen, messages[reference(messages.double().numpy(), 5)])


def test_kappa() -> None:
    # 6 (1 + f/(m - 2f)) at m = 5, f = 1: 6 * 4/3 = 8
    assert make_aggregator("krum", workers=5, byzantine=1).kappa == pytest.approx(8)


def bound(m: int, f: int) -> float:
    """The largest ratio that the proof in ``proved_kappa`` leaves to m - f - 2 neighbours, by
    trying the share a.
    """
    h = m - f
    c, p = (h - 2) / (h - 1), h / (f + 1)
    a = np.append(np.linspace(0, 1, 4001), 1 - 1 / p)
    scores = c * np.minimum(1 + p * (1 - a), 1 + a * p / (p - 1))
    return float((p / (p - 1) * (np.sqrt(a) + np.sqrt(scores)) ** 2).max())


def test_kappa_covers_the_default_number_of_neighbours() -> None:
    """Each line of the proof's end, in numbers."""
    for m in range(3, 150):
        for f in range((m - 1) // 2):
            assert bound(m, f) <= proved_kappa(m, f)


@pytest.mark.thorough
@pytest.mark.parametrize("variant", ["paper", "m-f-1"])
@pytest.mark.parametrize(("m", "f"), [(5, 1), (7, 2)])
def test_the_worst_input_found_does_not_disprove_kappa(m: int, f: int, variant: str) -> None:
    subject = subjects.subject(f"krum:neighbours={variant}", [], m, f)
    found = kappa.search(
        subject, subjects.Effort(dimension=2, restarts=6, steps=150, seed=0, seconds=60)
    )
    assert 1 < found.empirical <= proved_kappa(m, f)
    assert not found.violated


def test_legal_range_of_f() -> None:
    make_aggregator("krum", workers=7, byzantine=2)
    make_aggregator("krum:f=2", workers=7, byzantine=3)
    with pytest.raises(
        SpecError, match=r"f=2 is not legal with 6 workers; 2f \+ 2 < m must hold, so f .* 1"
    ):
        make_aggregator("krum", workers=6, byzantine=2)
    for rule in ("krum", "multi-krum", "bulyan"):
        with pytest.raises(
            SpecError,
            match=r"f=0 is not legal with 1 workers; .*, so it needs at least 3 workers. Try: w",
        ):
            make_aggregator(rule, workers=1, byzantine=0)
    with pytest.raises(
        SpecError, match="neighbours=all is not legal; neighbours must be paper or m-f-1"
    ):
        make_aggregator("krum:neighbours=all", workers=6, byzantine=1)
