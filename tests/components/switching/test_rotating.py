"""The switching strategy of Appendix E."""

from __future__ import annotations

import pytest
import torch

from dynabro_cli.components.api import make_switching
from dynabro_cli.components.switching.rotating import turn_length
from dynabro_cli.core.errors import SpecError


def test_golden() -> None:
    switching = make_switching("rotating:period=2", workers=3, byzantine=1)
    turns = [switching.mask(t).int().argmax().item() for t in range(14)]
    assert turns == [0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2, 0, 0]
    assert all(int(switching.mask(t).sum()) == 1 for t in range(14))


def test_thirds_of_seventeen() -> None:
    # worker i is of group floor(3i/17): 0 to 5, 6 to 11, 12 to 16
    switching = make_switching("rotating:period=1", workers=17, byzantine=6)
    groups = [switching.mask(t).nonzero().flatten().tolist() for t in range(3)]
    assert groups == [list(range(6)), list(range(6, 12)), list(range(12, 17))]


@pytest.mark.parametrize(("beta", "switches"), [(0.9, 999), (0.99, 90), (0.995, 45)])
def test_switches_in_3000_rounds_are_those_of_the_paper(beta: float, switches: int) -> None:
    switching = make_switching("rotating", workers=3, byzantine=1, beta=beta)
    masks = torch.stack([switching.mask(t) for t in range(3000)])
    assert int((masks[1:] != masks[:-1]).any(1).sum()) == switches


def test_turn_length() -> None:
    # floor(1/(3 alpha)): 10/3, 100/3, 200/3; whole where thirds divide evenly, though 1 - 5/6 is
    # not 1/6 in binary
    assert [turn_length(beta) for beta in (0.9, 0.99, 0.995)] == [3, 33, 66]
    assert [turn_length(1 - 1 / steps) for steps in (6, 12, 30, 300, 3000)] == [2, 4, 10, 100, 1000]
    assert [turn_length(beta) for beta in (0.0, 0.5)] == [1, 1]


def test_period_of_its_own_goes_before_beta() -> None:
    switching = make_switching("rotating:period=5", workers=3, byzantine=1, beta=0.9)
    assert bool(switching.mask(4)[0])
    assert bool(switching.mask(5)[1])


def test_errors() -> None:
    with pytest.raises(SpecError, match="needs three groups of workers, but workers=2"):
        make_switching("rotating:period=1", workers=2, byzantine=1)
    with pytest.raises(SpecError) as error:
        make_switching("rotating", workers=17, byzantine=8)
    first, second = error.value.problems
    assert "6 of 17, but byzantine=8. Try: byzantine=6" in first
    assert "the method has none. Try: 'rotating:period=...'" in second
