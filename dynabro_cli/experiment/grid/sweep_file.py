"""Sweeps: descriptions of many runs in YAML files.

A sweep is a base, and a grid of axes whose every combination is a point; each point is run with
each seed. Values are kept as texts, and are read as on the command line; only ``plan`` knows
components.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dynabro_cli.core.errors import SpecError, did_you_mean
from dynabro_cli.core.limits import MOST_CHARACTERS, MOST_NAME, MOST_RUNS, MOST_SEEDS, SWEEP_NAME
from dynabro_cli.experiment.complete import parse_drops
from dynabro_cli.experiment.grid.strict_yaml import Items, Node, Pairs, Word, read_yaml
from dynabro_cli.experiment.spec import SHORT, canonical, fields, full_name

ELSEWHERE = {
    **dict.fromkeys(("dataset", "data_set"), "task"),
    **dict.fromkeys(("epochs", "steps", "iterations", "rounds"), "budget"),
    **dict.fromkeys(("rule", "gar", "defense", "defence"), "aggregator"),
    "optimizer": "method",
    "clients": "workers",
}
"""Words of other tools for fields."""
KEYS = ("name", "description", "extends", "plugins", "base", "grid", "exclude", "seeds")
COMMA = "; inside [ ] and { } a value with a comma needs quotes"

Values = Mapping[str, str]
"""Fields of RunSpec, with values as typed."""


@dataclass(frozen=True)
class Axis:
    """One dimension of the grid: at each of its points the given fields have the given values."""

    label: str
    points: tuple[Values, ...]

    @property
    def fields(self) -> list[str]:
        """Every field that one of the points sets, in order of appearance."""
        return list(dict.fromkeys(name for point in self.points for name in point))


@dataclass(frozen=True)
class Sweep:
    """Many runs.

    Attributes:
        name: The name that the runs are stored under.
        description: The purpose of the sweep.
        base: Fields that all points share, unless the grid sets them.
        grid: The axes; a point is a choice of one of each.
        exclude: Mappings; points that agree with all the fields of one of them are skipped.
        seeds: Seeds of each point; empty if base or grid set the seed, or nothing does.
        places: Places of values in the file, for errors: ``file:line`` by (field, value).
        exclude_places: Places of ``exclude``, as ``file:line``.
        plugins: Files, relative to the sweep's folder, and modules with components of the user's.
        text: The YAML, with a comment for each ``--set``; empty if it was not read from YAML.
        extends: The sweep that this one extends; empty for none.
    """

    name: str
    description: str = ""
    base: Values = field(default_factory=dict)
    grid: tuple[Axis, ...] = ()
    exclude: tuple[Values, ...] = ()
    seeds: tuple[int, ...] = ()
    places: Mapping[tuple[str, str], str] = field(default_factory=dict, compare=False, repr=False)
    exclude_places: tuple[str, ...] = field(default=(), compare=False, repr=False)
    plugins: tuple[str, ...] = ()
    text: str = field(default="", compare=False, repr=False)
    extends: str = field(default="", compare=False)

    @property
    def points(self) -> int:
        """The number of points with their seeds: of runs, if none is excluded and no two are one
        run.
        """
        return math.prod(len(axis.points) for axis in self.grid) * max(1, len(self.seeds))

    @property
    def runs(self) -> int:
        """The number of points with their seeds, without points that ``exclude`` names in the same
        spelling.
        """
        if not self.exclude:
            return self.points
        points = 0
        for chosen in itertools.product(*(axis.points for axis in self.grid)):
            point = {
                **self.base,
                **{name: text for values in chosen for name, text in values.items()},
            }
            points += not any(excluded.items() <= point.items() for excluded in self.exclude)
        return points * max(1, len(self.seeds))


def parse_sweep(text: str, source: str) -> Sweep:
    """Read a sweep written in YAML.

    Raises:
        SpecError: With every problem that is visible without building components, one line each:
            ``source:line: problem``.
    """
    return replace(Reading(source).sweep(read_mapping(text, source, KEYS)), text=text)


def plugins_in(text: str) -> list[str]:
    """Return the plugins that a sweep's or a search's text names; none if it is another text."""
    try:
        document = read_yaml(text, "")
    except SpecError:
        return []
    parts = document.pairs if isinstance(document, Pairs) else ()
    nodes = [node for word, node in parts if word.text == "plugins"]
    words = [word for node in nodes for word in (node.items if isinstance(node, Items) else [node])]
    return [word.text for word in words if isinstance(word, Word) and word.text]


def read_mapping(text: str, source: str, keys: Sequence[str]) -> Pairs:
    """Read a file with these keys as YAML; raise SpecError if it is not a mapping."""
    if len(text) > MOST_CHARACTERS:
        raise SpecError(
            f"{source}: it has more than {MOST_CHARACTERS:,} characters. Try: a shorter file"
        )
    document = read_yaml(text, source)
    if not isinstance(document, Pairs):
        raise SpecError(
            f"{source}:{document.line}: a sweep is a mapping with the keys {', '.join(keys)}"
        )
    return document


def name_problem(name: str) -> str | None:
    """Return the problem of a name of a sweep or a search; None if it is legal."""
    legal = SWEEP_NAME.fullmatch(name)
    return (
        None
        if legal
        else f"name {name!r} is not legal. Try: letters, digits, dots, underscores and hyphens, at "
        f"most {MOST_NAME}"
    )


def check_value(name: str, text: str, others: Sequence[str] = ()) -> None:
    """Raise SpecError unless ``name`` is a field and ``text`` a legal number or word for it."""
    infos, name = fields(), full_name(name)
    if name not in infos:
        raise SpecError(unknown_field(name, others))
    try:
        value = infos[name].parse(text)
    except (ValueError, KeyError, OverflowError):
        raise SpecError(f"{name}={text} is not legal; {name} must be {infos[name].legal}") from None
    if name == "lr_drop" and value is not None:
        parse_drops(value)


def unknown_field(name: str, others: Sequence[str] = ()) -> str:
    """Return the problem of a name that is neither a field nor one of ``others``."""
    legal = [*fields(), *others]
    field = ELSEWHERE.get(name)
    hint = f" (did you mean {field!r}?)" if field else did_you_mean(name, [*legal, *SHORT])
    return f"unknown field {name!r}{hint}; legal: {', '.join(legal)}"


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds in ``3`` or ``0..4``."""
    match = re.fullmatch(r"\s*([0-9]{1,30})\s*(?:\.\.\s*([0-9]{1,30})\s*)?", text)
    if match is None:
        raise SpecError(
            f"seeds={text} is not legal; it must be a seed, or FIRST..LAST such as 0..4"
        )
    first, last = int(match[1]), int(match[2] or match[1])
    if not first <= last < first + MOST_SEEDS:
        raise SpecError(
            f"seeds={text} is not legal; FIRST..LAST must rise, by less than {MOST_SEEDS:,}"
        )
    for seed in (first, last):
        check_value("seed", str(seed))
    return tuple(range(first, last + 1))


def too_many(what: str) -> str:
    """Return the problem of a sweep with too many points."""
    return f"it has {what}, and a sweep may have {MOST_RUNS:,} points; make several of it"


class Reading:
    """Turn nodes into a Sweep, and collect problems.

    Attributes:
        keys: Legal keys of the file.
        problems: The problems so far, one line each.
    """

    keys: Sequence[str] = KEYS

    def __init__(self, source: str) -> None:
        self.source = source
        self.problems: list[str] = []
        self.places: dict[tuple[str, str], str] = {}
        self.exclude_places: list[str] = []

    def sweep(self, document: Pairs) -> Sweep:
        """Return the sweep; raise SpecError with all problems."""
        sweep = self.assemble(document, self.parts(document))
        if self.problems:
            raise SpecError(self.problems)
        return sweep

    def parts(self, document: Pairs) -> dict[str, Node]:
        """Return the values of the legal keys."""
        parts: dict[str, Node] = {}
        for key, node in document.pairs:
            name = str(key.text)
            if name in self.keys:
                parts[name] = node
            else:
                self.refuse(
                    key.line,
                    f"unknown key {name!r}{did_you_mean(name, self.keys)}; legal: "
                    f"{', '.join(self.keys)}",
                )
        return parts

    def assemble(self, document: Pairs, parts: Mapping[str, Node]) -> Sweep:
        """Return the sweep as far as it is legal; the problems are collected."""
        name = self.text(parts["name"], "name") if "name" in parts else ""
        if "name" not in parts:
            self.refuse(document.line, "a sweep needs a name")
        elif name and (problem := name_problem(name)):
            self.refuse(parts["name"].line, problem)
        description = (
            self.text(parts["description"], "description") if "description" in parts else ""
        )
        plugins = self._plugins(parts["plugins"]) if "plugins" in parts else ()
        base = self.values(parts["base"], "base") if "base" in parts else {}
        grid = self.axes(parts["grid"]) if "grid" in parts else ()
        exclude = self._exclude(parts["exclude"]) if "exclude" in parts else ()
        seeds = self.seeds(parts["seeds"]) if "seeds" in parts else ()
        self._check_once(base, grid, parts)
        return Sweep(
            name,
            description,
            base,
            grid,
            exclude,
            seeds,
            self.places,
            tuple(self.exclude_places),
            plugins,
            extends=self.text(parts["extends"], "extends") if "extends" in parts else "",
        )

    def refuse(self, line: int, *problems: str) -> None:
        """Note problems in a line of the file."""
        self.problems += [f"{self.source}:{line}: {problem}" for problem in problems]

    def text(self, node: Node, name: str) -> str:
        """Return a text."""
        if isinstance(node, Word) and node.text is not None:
            return " ".join(node.text.split())
        self.refuse(node.line, f"{name} must be a text")
        return ""

    def _plugins(self, node: Node) -> tuple[str, ...]:
        """Return the files and modules that the sweep names."""
        words = node.items if isinstance(node, Items) else (node,)
        return tuple(filter(None, (self.text(word, "plugins") for word in words)))

    def values(self, node: Node, name: str) -> dict[str, str]:
        """Return the fields of a mapping."""
        if not isinstance(node, Pairs):
            self.refuse(node.line, f"{name} must be a mapping, field: value")
            return {}
        given = [
            (key.text, key.line, self.value(key.text, value))
            for key, value in node.pairs
            if key.text
        ]
        return self._canonical({key: text for key, _, text in given if text is not None}, node.line)

    def _canonical(self, values: Values, line: int) -> dict[str, str]:
        """Return values by the full names of their fields, with their places."""
        try:
            texts = canonical(values)
        except SpecError as error:
            self.refuse(line, *error.problems)
            return {}
        for name, text in texts.items():
            self.places.setdefault((name, text), f"{self.source}:{line}")
        return texts

    def value(self, name: str, node: Node) -> str | None:
        """Return the value of a field; None if it is not valid, with the problem noted."""
        line, name = node.line, full_name(name)
        if name not in fields():
            self.refuse(line, unknown_field(name) + (COMMA if "=" in name else ""))
            return None
        if not isinstance(node, Word):
            self.refuse(line, f"{name} takes one value here; a list belongs under grid")
            return None
        if node.text is None:
            self.refuse(
                line, f"{name} has no value. Try: without it, or auto for the task's default"
            )
            return None
        text = node.text.strip()
        if re.fullmatch(r"\w+=[^:]*", text):
            self.refuse(line, f"{name}={text} is not legal{COMMA}")
            return None
        try:
            check_value(name, text)
        except SpecError as error:
            self.refuse(line, *error.problems)
            return None
        self.places.setdefault((name, text), f"{self.source}:{line}")
        return text

    def axes(self, node: Node, what: str = "grid") -> tuple[Axis, ...]:
        """Return the axes of ``grid``, or of another key of this form."""
        if not isinstance(node, Pairs):
            self.refuse(node.line, f"{what} must be a mapping, field: [value, value, ...]")
            return ()
        axes = []
        for key, listed in node.pairs:
            name = str(key.text)
            if not isinstance(listed, Items) or not listed.items:
                self.refuse(
                    listed.line,
                    f"{name} must be a list with at least one value, such as [value, value]",
                )
            else:
                points = tuple(self._point(name, item) for item in listed.items)
                axes.append(Axis(name, tuple(point for point in points if point)))
        return tuple(axes)

    def _point(self, label: str, node: Node) -> dict[str, str]:
        """Return one point of an axis: a mapping of fields, or a value of the field that names the
        axis.
        """
        if isinstance(node, Pairs):
            return self.values(node, label)
        if full_name(label) not in fields():
            self.refuse(
                node.line, f"{unknown_field(label)}; only a list of mappings may have another name"
            )
            return {}
        text = self.value(label, node)
        return {} if text is None else self._canonical({label: text}, node.line)

    def _exclude(self, node: Node) -> tuple[Values, ...]:
        if not isinstance(node, Items):
            self.refuse(node.line, "exclude must be a list of mappings, field: value")
            return ()
        exclusions = []
        for item in node.items:
            values = self.values(item, "a point to exclude")
            exclusions.append(values)
            self.exclude_places.append(f"{self.source}:{item.line}")
            if isinstance(item, Pairs) and not item.pairs:
                self.refuse(
                    item.line, "a point to exclude must name a field; this would leave out all"
                )
            for name, text in values.items():
                if fields()[name].parse(text) is None:
                    self.refuse(
                        item.line,
                        f"{name}={text} cannot be excluded. Try: the value that it stands for",
                    )
        return tuple(exclusions)

    def seeds(self, node: Node) -> tuple[int, ...]:
        """Return the seeds in a seed, FIRST..LAST, or a list of them."""
        words = node.items if isinstance(node, Items) else (node,)
        seeds: list[int] = []
        for word in words:
            try:
                if not isinstance(word, Word) or word.text is None:
                    raise SpecError(
                        "seeds must be a seed, a list of seeds, or FIRST..LAST such as 0..4"
                    )
                seeds += parse_seeds(word.text)
                if len(seeds) > MOST_RUNS:
                    self.refuse(word.line, too_many(f"{len(seeds):,} seeds so far"))
                    break
            except SpecError as error:
                self.refuse(word.line, *error.problems)
        if not words:
            self.refuse(node.line, "seeds is empty. Try: no seeds, which is seed 0")
        return tuple(dict.fromkeys(seeds))

    def _check_once(self, base: Values, grid: tuple[Axis, ...], parts: Mapping[str, Node]) -> None:
        """Refuse a field that two places set, because one of them would have no effect."""
        owners: dict[str, str] = {}
        for axis in grid:
            for name in axis.fields:
                if name in owners:
                    where = f"under {owners[name]!r} and under {axis.label!r}"
                    self.refuse(
                        parts["grid"].line, f"grid varies {name} twice, {where}. Try: one of them"
                    )
                owners[name] = axis.label
                if name in base and all(name in point for point in axis.points):
                    self.refuse(
                        parts["base"].line,
                        f"base sets {name}, and so does every point of {axis.label!r} in grid",
                    )
        if "seeds" in parts and ("seed" in base or "seed" in owners):
            self.refuse(
                parts["seeds"].line, "seeds are given, and base or grid set seed. Try: one of them"
            )
