"""The space of a search: choices of fields, whose texts may have ranges such as
``ipm:epsilon={0.05..20 log}``.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dynabro_cli.core.errors import SpecError, did_you_mean
from dynabro_cli.core.registration import format_value
from dynabro_cli.core.registration.parameters import parse_number
from dynabro_cli.experiment.grid.sweep_file import Axis, Values

RANGE = re.compile(r"\{([^{}]*)\}")
ENDS = re.compile(r"(.+?)\.\.(.+)")
WORDS = ("log", "int")
EXAMPLE = "{0.05..20}, {0.05..20 log} or {1..200 int log}"
DIGITS = 6
"""Significant digits of a proposed number: a spec that a person can type again."""


class Suggests(Protocol):
    """The part of ``optuna.Trial`` that makes choices."""

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> str:
        """Choose one of several texts."""
        ...

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        """Choose a number."""
        ...

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int:
        """Choose a whole number."""
        ...


class Stored:
    """The parameters of a stored trial, as choices; ValueError if one is not in the space.

    Attributes:
        unused: Names of the parameters that have not been asked for.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self._parameters, self.unused = parameters, set(parameters)

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> str:
        """Return the text."""
        return str(self._checked(name, lambda value: value in choices))

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        """Return the number."""
        return float(self._checked(name, lambda value: low <= value <= high, int, float))

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int:
        """Return the whole number."""
        return int(self._checked(name, lambda value: low <= value <= high, int))

    def _checked(self, name: str, legal: Callable[[Any], bool], *kinds: type) -> Any:
        value = self._parameters.get(name)
        if type(value) not in (kinds or (str,)) or not legal(value):
            raise ValueError(f"parameter {name} is missing, or is not in the search space")
        self.unused.discard(name)
        return value


@dataclass(frozen=True)
class Range:
    """The numbers from ``low`` to ``high``, both included; uniform in the logarithm with ``log``;
    whole with ``whole``.
    """

    low: float
    high: float
    log: bool = False
    whole: bool = False

    @classmethod
    def parse(cls, text: str) -> Range:
        """Read the text between the braces; raise SpecError with its problem."""
        first, *words = text.split() or [""]
        shown, match = f"{{{text}}}", ENDS.fullmatch(first)
        wrong = [word for word in words if word not in WORDS]
        if wrong:
            hint = did_you_mean(wrong[0], WORDS)
            raise SpecError(
                f"range {shown}: unknown word {wrong[0]!r}{hint}; legal: {', '.join(WORDS)}. "
                f"Try: {EXAMPLE}"
            )
        try:
            low, high = (
                (parse_number(end) for end in match.groups()) if match else (math.nan, math.nan)
            )
        except ValueError:
            match = None
        if match is None:
            raise SpecError(f"range {shown}: it has no numbers LOW..HIGH. Try: {EXAMPLE}")
        kind = "".join(f" {word}" for word in words)
        low_text, high_text = format_value(low), format_value(high)
        if low >= high:
            raise SpecError(
                f"range {shown}: {low_text} is not below {high_text}. Try: "
                f"{{{high_text}..{low_text}{kind}}}"
            )
        if "log" in words and low <= 0:
            above = format_value(high / 1000) if high > 0 else "0.001"
            raise SpecError(
                f"range {shown}: log needs numbers above 0. Try: "
                f"{{{above}..{high_text if high > 0 else 1}{kind}}}"
            )
        if "int" in words and not (low.is_integer() and high.is_integer()):
            raise SpecError(
                f"range {shown}: int needs whole numbers. Try: "
                f"{{{math.ceil(low)}..{math.floor(high)}{kind}}}"
            )
        return cls(low, high, "log" in words, "int" in words)

    def suggest(self, trial: Suggests, name: str) -> str:
        """Return a proposed number as a text."""
        if self.whole:
            return str(trial.suggest_int(name, int(self.low), int(self.high), log=self.log))
        return self.text(trial.suggest_float(name, self.low, self.high, log=self.log))

    def text(self, value: float) -> str:
        """Return a number of the range, rounded, as a text."""
        # the rounded number of an end with more digits may lie outside of the range
        return format_value(min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high))

    def number(self, text: str) -> float | int | None:
        """Return the number that a text stands for; None if it is not a number of the range."""
        try:
            value = parse_number(text)
        except ValueError:
            return None
        if not self.low <= value <= self.high or (self.whole and not value.is_integer()):
            return None
        return int(value) if self.whole else value

    @property
    def probes(self) -> tuple[str, str, str]:
        """Both ends, and a number between them that is not whole unless the range is."""
        # the square root of 2, minus 1: half of the range is often a whole number
        middle = self.low + (self.high - self.low) * 0.41421356
        return (
            self.text(self.low),
            self.text(self.high),
            self.text(round(middle) if self.whole else middle),
        )


@dataclass(frozen=True)
class Entry:
    """One alternative of an axis: texts of fields, with their ranges by the names that importances
    and plots show.
    """

    label: str
    texts: Values
    names: Mapping[str, tuple[str, ...]]
    ranges: Mapping[str, tuple[Range, ...]]

    def filled(self, numbers: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Return the texts with numbers in place of the ranges, by field."""
        texts = {}
        for field, text in self.texts.items():
            given = iter(numbers[field])
            texts[field] = RANGE.sub(lambda _, given=given: next(given), text)  # type: ignore[misc]
        return texts

    def chosen(self, trial: Suggests) -> dict[str, str]:
        """Return the texts with proposed numbers."""
        named = {
            field: zip(self.ranges[field], self.names[field], strict=True) for field in self.texts
        }
        return self.filled(
            {
                field: [range_.suggest(trial, name) for range_, name in pairs]
                for field, pairs in named.items()
            }
        )

    def numbers(self, point: Values) -> dict[str, float | int] | None:
        """Return the numbers that ``point`` has in place of the ranges, by name; None if the entry
        does not have it.
        """
        values: dict[str, float | int] = {}
        if set(point) != set(self.texts):
            return None
        for field, text in self.texts.items():
            pattern = r"([^,+]+)".join(re.escape(part) for part in RANGE.split(text)[::2])
            match = re.fullmatch(pattern, point[field])
            if match is None:
                return None
            for name, range_, number in zip(
                self.names[field], self.ranges[field], match.groups(), strict=True
            ):
                value = range_.number(number)
                if value is None:
                    return None
                values[name] = value
        return values

    def probe(self, which: int) -> dict[str, str]:
        """Return the texts at the low ends (0), the high ends (1), or between them (2)."""
        return self.filled(
            {field: [range_.probes[which] for range_ in self.ranges[field]] for field in self.texts}
        )


@dataclass(frozen=True)
class SpaceAxis:
    """An axis of the space: a name, and its entries."""

    label: str
    entries: tuple[Entry, ...]

    def parameters(self, point: Values) -> dict[str, str | float | int] | None:
        """Return the sampler's parameters of a choice with these texts; None if no entry has it."""
        for entry in self.entries:
            if (numbers := entry.numbers(point)) is not None:
                return (
                    {self.label: entry.label, **numbers} if len(self.entries) > 1 else dict(numbers)
                )
        return None

    def chosen(self, trial: Suggests) -> dict[str, str]:
        """Return the fields of a proposed entry."""
        if len(self.entries) == 1:
            return self.entries[0].chosen(trial)
        label = trial.suggest_categorical(self.label, [entry.label for entry in self.entries])
        return next(entry for entry in self.entries if entry.label == label).chosen(trial)


@dataclass(frozen=True)
class Space:
    """All axes of a search."""

    axes: tuple[SpaceAxis, ...]

    def chosen(self, trial: Suggests) -> dict[str, str]:
        """Return the fields of a proposal, by name."""
        texts: dict[str, str] = {}
        for axis in self.axes:
            texts |= axis.chosen(trial)
        return texts

    def parameters(self, point: Values) -> dict[str, str | float | int]:
        """Return the sampler's parameters of a proposal with these texts; axes of which ``point``
        has no field are left out.

        Raises:
            SpecError: The space does not have this choice.
        """
        parsed: dict[str, str | float | int] = {}
        remaining = dict(point)
        for axis in self.axes:
            fields = {field for entry in axis.entries for field in entry.texts}
            texts = {field: remaining.pop(field) for field in sorted(fields & remaining.keys())}
            parameters = axis.parameters(texts) if texts else {}
            if parameters is None:
                shown = ", ".join(f"{field}={text}" for field, text in texts.items())
                labels = ", ".join(entry.label for entry in axis.entries)
                raise SpecError(
                    f"{shown} is not in the search space; legal: {labels}, with a number in "
                    "place of each range"
                )
            parsed |= parameters
        if remaining:
            raise SpecError(
                f"search does not vary {next(iter(remaining))}. Try: fields of the search space"
            )
        return parsed

    def stored(self, parameters: Mapping[str, Any]) -> dict[str, str]:
        """Return the fields of a stored trial, by name.

        Raises:
            ValueError: The parameters are not exactly the parameters of a choice from this space.
        """
        choices = Stored(parameters)
        texts = self.chosen(choices)
        if choices.unused:
            raise ValueError("there is a parameter that the search does not have")
        return texts

    @property
    def has_ranges(self) -> bool:
        return any(
            ranges
            for axis in self.axes
            for entry in axis.entries
            for ranges in entry.ranges.values()
        )

    @property
    def always(self) -> int:
        """The number of ranges that every proposal has."""
        single = [axis.entries[0] for axis in self.axes if len(axis.entries) == 1]
        return sum(len(ranges) for entry in single for ranges in entry.ranges.values())

    @property
    def size(self) -> int:
        """The number of combinations of entries."""
        return math.prod(len(axis.entries) for axis in self.axes)

    def combinations(self) -> Iterator[tuple[Entry, ...]]:
        """Yield every combination of entries; the last axis varies fastest."""
        return itertools.product(*(axis.entries for axis in self.axes))


def space_of(axes: Sequence[Axis]) -> Space:
    """Return the space of some axes whose texts may have ranges.

    Raises:
        SpecError: A range is not valid, or an axis has the name of another axis's range.
    """
    space_axes = tuple(map(_space_axis, axes))
    for axis in space_axes:
        others = (entry for other in space_axes if other is not axis for entry in other.entries)
        if len(axis.entries) > 1 and any(
            axis.label in names for entry in others for names in entry.names.values()
        ):
            raise SpecError(
                f"search: an axis and a range are both named {axis.label}. Try: another name "
                "for the axis"
            )
    return Space(space_axes)


def _space_axis(axis: Axis) -> SpaceAxis:
    entries = []
    # Optuna keeps one number for each name, so two ranges share a name only if they are equal and
    # in different entries; the names are in stored trials, which can be resumed only if they stay
    taken: dict[str, Range | None] = {axis.label: None} if len(axis.points) > 1 else {}
    for place, point in enumerate(axis.points, 1):
        alone = list(point) == [axis.label]
        label = (
            next(iter(point.values()))
            if alone
            else ", ".join(f"{field}={text}" for field, text in point.items())
        )
        ranges, names = {}, {}
        for field, text in point.items():
            ranges[field] = tuple(Range.parse(match[1]) for match in RANGE.finditer(text))
            listed = list[str]()
            for match in RANGE.finditer(text):
                name = _name(field, text[: match.start()])
                numbered = (f"{name}.{n}" for n in itertools.count(2))
                listed.append(
                    name
                    if name not in listed
                    else next(fresh for fresh in numbered if fresh not in listed)
                )
            fresh = all(
                taken.setdefault(name, range_) == range_
                for name, range_ in zip(listed, ranges[field], strict=True)
            )
            names[field] = tuple(listed if fresh else [f"{name}#{place}" for name in listed])
        entries.append(Entry(label, point, names, ranges))
    return SpaceAxis(axis.label, tuple(entries))


def _name(field: str, before: str) -> str:
    """Name a range by its field, component and parameter: ``attack.ipm.epsilon``; ``before`` is the
    text to its left.
    """
    key = re.search(r"(\w+)=[^,+]*$", before)
    component = re.search(r"([\w-]+):[^:+]*$", before)
    return ".".join([field, *(match[1] for match in (component, key) if match)])
