"""The paper's bounds, with numbers worked by hand."""

from __future__ import annotations

import math

import pytest

from dynabro_cli.answers.theory import bounds
from dynabro_cli.components.aggregators._api import AggregatorSetting
from dynabro_cli.components.pre_aggregators._chain import build_chain
from dynabro_cli.components.registries import REGISTRIES
from tests.answers.theory.made_rates import dynamic_rate, static_rate
from tests.tables import each_row


def test_the_static_theorem_by_hand() -> None:
    """T = 16, log2 T = 4, gamma = 1, sigma = 1, L = 1, gap = 4.

    The rate is 2/(4 sqrt(64)) = 1/16; the bound 16 sqrt(4 x 4/16) + 2 (4 + 2)/16 = 16.75.
    """
    assert static_rate(16, 1, 1, 1, 4) == pytest.approx(1 / 16)
    assert bounds.static_bound(16, 1, 1, 1, 4) == pytest.approx(16.75)
    assert static_rate(16, 1, 1e-9, 1, 4) == 1


def test_the_dynamic_theorem_by_hand() -> None:
    """The same with C V = 1: the rate is 2/(3 x 8); the bound 12 x 1 + (8 + 9)/16 + 16 x 3 x 4/16
    with three dynamic rounds.
    """
    assert dynamic_rate(16, 1, 1, 1, 4) == pytest.approx(1 / 12)
    assert bounds.dynamic_bound(16, 1, 1, 1, 4) == pytest.approx(12 + 17 / 16)
    assert bounds.dynamic_bound(16, 1, 1, 1, 4, dynamic=3) == pytest.approx(12 + 17 / 16 + 12)


def test_the_adaptive_theorem_by_hand() -> None:
    """T = 16, gamma = 4, C V = 1/(2 sqrt 2), so that C~ V = 1; zeta = 1, m = 2.

    8 (27 sqrt(4 d)/16 + 8 sqrt(4 x 4/16) + 6 x 4/(2 x 64)) + 4 (125 x 4 d/16 + 24/16 + 15 x 16/(4 x
    256)) + 1024 x 4/16: without dynamic rounds 65.5 + 6.9375 + 256 = 328.4375; with d = 4 more by
    54 + 500.
    """
    cv = 1 / (2 * math.sqrt(2))
    assert bounds.adaptive_bound(16, 4, cv, 1, 2) == pytest.approx(328.4375)
    assert bounds.adaptive_bound(16, 4, cv, 1, 2, dynamic=4) == pytest.approx(328.4375 + 54 + 500)


def test_gamma_of_mfm() -> None:
    assert bounds.gamma_mfm(8, 2) == pytest.approx(32 / 16 + 1 / 8)


@each_row("chain", bounds.KAPPAS)
@each_row(("m", "f"), [(25, 12), (25, 0)])
def test_kappas_are_those_of_the_rules(chain: str, m: int, f: int) -> None:
    *stages, rule = chain.split("+")
    component = REGISTRIES["aggregators"].parse(rule)
    built = build_chain(
        component,
        [REGISTRIES["pre_aggregators"].parse(stage) for stage in stages],
        AggregatorSetting(m, f),
    )
    assert bounds.KAPPAS[chain](m, f) == pytest.approx(built.kappa)
