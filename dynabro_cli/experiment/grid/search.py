"""A search: a space of specs, and what to do with it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dynabro_cli.core.errors import SpecError
from dynabro_cli.experiment.grid.plan import Exclusions, meanings
from dynabro_cli.experiment.grid.search_space import Entry, Space, space_of
from dynabro_cli.experiment.grid.sweep_file import Axis, Sweep, Values
from dynabro_cli.experiment.resolve import Run, resolve
from dynabro_cli.experiment.spec import CHAIN, RunSpec, fields

SEEDS = "seeds"
"""Pruner that judges a trial by its first seed, before the other seeds are run."""


@dataclass(frozen=True)
class Then:
    """Repetition after the trials: the ``best`` of all, and the best of ``first``, are run with
    ``seeds``.
    """

    seeds: tuple[int, ...]
    best: int
    first: int = 0


@dataclass(frozen=True)
class Search:
    """A search.

    Attributes:
        sweep: Name, base, plugins, exclusions; each point of its grid is a separate search, with
            the same space.
        axes: The axes of the space, whose texts may have ranges.
        goal: What is optimised, a key of ``GOALS``.
        maximize: True if more is better for the search.
        trials: Number of trials; None with ``sampler: grid`` for all combinations.
        sampler: One of ``SAMPLERS``.
        sampler_seed: Seed of the proposals.
        pruner: One of ``PRUNERS``.
        then: What follows the trials; None for nothing.
        diverged: ``worst``: a diverged run counts with accuracy 0, or an infinite loss; ``skip``:
            it has no value.
        first: Choices of the first trials; the sampler proposes the fields that a choice leaves
            out.
    """

    sweep: Sweep
    axes: tuple[Axis, ...]
    goal: str
    maximize: bool
    trials: int | None
    sampler: str = "tpe"
    sampler_seed: int = 0
    pruner: str = "none"
    then: Then | None = None
    diverged: str = "worst"
    first: tuple[Values, ...] = ()

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of each trial."""
        return self.sweep.seeds or (int(self.sweep.base.get("seed", "0")),)

    @functools.cached_property
    def space(self) -> Space:
        """The space of the axes."""
        return space_of(self.axes)

    @functools.cached_property
    def _exclusions(self) -> Exclusions:
        return Exclusions(self.sweep)

    def runs(self, texts: Values, seeds: Sequence[int]) -> list[Run]:
        """Return the runs of a combination, one per seed.

        Raises:
            SpecError: The combination is not legal, or excluded.
        """
        run = resolve(RunSpec.from_text({**texts, "seed": str(seeds[0])}))
        if self._exclusions.match(run.spec):
            raise SpecError("exclude leaves it out")
        return [run.with_seed(seed) for seed in seeds]

    def combinations(
        self, fixed: Values, probe: int = 2
    ) -> Iterator[tuple[tuple[Entry, ...], Run | SpecError]]:
        """Yield every combination of entries, each with its run with the first seed and numbers at
        a ``probe`` of the ranges, or the reason why it cannot run.
        """
        for entries in self.space.combinations():
            texts = {name: text for entry in entries for name, text in entry.probe(probe).items()}
            try:
                yield entries, self.runs({**fixed, **texts}, self.seeds[:1])[0]
            except SpecError as error:
                yield entries, error

    @property
    def prunes_within_runs(self) -> bool:
        """True if the pruner sees every evaluation of a run."""
        return self.pruner not in ("none", SEEDS)

    def points(self) -> Iterator[tuple[str, Values]]:
        """Yield the name and the fixed fields of each search of the file, one per point of the grid
        that is not excluded.
        """
        names = set[str]()  # without a field of theirs, points of an axis may be equal
        for chosen in itertools.product(*(axis.points for axis in self.sweep.grid)):
            point = {name: text for values in chosen for name, text in values.items()}
            label = ", ".join(f"{name}={text}" for name, text in _shown(point).items())
            fixed = {**self.sweep.base, **point}
            name = f"{self.sweep.name}: {label}" if label else self.sweep.name
            if name not in names and not any(
                values.items() <= fixed.items() for values in self.sweep.exclude
            ):
                names.add(name)
                yield name, fixed

    @property
    def question(self) -> dict[str, Any]:
        """Everything that must not change while trials are added, by its place in the file.

        It is equal for two spellings of one question: ``0.10`` and ``0.1``, or another order of
        axes, entries and seeds.
        """
        entries = (frozenset(map(_meaning, axis.entries)) for axis in self.space.axes)
        return {
            **{
                f"base {name}": value
                for name, value in meanings(self.sweep.base).items()
                if name != "seed"
            },
            "search": frozenset(entries),
            "goal": (self.goal, self.maximize),
            "seeds": frozenset(self.seeds),
            "diverged": self.diverged,
            "exclude": frozenset(
                frozenset(meanings(values).items()) for values in self.sweep.exclude
            ),
        }


def _meaning(entry: Entry) -> frozenset[Any]:
    """Return the fields of an entry at the low ends of its ranges, and the ranges."""
    return frozenset([*meanings(entry.probe(0)).items(), *entry.ranges.items()])


def _shown(point: Values) -> dict[str, str]:
    """Return the fields of a point in the order of ``RunSpec``, with a chain before its rule."""
    fixed = {name: point[name] for name in fields() if name in point}
    if CHAIN in fixed and "aggregator" in fixed:
        chain = fixed.pop(CHAIN)
        fixed["aggregator"] = f"{'' if chain == 'none' else f'{chain}+'}{fixed['aggregator']}"
    return fixed
