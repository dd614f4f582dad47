"""Common parts of all checks: the description of a component, and a run that uses it."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.events import Checkpointed, Evaluated, Event, RoundsDone
from dynabro_cli.core.registration import Component, Registry
from dynabro_cli.core.registration.plugins import load_plugin
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.simulation.setup import simulate_run

ROUNDS = 12
"""Rounds of a short run."""


def require(condition: object, promise: str) -> None:
    """Raise AssertionError with the promise if it is broken."""
    if not bool(condition):
        raise AssertionError(promise)


def component(kind: str, text: str, plugin: str | Path | None) -> Component[Any]:
    """Load the plugin and read the component; check its description.

    Raises:
        AssertionError: The component has no docstring, or its text changes when it is read again.
    """
    if plugin is not None:
        load_plugin(plugin)
    registry: Registry[Any] = REGISTRIES[kind]
    parsed = registry.parse(text)
    require(
        parsed.entry.summary.strip(),
        f"{text}: the factory needs a docstring; 'dynabro list' shows its first line",
    )
    require(
        parsed.entry.reference.strip(),
        f"{text}: it needs a reference, such as the paper and the number of its algorithm",
    )
    again = registry.parse(parsed.text)
    require(
        again.parameters == parsed.parameters,
        f"{text}: its parameters change when {parsed.text!r} is read again",
    )
    return parsed


def same(first: Tensor, second: Tensor) -> bool:
    """Return True if two tensors are equal bit for bit; NaN is equal to NaN."""
    return first.shape == second.shape and torch.equal(
        first.nan_to_num(7.25), second.nan_to_num(7.25)
    )


def check_run(text: str, **fields: Any) -> None:
    """Make a short run twice, and again from a checkpoint in its middle; on a quadratic objective
    unless a task is given.

    Raises:
        AssertionError: The numbers differ.
    """
    usual = {
        "task": "quadratic",
        "method": "sgd",
        "attack": "shift:lambda=1",
        "aggregator": "cwmed",
        "workers": 9,
    }
    usual |= {
        "byzantine": 2,
        "budget": ROUNDS,
        "batch_size": 2,
        "eval_every": 3,
        "switching": "periodic:K=3",
    }
    if "task" in fields:
        usual["attack"] = "sf"
    run = resolve(RunSpec(**{**usual, **fields}))
    asked = itertools.count(1)

    def events(resume: bytes | None = None, *, stop: bool = False) -> list[Event]:
        def wanted() -> bool:
            return stop and next(asked) in (1, 5)  # some methods spend the budget in a few rounds

        return list(
            simulate_run(copy.copy(run), device="cpu", compile="off", resume=resume, wanted=wanted)
        )

    first, second = events(stop=True), events()
    require(
        _numbers(first) == _numbers(second),
        f"{text}: a run made twice has other numbers. Draw only from the seed",
    )
    checkpoint = [event for event in first if isinstance(event, Checkpointed)][-1]
    resumed = _numbers(events(checkpoint.data))
    require(
        resumed == _numbers(first)[-len(resumed) :],
        f"{text}: a run that resumes from a checkpoint has other numbers. Keep everything that "
        "changes in the state",
    )


def _numbers(events: list[Event]) -> list[Any]:
    """Return the numbers of rounds and evaluations, one by one, because events may hold any number
    of rounds.
    """
    numbers: list[Any] = []
    for event in events:
        if isinstance(event, RoundsDone):
            numbers += [
                (round_.round, round_.byzantine, round_.gradient_norm) for round_ in event.rounds
            ]
        elif isinstance(event, Evaluated):
            numbers.append((event.test_accuracy, event.test_loss, event.gap))
    return numbers
