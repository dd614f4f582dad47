"""Comparison of the code and data that stored runs were made with, and the current ones."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dynabro_cli.core.registration.digests import DATA, ENGINE, at_hand, parse, today

MOST_SHOWN = 4


def data_at_hand(folder: Path | None = None) -> Callable[[str], str | None]:
    """Return a function that returns the current digest of a task's data; None if the data are not
    at hand.

    The function looks at the files of each task once, so one command has one answer.

    Args:
        folder: The folder of data sets; None for the usual one.
    """

    @functools.cache
    def digest_of(task: str) -> str | None:
        # imported late, because only data that are read need torch
        from dynabro_cli.experiment import data

        return data.at_hand(task, folder)

    return digest_of


def changed(text: str | None, data: Callable[[str], str | None] | None = None) -> tuple[str, ...]:
    """Return what is different now: names of components, ``engine``, and names of data
    (``data/TASK``), in order.

    Unknown digests, then or now, do not count as changed.

    Args:
        text: The run's value of ``code_digests``.
        data: From ``data_at_hand``; by default of the usual folder.
    """
    stored = today(parse(text) or {})
    data = data or data_at_hand()
    now = {
        name: data(name.removeprefix(DATA)) if name.startswith(DATA) else at_hand(name)
        for name in stored
    }
    return tuple(sorted(name for name, digest in stored.items() if now[name] not in (None, digest)))


def changed_components(
    text: str | None, data: Callable[[str], str | None] | None = None
) -> tuple[str, ...]:
    """Return ``changed`` without ``engine``."""
    return tuple(name for name in changed(text, data) if name != ENGINE)


@dataclass(frozen=True)
class CodeComparison:
    """Comparison of the code and data of stored runs with the current ones.

    Attributes:
        runs: Number of runs.
        changed: Number of runs with a changed component.
        components: Number of runs by changed component.
        engine: Number of runs with another engine.
        unknown: Number of runs without digests.
        changed_data: Number of runs with other data.
        data: Number of these runs by task, or by model after ``models/``.
        versions: Number of versions of a task's data among the runs, by task, if there are several.
    """

    runs: int = 0
    changed: int = 0
    components: dict[str, int] = field(default_factory=dict)
    engine: int = 0
    unknown: int = 0
    changed_data: int = 0
    data: dict[str, int] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)

    @property
    def line(self) -> str | None:
        """The differences in one line; None if there are no differences."""
        parts = []
        for what, number, counts in (
            ("with other code", self.changed, self.components),
            ("with other data", self.changed_data, self.data),
        ):
            if number:
                parts.append(
                    f"{what}: {number} of {self.runs} "
                    f"({_listed(f'{name}: {n}' for name, n in counts.items())})"
                )
        if self.engine:
            parts.append(f"with another version of the engine: {self.engine} of {self.runs}")
        return f"stored runs made {'; '.join(parts)}" if parts else None

    def lines(self, advice: str = "") -> list[str]:
        """Return the line of the differences, and the line of data that differ among the runs.

        Args:
            advice: What to type if components or data have changed.
        """
        advised = f"; {advice}" if advice and (self.changed or self.changed_data) else ""
        lines = (self.line and self.line + advised, mixture(self.versions))
        return [line for line in lines if line]


def _listed(names: Iterable[str]) -> str:
    parts = list(names)
    return ", ".join(parts[:MOST_SHOWN]) + (
        f", and {len(parts) - MOST_SHOWN} more" if len(parts) > MOST_SHOWN else ""
    )


def compare(texts: Iterable[tuple[str | None, int]], folder: Path | None = None) -> CodeComparison:
    """Compare values of ``code_digests``, each with its number of runs, with the current code and
    data.

    Args:
        texts: The values.
        folder: The folder of data sets; None for the usual one.
    """
    counts: Counter[str | None] = Counter()
    for text, count in texts:
        counts[text] += count
    components: Counter[str] = Counter()
    data: Counter[str] = Counter()
    different = engine = unknown = different_data = 0
    at_hand_now = data_at_hand(folder)
    for text, count in counts.items():
        names = changed(text, at_hand_now)
        unknown += count * (parse(text) is None)
        engine += count * (ENGINE in names)
        tasks = [name.removeprefix(DATA) for name in names if name.startswith(DATA)]
        others = [name for name in names if name != ENGINE and not name.startswith(DATA)]
        different += count * bool(others)
        different_data += count * bool(tasks)
        components.update(dict.fromkeys(others, count))
        data.update(dict.fromkeys(tasks, count))
    by_name = dict(components.most_common()), dict(data.most_common())
    return CodeComparison(
        counts.total(),
        different,
        by_name[0],
        engine,
        unknown,
        different_data,
        by_name[1],
        versions(counts),
    )


def versions(texts: Iterable[str | None]) -> dict[str, int]:
    """Return the number of versions of each task's data in values of ``code_digests``, if there are
    several.
    """
    by_task: dict[str, set[str]] = {}
    for text in texts:
        for name, digest in (parse(text) or {}).items():
            if name.startswith(DATA):
                by_task.setdefault(name.removeprefix(DATA), set()).add(digest)
    return {task: len(digests) for task, digests in sorted(by_task.items()) if len(digests) > 1}


def mixture(data: Mapping[str, int]) -> str | None:
    """Return ``versions`` in one line; None if no task's data have several versions."""
    parts = _listed(f"{count} versions of the data of {task}" for task, count in data.items())
    return (
        f"these runs were made with {parts}, which no mean or comparison should mix"
        if parts
        else None
    )
