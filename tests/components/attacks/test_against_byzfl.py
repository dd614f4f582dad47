"""The attacks that ByzFL defines in the same way, where it is installed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dynabro_cli.components.api import make_aggregator, make_attack
from tests.components.theirs import attacks, byzfl, needs_byzfl
from tests.tables import each_row

pytestmark = needs_byzfl


M, F, D = 9, 3, 40
BYZANTINE = torch.arange(M) >= M - F


def vectors(seed: int) -> tuple[Tensor, Tensor]:
    """All workers' own vectors, and the honest ones."""
    own = (
        torch.randn(M, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.3
    )
    return own, own[: M - F]


SAME: dict[str, tuple[str, Any]] = {
    "ipm": ("ipm:epsilon=0.7", lambda: attacks().InnerProductManipulation(tau=0.7)),
    "foe": ("foe:epsilon=2", lambda: attacks().InnerProductManipulation(tau=2.0)),
    "sign flip of the mean": ("foe", lambda: attacks().SignFlipping()),
    "mimic": ("mimic:worker=2", lambda: attacks().Mimic(epsilon=2)),
    "inf": ("inf", lambda: attacks().Inf()),
}


@each_row("name", SAME)
def test_same(name: str) -> None:
    text, theirs = SAME[name]
    own, honest = vectors(0)
    sent = make_attack(text, workers=M)(own, BYZANTINE)[M - F :]
    torch.testing.assert_close(sent, theirs()(honest).double().expand(F, D))


def test_alie_with_the_other_sign() -> None:
    """ByzFL adds the deviations, of ddof = 1, and has a constant."""
    own, honest = vectors(1)
    sent = make_attack("alie:z=-1.5", workers=M)(own, BYZANTINE)[M - 1]
    torch.testing.assert_close(
        sent, attacks().ALittleIsEnough(tau=1.5)(honest).double(), rtol=1e-5, atol=1e-5
    )


RULES: dict[str, tuple[str, Any]] = {
    "cwtm": ("cwtm", lambda: byzfl().TrMean(f=F)),
    "cwmed": ("cwmed", lambda: byzfl().Median()),
    "mean": ("mean", lambda: byzfl().Average()),
    "krum": ("krum:neighbours=m-f-1", lambda: byzfl().Krum(f=F)),
}


@each_row("rule", RULES)
@each_row("nnm", [False, True])
@each_row("seed", range(3))
@each_row("attack", ["ipm", "alie"])
def test_optimal(attack: str, seed: int, nnm: bool, rule: str) -> None:
    """The same search; ALIE's on the negated vectors, whose aggregates are the negated ones."""
    own, honest = vectors(seed)
    text, theirs = RULES[rule]
    before = [byzfl().NNM(f=F)] if nnm else []
    kind = (
        attacks().Optimal_InnerProductManipulation
        if attack == "ipm"
        else attacks().Optimal_ALittleIsEnough
    )
    searched = kind(agg=theirs(), pre_agg_list=before, f=F)
    expected = searched(honest) if attack == "ipm" else -searched(-honest)
    defence = make_aggregator(("nnm+" if nnm else "") + text, workers=M, byzantine=F).preview
    sent = make_attack(f"optimal-{attack}", workers=M)(own, BYZANTINE, defence)[M - 1]
    # ByzFL goes to single precision
    torch.testing.assert_close(sent, expected.double(), rtol=1e-5, atol=1e-5)
