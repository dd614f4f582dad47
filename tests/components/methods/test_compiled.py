"""The server is compiled as two graphs, messages and aggregate, and computes the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dynabro_cli import RunSpec
from dynabro_cli.core.events import RoundsDone
from dynabro_cli.simulation import compilation
from dynabro_cli.simulation.setup import simulate

METHODS = {
    "byzantine-sgd": {"method": "byzantine-sgd:noise_bound=3,threshold_A=2"},
    "safeguard": {"method": "safeguard:noise_bound=2,T0=3,T1=7,threshold0=0.8"},
    "safeguard, single": {
        "method": "safeguard:guards=single,T0=4,threshold0=0.7,empty=wait,step=before"
    },
    "marina-pp": {"method": "marina-pp:batches=3,C=4", "aggregator": "gm"},
    "local-steps": {"method": "local-steps:H=2", "attack_entry": "message"},
    "ctma": {"method": "momentum", "aggregator": "ctma:rule=gm"},
    "demoa": {"method": "demoa", "participation": 0.5},
    "mu2-sgd": {"method": "mu2-sgd", "attack_entry": "state"},
}


def norms(compile_: str, **fields: Any) -> list[float]:
    spec = RunSpec(
        model="logistic",
        workers=9,
        byzantine=3,
        batch_size=4,
        budget=24,
        switching="periodic:K=3",
        **fields,
    )
    stream = list(simulate(spec, device="cpu", threads=1, compile=compile_))
    return [
        item.gradient_norm
        for event in stream
        if isinstance(event, RoundsDone)
        for item in event.rounds
    ]


# one remembers, the other gathers; the others are thorough
QUICK = ("byzantine-sgd", "local-steps")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.thorough) for name in METHODS],
)
def test_whole_graphs_with_the_same_numbers(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compilation, "missing_tool", lambda: None)
    real, calls = torch.compile, []

    def traced(function: Any, **options: Any) -> Any:
        calls.append(options)
        return real(function, backend="eager", **options)

    monkeypatch.setattr(torch, "compile", traced)
    torch._dynamo.reset()
    compiled = norms("on", **METHODS[name])
    assert calls == [{"dynamic": False, "fullgraph": True}] * 2
    assert len(set(compiled)) > 5
    assert compiled == pytest.approx(norms("off", **METHODS[name]), rel=1e-5)
