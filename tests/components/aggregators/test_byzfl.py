"""ByzFL's rules beside ours, where the definitions agree; skipped where it is not installed."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from dynabro_cli.components.aggregators._api import AggregatorSetting
from dynabro_cli.components.api import make_aggregator
from dynabro_cli.components.registries import REGISTRIES
from tests.components.theirs import byzfl, needs_byzfl
from tests.tables import each_row

pytestmark = needs_byzfl


RULES: dict[str, Any] = {
    "mean": lambda f: byzfl().Average(),
    "cwmed": lambda f: byzfl().Median(),
    "cwtm": lambda f: byzfl().TrMean(f),
    "krum:neighbours=m-f-1": lambda f: byzfl().Krum(f),
    "multi-krum:neighbours=m-f-1": lambda f: byzfl().MultiKrum(f),
    "mda": lambda f: byzfl().MDA(f),
    "monna": lambda f: byzfl().MoNNA(f),
    "monna:pivot=3": lambda f: byzfl().MoNNA(f, 3),
    "meamed": lambda f: byzfl().Meamed(f),
    "rfa": lambda f: byzfl().GeometricMedian(),
    "nnm+cwtm": lambda f: lambda messages: byzfl().TrMean(f)(byzfl().NNM(f)(messages)),
    "arc+cwtm": lambda f: lambda messages: byzfl().TrMean(f)(byzfl().ARC(f)(messages)),
    "clipping:c=2+mean": lambda f: (
        lambda messages: byzfl().Average()(byzfl().Clipping(2.0)(messages))
    ),
}


def draw(m: int, d: int, f: int, seed: int) -> Tensor:
    """In single precision, which theirs makes of everything."""
    messages = torch.randn(m, d, generator=torch.Generator().manual_seed(seed))
    messages[:f] = 3 * messages[:f] + 1
    return messages[torch.randperm(m, generator=torch.Generator().manual_seed(seed))]


@each_row("text", RULES)
# odd, as their meamed takes the lower of two medians
@each_row(("m", "f"), [(5, 1), (9, 3), (11, 2)])
def test_the_same_aggregate(text: str, m: int, f: int) -> None:
    for seed in range(5):
        messages = draw(m, 6, f, seed)
        ours = make_aggregator(text, workers=m, byzantine=f)(messages)
        # some of theirs write into their input
        torch.testing.assert_close(ours, RULES[text](f)(messages.clone()))


def test_the_same_steps_of_centered_clipping() -> None:
    ours, theirs = (
        make_aggregator("centered-clipping:tau=1.5,L=2", workers=9, byzantine=3),
        byzfl().CenteredClipping(L=2, tau=1.5),
    )
    for seed in range(4):
        messages = draw(9, 6, 3, seed)
        torch.testing.assert_close(ours(messages), theirs(messages))


@each_row("seed", range(5))
def test_the_same_subset_of_smea_on_a_line(seed: int) -> None:
    """Messages for which one step of ByzFL's power method, from a random vector, finds the
    eigenvalue.
    """
    messages = draw(9, 1, 3, seed)
    torch.testing.assert_close(
        make_aggregator("smea", workers=9, byzantine=3)(messages), byzfl().SMEA(3)(messages)
    )


def test_buckets_of_the_same_sizes() -> None:
    for m, s in itertools.product((9, 12), (1, 2, 4)):
        theirs = byzfl().Bucketing(s)(torch.ones(m, 2))
        stage = (
            REGISTRIES["pre_aggregators"].parse(f"bucketing:s={s}").build(AggregatorSetting(m, 0))
        )
        assert theirs.shape == (stage.workers, 2)
