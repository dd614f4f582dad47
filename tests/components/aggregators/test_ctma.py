"""Centred trimmed meta-aggregation: by hand, beside a loop of NumPy's, and its bound."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dynabro_cli import RunSpec
from dynabro_cli.components.aggregators._api import AggregatorSetting
from dynabro_cli.components.api import make_aggregator
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.errors import SpecError
from dynabro_cli.experiment.resolve import resolve
from tests.tables import each_row


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def test_golden() -> None:
    """The median of 0, 1, 3, 8, 100 is 3: the three nearest are 1, 3 and 0, at distances 2, 0, 3.
    Two are left out.
    """
    rule = make_aggregator("ctma:rule=cwmed", workers=5, byzantine=2)
    assert rule(column(0, 1, 3, 8, 100)).tolist() == [4 / 3]
    assert make_aggregator("ctma:rule=cwmed,f=1", workers=5, byzantine=2)(
        column(0, 1, 3, 8, 100)
    ).tolist() == [3.0]


def test_ties_go_to_the_first() -> None:
    """Around 2, both 1 and 3 are 1 away, and one of them counts."""
    rule = make_aggregator("ctma:rule=cwmed", workers=3, byzantine=1)
    assert rule(column(1, 2, 3)).tolist() == [1.5]
    assert rule(column(3, 2, 1)).tolist() == [2.5]


@each_row("inner", ["cwtm", "gm", "krum", "rfa:T=2,nu=0.5"])
def test_equals_a_loop(inner: str) -> None:
    for seed in range(5):
        messages = torch.randn(
            9, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        messages[:3] += 2
        made = make_aggregator(f"ctma:rule={inner.replace(',', ':')}", workers=9, byzantine=3)
        centre = make_aggregator(inner, workers=9, byzantine=3)(messages).numpy()
        near = np.argsort(np.linalg.norm(messages.numpy() - centre, axis=1), kind="stable")[:6]
        np.testing.assert_allclose(
            made(messages).numpy(), messages.numpy()[near].mean(0), rtol=1e-12
        )


def test_kappa_is_the_rules_times_the_share_of_byzantine_workers() -> None:
    """3 of 9 messages are left out: 4 3/6 (1 + kappa). If none is left out, the mean has no
    error.
    """
    setting = AggregatorSetting(9, 3)
    inner = REGISTRIES["aggregators"].parse("cwmed").build(setting).kappa
    assert REGISTRIES["aggregators"].parse("ctma:rule=cwmed").build(setting).kappa == pytest.approx(
        2 * (1 + inner)
    )
    assert REGISTRIES["aggregators"].parse("ctma").build(AggregatorSetting(9, 0)).kappa == 0
    assert REGISTRIES["aggregators"].parse("ctma:rule=mean").build(setting).kappa is None
    assert REGISTRIES["aggregators"].parse("ctma:f=1").build(setting).kappa is None


def test_the_rules_state_and_threshold_pass_through() -> None:
    clipping = make_aggregator("ctma:rule=centered-clipping:tau=1", workers=3, byzantine=1)
    first, second = (clipping(column(8, 8, 9)).tolist() for _ in range(2))
    assert (first, second) == ([8.0], [8.0])
    assert clipping._state["v"].tolist() == [2.0], "two calls have moved it by 1 each"
    run = resolve(
        RunSpec(task="quadratic", method="dynabro:filter=option1,noise_bound=1", aggregator="ctma")
    )
    assert run.assemble()[1].kappa is not None


def test_texts() -> None:
    registry = REGISTRIES["aggregators"]
    assert (
        registry.parse("ctma:rule=rfa:nu=0.10:T=3").text
        == registry.parse("ctma:rule=rfa:T=3:nu=0.1").text
    )
    assert registry.parse("ctma:rule=cwtm,f=2").text == "ctma:f=2"
    names = resolve(RunSpec(task="quadratic", aggregator="ctma:rule=gm")).components
    assert {"aggregators/ctma", "aggregators/gm"} <= names.keys()


@each_row(
    ("text", "said"),
    [
        ("ctma:rule=ctma", "cannot be its own rule"),
        ("ctma:rule=nothing", "unknown aggregator 'nothing'"),
        ("ctma:rule=centered-clipping", "needs tau="),
        ("ctma:rule=mfm", "rule=mfm: aggregator 'mfm' needs threshold="),
    ],
)
def test_errors(text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        resolve(RunSpec(task="quadratic", aggregator=text))
