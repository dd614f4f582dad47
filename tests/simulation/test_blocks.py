"""Runs with compiled convolution blocks: equal to runs without them, except for rounding, whatever
else is in the run.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence

import pytest

from dynabro_cli import RunSpec, simulate
from dynabro_cli.core.events import (
    Checkpointed,
    Diverged,
    Evaluated,
    Event,
    Finished,
    RoundsDone,
    Started,
)
from dynabro_cli.core.machine import native
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.gradients.layers import conv_block
from dynabro_cli.simulation.setup import simulate_run

pytestmark = [
    pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler"),
    pytest.mark.usefixtures("enough_work"),
]
BASE = RunSpec(
    model="cnn-digits",
    method="momentum:beta=0.9",
    workers=5,
    byzantine=1,
    batch_size=8,
    budget=12,
    eval_every=6,
)


@pytest.fixture
def enough_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are compiled under ``auto``, and nothing else is."""
    monkeypatch.setattr(conv_block, "COMPILE_VALUES", 1.0)


def events(spec: RunSpec, compile: str) -> list[Event]:  # noqa: A002
    found = list(simulate(spec, device="cpu", compile=compile))
    assert isinstance(found[0], Started)
    told = json.loads(str(found[0].record["versions"]))
    assert told["blocks"] == ("2 of 2 compiled" if compile == "auto" else "off")
    return found


def numbers(found: Sequence[Event]) -> list[float]:
    rounds = [round_ for event in found if isinstance(event, RoundsDone) for round_ in event.rounds]
    losses = [event.test_loss for event in found if isinstance(event, Evaluated)]
    return [
        *(round_.gradient_norm for round_ in rounds),
        *(loss for loss in losses if loss is not None),
    ]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"method": "dynabro:filter=option1", "budget": 40},
        {
            "method": "dynabro:filter=none,jmax=3",
            "budget": 40,
            "switching": "bernoulli:p=0.2,D=3,delta_max=0.4",
            "clock": "computation",
        },
        {"participation": 0.6},
        {"attack": "label-flip"},
        {"attack": "ipm:epsilon=0.1"},
        {"switching": "periodic:K=3", "clock": "computation"},
        {"data": "dirichlet:alpha=0.5", "validation": 0.1},
        {"method": "local-steps:H=2"},
    ],
    ids=lambda changes: ",".join(map(str, changes.values())) or "momentum",
)
def test_any_run_computes_the_same(changes: dict[str, object]) -> None:
    spec = dataclasses.replace(BASE, **changes)  # type: ignore[arg-type]
    plain, fast = numbers(events(spec, "off")), numbers(events(spec, "auto"))
    assert len(plain) > 6
    assert fast == pytest.approx(plain, rel=1e-3)


def test_a_run_goes_on_from_a_checkpoint_bit_by_bit() -> None:
    run = resolve(BASE)
    whole = list(simulate_run(run, device="cpu"))
    stream = simulate_run(run, device="cpu", wanted=lambda: True)
    checkpoint = next(
        event for event in stream if isinstance(event, Checkpointed) and event.totals.rounds == 5
    )
    rest = list(simulate_run(run, device="cpu", resume=checkpoint.data))
    assert numbers(rest) == numbers(whole)[-len(numbers(rest)) :] or rest[-1] == whole[-1]
    assert isinstance(rest[-1], Finished)
    assert rest[-1] == whole[-1]


def test_a_run_that_diverges_does_so_at_the_same_round() -> None:
    spec = dataclasses.replace(
        BASE, learning_rate=1e7, aggregator="mean", attack="none", budget=200
    )
    ends = [events(spec, choice)[-1] for choice in ("off", "auto")]
    plain, fast = ends
    assert isinstance(plain, Diverged)
    assert isinstance(fast, Diverged)
    assert plain.round == fast.round
    assert math.isfinite(plain.loss or 0.0) == math.isfinite(fast.loss or 0.0)
