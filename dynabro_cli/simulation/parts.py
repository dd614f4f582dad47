"""Parts of a simulation, and its state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dynabro_cli.aggregators._api import Aggregator
from dynabro_cli.attacks._api import Attack
from dynabro_cli.experiment.complete import CompleteSpec
from dynabro_cli.methods._api import Method
from dynabro_cli.simulation.compilation import Compiler
from dynabro_cli.simulation.problem import Problem
from dynabro_cli.streams import Streams
from dynabro_cli.switching._api import Switching


def _no_compiler() -> Compiler:
    return Compiler("off", work=0, device=torch.device("cpu"))


@dataclass
class Parts:
    """Parts of a simulation.

    ``cohort`` aggregates if the method lets only some workers take part. ``answering`` maps a round to the numbers of the n
    workers that answer in it, in ascending order; None if all do. ``code`` is the run's value of ``code_digests``.
    """

    spec: CompleteSpec
    problem: Problem
    method: Method
    aggregator: Aggregator
    attack: Attack
    switching: Switching
    streams: Streams
    compiler: Compiler = field(default_factory=_no_compiler)
    cohort: Aggregator | None = None
    answering: Callable[[int], Tensor] | None = None
    code: str | None = None


@dataclass
class State:
    """State that changes from round to round, beside x and the buffers of the problem and the step's sum of squares."""

    round: int = 0
    spent: int = 0
    mask: Tensor | None = None
    method: dict[str, Tensor] = field(default_factory=dict)
    aggregator: dict[str, Tensor] = field(default_factory=dict)
    attack: dict[str, Tensor] = field(default_factory=dict)
    switching: dict[str, Tensor] = field(default_factory=dict)
