"""Rules whose kappa is searched, each in its setting, and the length of a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dynabro_cli.components.aggregators._api import REGISTRY, Aggregator, AggregatorSetting
from dynabro_cli.components.pre_aggregators import _api as pre_aggregators
from dynabro_cli.components.pre_aggregators._chain import build_chain, split_chain
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.registration import Component

UNIT = 1.0
"""Threshold of rules that need a length; any value works, because the search chooses its own
scale.
"""


@dataclass(frozen=True)
class Effort:
    """Length of a search.

    Attributes:
        dimension: d.
        restarts: Number of starts.
        steps: Inputs tried from each start.
        seed: Seed of starts and steps.
        seconds: Processor time after which the search of a rule ends.
    """

    dimension: int = 2
    restarts: int = 16
    steps: int = 200
    seed: int = 0
    seconds: float = 60.0

    def problems(self) -> list[str]:
        """Return the problems of the values, one per line."""
        limits = {"dimension": 1, "restarts": 1, "steps": 1, "seed": 0}
        values = {name: getattr(self, name) for name in limits}
        lines = [
            f"{name}={value} is not legal. Try: --{name} with a whole number >= {limits[name]}"
            for name, value in values.items()
            if value < limits[name]
        ]
        if not self.seconds > 0:
            lines.append(f"seconds={self.seconds:g} is not legal. Try: --seconds with a number > 0")
        return lines


class Subject(NamedTuple):
    """A rule to search: its text, the rule in its setting, and m and f."""

    text: str
    rule: Aggregator
    workers: int
    byzantine: int


def subjects(
    texts: Sequence[str], pre: Sequence[str], workers: int, byzantine: int, effort: Effort
) -> tuple[list[Subject], dict[str, list[str]]]:
    """Return the rules to search, and the reasons why others cannot be searched, by name.

    Args:
        texts: Rules, each with its own pre-aggregators if joined by ``+``; empty for every rule.
        pre: Pre-aggregators before all of them.
        workers: m.
        byzantine: f.
        effort: The effort, which is also checked.

    Raises:
        SpecError: A named rule, m, f or the effort is not legal.
    """
    problems = effort.problems()
    if not 0 <= 2 * byzantine < workers:
        most = max(0, workers - 1) // 2
        problems.append(
            f"f={byzantine} of m={workers} is not legal: 0 <= 2f < m must hold. Try: --f with "
            f"at most {most}"
        )
    if problems:
        raise SpecError(problems)
    chosen: list[Subject] = []
    refused: dict[str, list[str]] = {}
    for text in texts or REGISTRY.entries():
        try:
            chosen.append(subject(text, pre, workers, byzantine))
        except SpecError as error:
            refused[text] = error.problems
    if texts and refused:
        raise SpecError(list(dict.fromkeys(line for lines in refused.values() for line in lines)))
    return list({kept.text: kept for kept in chosen}.values()), refused


def subject(text: str, pre: Sequence[str], workers: int, byzantine: int) -> Subject:
    """Return the rule that ``text`` names, after the pre-aggregators ``pre``; raise SpecError if it
    is not legal.
    """
    *before, rule = split_chain(text) or [text]
    registry, setting = pre_aggregators.REGISTRY, AggregatorSetting(workers, byzantine, UNIT)
    chain = [
        registry.parse(part)
        for part in [*(word for item in pre for word in split_chain(item)), *before]
    ]
    component: Component[Any] = REGISTRY.parse(rule)
    built = build_chain(component, chain, setting)
    if built.needs_server:
        raise SpecError(
            f"aggregator {text!r} needs the server's gradient, and Definition 3.2 has none. "
            "Try: another rule"
        )
    shown = []
    for stage in chain:
        shown.append(stage.canonical(setting).text)
        # a stage such as bucketing passes fewer messages to the next
        setting = AggregatorSetting(stage.build(setting).workers, byzantine, UNIT)
    return Subject("+".join([*shown, component.canonical(setting).text]), built, workers, byzantine)
