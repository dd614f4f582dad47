"""Our iteration against ByzFL's: MNIST, m = 17, f = 8, 32 images per worker, momentum 0.9.

Each side runs in its own processes. ByzFL computes the gradients of the honest workers. Ours also
computes the gradients of Byzantine workers if the attack needs them; the tables have the numbers.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import byzfl_loop, ours
from benchmarks.byzfl_loop import PHASES, Settings
from benchmarks.measuring import chosen, machine, table
from benchmarks.processes import Block, Side, take_turns, workers
from dynabro_cli import RunSpec

BYZFL_NAMES = {"cwtm": "TrMean", "gm": "GeometricMedian", "cwmed": "Median"}
HEADER = [
    "case",
    "ours, ms",
    "ByzFL, ms",
    "ours, it/s in all",
    "ByzFL, it/s in all",
    "ratio",
    "least",
    "most",
]
OUR_PHASES = ("data", "gradients", "rest")


class Case(NamedTuple):
    """One experiment, in the terms of both sides."""

    title: str
    spec: RunSpec
    settings: Settings


class Result(NamedTuple):
    """Iterations per second of all processes (median, and each turn's), and an iteration's phases
    in ms and gradients.
    """

    rate: float
    rates: list[float]
    phases: dict[str, float]
    gradients: float


def _case(
    title: str,
    model: str,
    attack: str,
    rule: str,
    byzfl_attack: str,
    byzfl_parameters: dict[str, float],
) -> Case:
    """Return a case with our rule written ``cwtm`` or ``nnm+cwtm``."""
    *chain, name = rule.split("+")
    spec = RunSpec(
        task="mnist",
        model=model,
        method="momentum:beta=0.9",
        aggregator=name,
        pre_aggregators="+".join(chain) or "none",
        attack=attack,
        switching="static",
        workers=17,
        byzantine=8,
        batch_size=32,
        budget=ours.FOREVER,
        eval_every=ours.FOREVER,
    )
    return Case(
        title, spec, Settings(BYZFL_NAMES[name], byzfl_attack, byzfl_parameters, mixed=bool(chain))
    )


def cases() -> dict[str, Case]:
    """Return all cases by their short names.

    They are the same work under every rule, the paper's cell beside the nearest case of ByzFL, and
    a small network of 784-100-10 units instead of convolutions.
    """
    rules = [chain + name for name in BYZFL_NAMES for chain in ("", "nnm+")]
    same = {
        rule: _case(
            f"same work, {rule}",
            "cnn-mnist-50",
            "ipm:epsilon=0.1",
            rule,
            "InnerProductManipulation",
            {"tau": 0.1},
        )
        for rule in rules
    }
    small = _case(
        "a small network, cwtm",
        "mlp",
        "ipm:epsilon=0.1",
        "cwtm",
        "InnerProductManipulation",
        {"tau": 0.1},
    )
    small = small._replace(settings=replace(small.settings, model="fc_mnist"))
    return same | {
        "paper": _case("the paper's cell, cwtm", "cnn-mnist", "sf", "cwtm", "SignFlipping", {}),
        "small": small,
    }


@dataclass(frozen=True)
class How:
    """Settings of both sides.

    Attributes:
        data_dir: The folder with MNIST.
        device: The device of both sides.
        threads: CPU threads of each process; None for torch's own number.
        processes: Processes of each side that run together.
        turns: Timed blocks of each side.
        length: Iterations of one of ByzFL's blocks; ours have 16.
        compile: ``dynabro run --compile`` for our side.
    """

    data_dir: Path | None
    device: str = "cpu"
    threads: int | None = None
    processes: int = 1
    turns: int = 5
    length: int = 8
    compile: str = "auto"


def measure(names: Sequence[str], how: How) -> str:
    """Run the cases of these names on both sides, in turn; return the tables."""
    totals, our_phases, their_phases = [], [], []
    known = cases()
    for name in chosen(names, list(known), "case"):
        case = known[name]
        mine, theirs = _both(case, how)
        milliseconds = [1000 * how.processes / side.rate for side in (mine, theirs)]
        ratios = [one / other for one, other in zip(mine.rates, theirs.rates, strict=True)]
        totals.append(
            [
                case.title,
                *milliseconds,
                mine.rate,
                theirs.rate,
                statistics.median(ratios),
                min(ratios),
                max(ratios),
            ]
        )
        our_phases.append(
            [case.title, mine.gradients, *(mine.phases.get(phase) for phase in OUR_PHASES)]
        )
        their_phases.append(
            [case.title, theirs.gradients, *(theirs.phases.get(phase) for phase in PHASES)]
        )
    return "\n\n".join(
        [
            f"{_title(how)}\n{machine(how.device, how.threads)}",
            table(HEADER, totals),
            table(["ours, ms an iteration", "gradients", *OUR_PHASES], our_phases),
            table(["ByzFL, ms an iteration", "gradients", *PHASES], their_phases),
        ]
    )


def _both(case: Case, how: How) -> tuple[Result, Result]:
    """Measure one case on both sides: ours, and ByzFL's."""
    place = {"data_dir": how.data_dir, "device": how.device}
    sides: dict[str, tuple[Side, dict[str, Any]]] = {
        "ours": (
            ours.rounds,
            place | {"spec": case.spec, "threads": how.threads, "compile": how.compile},
        ),
        "ByzFL": (byzfl_loop.iterations, place | {"settings": case.settings, "length": how.length}),
    }
    with workers(sides, how.threads, how.processes) as groups:
        blocks = take_turns(groups, how.turns)
    return summary(blocks["ours"]), summary(blocks["ByzFL"])


def summary(turns: Sequence[Sequence[Block]]) -> Result:
    """Return medians over the turns of one side; each turn has a block of every process."""
    rates = [sum(block.iterations / block.seconds for block in blocks) for blocks in turns]
    every = [block for blocks in turns for block in blocks]
    phases = {
        phase: statistics.median(1000 * block.phases[phase] / block.iterations for block in every)
        for phase in every[0].phases
    }
    return Result(
        statistics.median(rates),
        rates,
        phases,
        statistics.median(block.gradients / block.iterations for block in every),
    )


def _title(how: How) -> str:
    processes = "one process" if how.processes == 1 else f"{how.processes} processes"
    return (
        f"One iteration: {processes} a side, compile={how.compile}; the ratio is ours over "
        "ByzFL's, in iterations a second, "
        "of all processes together: the median, least and most of the turns."
    )
