"""A run builds each of its parts once, whoever needs it: the factories are counted."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dynabro_cli import RunSpec, simulate
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.experiment.resolve import resolve

MODEL = "models/logistic"
"""A model is made twice: on torch's device ``meta`` to count its numbers before anything takes
memory, and to be trained.
"""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Number of calls of each factory."""
    counts: Counter[str] = Counter()

    def counted(name: str, factory: Callable[..., Any]) -> Callable[..., Any]:
        def make(*arguments: Any) -> Any:
            counts[name] += 1
            return factory(*arguments)

        make.__module__ = factory.__module__  # by which its file is found
        return make

    for kind, registry in REGISTRIES.items():
        entries = {
            name: dataclasses.replace(entry, factory=counted(f"{kind}/{name}", entry.factory))
            for name, entry in registry.entries().items()
        }
        monkeypatch.setattr(registry, "_entries", entries)
        monkeypatch.setattr(registry, "_parsed", {})
    return counts


@pytest.mark.parametrize(
    ("method", "rule"),
    [
        ("dynabro:filter=option1", "cwtm"),
        ("dynabro:filter=option2", "mfm"),
        ("byzantine-sgd", "mean"),
        ("local-steps", "gm"),
    ],
)
def test_a_run_calls_each_factory_once(
    method: str, rule: str, calls: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = RunSpec(
        method=method, aggregator=rule, model="logistic", attack="alie", budget=40, workers=9
    )
    assert list(simulate(spec, device="cpu", compile="off"))
    # counted without memory, its activations measured, as it is small, and then built
    assert calls.pop(MODEL) == 3
    names = [
        "tasks/digits",
        f"methods/{method.partition(':')[0]}",
        f"aggregators/{rule}",
        "attacks/alie",
    ]
    assert calls == dict.fromkeys([*names, "switching/periodic", "partitions/iid"], 1)


def test_a_stage_before_the_rule_is_built_once(calls: Counter[str]) -> None:
    resolve(RunSpec(pre_aggregators="nnm+clipping:c=2", aggregator="gm"))
    assert (
        calls["pre_aggregators/nnm"],
        calls["pre_aggregators/clipping"],
        calls["aggregators/gm"],
    ) == (1, 1, 1)


def test_a_copy_builds_its_own_parts(calls: Counter[str]) -> None:
    planned = dataclasses.replace(resolve(RunSpec()))
    assert planned.assemble()[1].kappa is not None
    assert planned.parts is planned.parts
    assert calls["methods/dynabro"] == 2
