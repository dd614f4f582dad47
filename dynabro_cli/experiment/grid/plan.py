"""The runs of a sweep: every point of the grid with every seed, complete, each once; and shards of
them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynabro_cli.components.pre_aggregators._chain import split_chain
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.limits import MOST_RUNS
from dynabro_cli.core.registration import Component, plugins
from dynabro_cli.experiment.build import data_directory
from dynabro_cli.experiment.complete import format_drops, parse_drops
from dynabro_cli.experiment.grid.sweep_file import Sweep, Values, too_many
from dynabro_cli.experiment.resolve import Run, resolve
from dynabro_cli.experiment.spec import CHAIN, COMPONENTS, RunSpec, fields

MOST_SHARDS = 100_000


@dataclass(frozen=True)
class PlannedRuns:
    """The runs of a sweep.

    Attributes:
        sweep: The sweep.
        runs: Its runs, no two with one key: all points with the first seed, then all with the
            second, ...; the grid's last axis varies fastest.
        duplicates: Number of points that are the same run as an earlier one.
        excluded: Number of points that ``exclude`` removed.
        idle_exclusions: A line for each entry of ``exclude`` that no point agrees with.
    """

    sweep: Sweep
    runs: tuple[Run, ...]
    duplicates: int
    excluded: int
    idle_exclusions: tuple[str, ...] = ()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The runs in the form of the table ``runs``: ``run_key``, a column for each field, and
        ``spec``, a mapping.
        """
        return [
            {"run_key": run.key, **dataclasses.asdict(run.spec), "spec": run.mapping}
            for run in self.runs
        ]


def plan(sweep: Sweep, data_dir: Path | None = None) -> PlannedRuns:
    """Make every run of ``sweep``, with its data sets in ``data_dir``, or in the usual folder.

    Raises:
        SpecError: Some points cannot run: a line for each distinct problem, with the number of its
            points and the first of them. A problem of a single component is reported once, with its
            place in the file.
    """
    total = sweep.points
    if total > MOST_RUNS:
        raise SpecError(f"{sweep.name}: {too_many(f'{total:,} points')}")
    components = component_problems(sweep)
    problems = _Problems(set(components))
    exclusions = Exclusions(sweep)
    runs: dict[str, Run] = {}
    resolved: dict[int, Run] = {}
    folder = data_directory(data_dir)
    excluded = done = 0
    for point, values in _points(sweep):
        try:
            earlier = resolved.get(point)
            run = (
                earlier.with_seed(int(values["seed"]))
                if earlier
                else resolve(RunSpec.from_text(values), folder)
            )
        except SpecError as error:
            # exclude may name points that cannot run; these have no complete spec, only their texts
            if exclusions.match(RunSpec.from_text(values)):
                excluded += 1
            else:
                problems.add(error.problems, sweep, values)
            continue
        if exclusions.match(run.spec):
            excluded += 1
            continue
        done += 1
        # a copy has no built parts, of which a plan of many runs would be full
        resolved[point] = run = dataclasses.replace(run)
        runs.setdefault(run.key, run)
    lines = [f"{place}: {line}" for line, place in components.items()] + problems.lines(total)
    if lines and not {*sweep.plugins} <= {plugin.name for plugin in plugins.loaded()}:
        # a warning has named the plugins, and "did you mean" would mislead
        known = [line for line in lines if "unknown " not in line]
        lines = known or [f"{sweep.name}: components of these plugins are unknown"]
    if lines:
        raise SpecError(lines)
    if not runs:
        raise SpecError(f"{sweep.name}: exclude leaves no point of {total}. Try: a shorter exclude")
    return PlannedRuns(sweep, tuple(runs.values()), done - len(runs), excluded, exclusions.lines())


def _points(sweep: Sweep) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the number of every point in the grid, and its fields as texts.

    Seeds vary slowest, so that an interrupted sweep has whole grids.
    """
    seeds: list[Values] = [{"seed": str(seed)} for seed in sweep.seeds] or [{}]
    for seed in seeds:
        for number, chosen in enumerate(itertools.product(*(axis.points for axis in sweep.grid))):
            point = dict(sweep.base)
            for values in chosen:
                point |= values
            yield number, {**point, **seed}


def component_problems(sweep: Sweep) -> dict[str, str]:
    """Return the problems of single components anywhere in the sweep, each with its place."""
    given = [sweep.base, *(point for axis in sweep.grid for point in axis.points), *sweep.exclude]
    places: dict[str, str] = {}
    for name, text in dict.fromkeys(
        (name, text) for values in given for name, text in values.items()
    ):
        try:
            component_text(name, text)
        except SpecError as error:
            place = sweep.places.get((name, text), f"--set {name}={text}")
            for line in error.problems:
                places.setdefault(line, place)
    return places


@functools.lru_cache(maxsize=4096)
def _components(name: str, text: str) -> tuple[Component[Any], ...]:
    """Return the components in a field's text; none for a field without components. Raises
    SpecError.
    """
    if name not in COMPONENTS or fields()[name].parse(text) is None:
        return ()
    texts = split_chain(text) if name == CHAIN else [text]
    return tuple(REGISTRIES[COMPONENTS[name]].parse(part) for part in texts)


def component_text(name: str, text: str) -> str:
    """Return the canonical text of a component or chain; the text of any other field unchanged.
    Raises SpecError.
    """
    return "+".join(part.text for part in _components(name, text)) or text


def _canonical(name: str, value: Any) -> Any:
    """Return a value that is equal for two spellings of the same thing."""
    if not isinstance(value, str):
        return value
    try:
        return (
            format_drops(parse_drops(value)) if name == "lr_drop" else component_text(name, value)
        )
    except SpecError:
        return value


def meanings(values: Values) -> dict[str, Any]:
    """Return the values of fields, which are equal for two spellings of the same thing."""
    return {name: _canonical(name, fields()[name].parse(text)) for name, text in values.items()}


class Exclusions:
    """The entries of a sweep's ``exclude``, and the entries that no point has agreed with so
    far.
    """

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self._entries = [meanings(values) for values in sweep.exclude]
        self.idle = set(range(len(self._entries)))

    def match(self, spec: RunSpec) -> bool:
        """Return True if ``spec`` agrees with all the fields of one of the entries."""
        matching = {place for place, values in enumerate(self._entries) if _agrees(spec, values)}
        self.idle -= matching
        return bool(matching)

    def lines(self) -> tuple[str, ...]:
        """A line for each idle entry, with its place in the file."""
        places = self._sweep.exclude_places or [self._sweep.name] * len(self._entries)
        entries = [
            ", ".join(f"{name}: {text}" for name, text in values.items())
            for values in self._sweep.exclude
        ]
        why = "so that this entry of exclude leaves nothing out"
        return tuple(
            f"{places[k]}: no point of the grid has {entries[k]}, {why}" for k in sorted(self.idle)
        )


def _agrees(spec: RunSpec, values: Mapping[str, Any]) -> bool:
    """Return True if ``spec`` has all of ``values``, or components with the same meaning in it (see
    ``_same_here``).
    """
    others = [
        name for name, value in values.items() if _canonical(name, getattr(spec, name)) != value
    ]
    return all(_comparable(name, getattr(spec, name), values[name]) for name in others) and all(
        _same_here(spec, name, values[name]) for name in others
    )


def _comparable(name: str, text: Any, value: Any) -> bool:
    """Return True if two texts name the same components, some of them with a parameter that can be
    ``auto``.
    """
    if not isinstance(text, str) or not isinstance(value, str):
        return False
    try:
        parts, others = _components(name, text), _components(name, value)
    except SpecError:
        return False
    same = [part.name for part in parts] == [part.name for part in others]
    return same and any(info.auto for part in parts for info in part.entry.infos)


def _same_here(spec: RunSpec, name: str, value: str) -> bool:
    """Return True if ``value`` means the same as a complete ``spec``'s value: ``cwtm:f=8`` and
    ``cwtm`` if f is 8.
    """
    changed: dict[str, Any] = {name: value}
    try:
        return bool(
            getattr(resolve(dataclasses.replace(spec, **changed)).spec, name) == getattr(spec, name)
        )
    except SpecError:
        return False


class _Problems:
    """Problems of points, each kept once, with the number of its points and the first of them."""

    def __init__(self, known: set[str]) -> None:
        self._known = known
        self._found: dict[str, tuple[int, str]] = {}

    def add(self, lines: list[str], sweep: Sweep, values: Mapping[str, str]) -> None:
        """Take the problems of a point; problems of single components are reported elsewhere."""
        for line in lines:
            if line not in self._known:
                count, first = self._found.get(line, (0, _label(sweep, values)))
                self._found[line] = (count + 1, first)

    def lines(self, total: int) -> list[str]:
        """A line for each problem; a sweep of one point does not name the point."""
        if total == 1:
            return list(self._found)
        shares = {
            line: "all" if count == total else f"{count} of"
            for line, (count, _) in self._found.items()
        }
        return [
            f"{line} ({shares[line]} {total} points, first {first})"
            for line, (_, first) in self._found.items()
        ]


def _label(sweep: Sweep, values: Mapping[str, str]) -> str:
    """Name a point by the fields that the grid varies."""
    varied = [name for axis in sweep.grid for name in axis.fields] + (
        ["seed"] if sweep.seeds else []
    )
    return ", ".join(f"{name}={values[name]}" for name in varied if name in values)


def as_stored(planned: PlannedRuns, stored: Callable[[str], bool]) -> PlannedRuns:
    """Replace each run that is not stored by one that is stored, and that differs from it only in
    fields without effect.

    Args:
        planned: The plan.
        stored: Returns True if a run with a key is stored.
    """
    runs = (
        next(
            (equivalent for equivalent in (run, *run.equivalents()) if stored(equivalent.key)), run
        )
        for run in planned.runs
    )
    unique = {run.key: run for run in runs}
    more = len(planned.runs) - len(unique)
    return dataclasses.replace(
        planned, runs=tuple(unique.values()), duplicates=planned.duplicates + more
    )


@dataclass(frozen=True)
class Shard:
    """Part ``number`` of ``count``, counted from 1: the runs whose key is ``number - 1`` modulo
    ``count``.

    A key depends on its run alone. So shards are disjoint, and a run stays in its shard when the
    sweep grows or shrinks.
    """

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read ``2/4``.

        Raises:
            SpecError: The text is not ``NUMBER/COUNT`` with 1 <= NUMBER <= COUNT.
        """
        match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
        shard = cls(int(match[1]), int(match[2])) if match else cls(0, 0)
        if not 1 <= shard.number <= shard.count <= MOST_SHARDS:
            raise SpecError(
                f"shard={text}: it must be NUMBER/COUNT, counted from 1. Try: --shard 1/4"
            )
        return shard

    @property
    def text(self) -> str:
        """The shard as typed."""
        return f"{self.number}/{self.count}"

    def has(self, run_key: str) -> bool:
        """Return True if the run with this key is in the shard."""
        return int(run_key, 16) % self.count == self.number - 1


def only(planned: PlannedRuns, shard: Shard) -> PlannedRuns:
    """Return a plan with the runs of one shard; the sweep and its numbers of duplicates and
    exclusions stay.
    """
    return dataclasses.replace(
        planned, runs=tuple(run for run in planned.runs if shard.has(run.key))
    )
