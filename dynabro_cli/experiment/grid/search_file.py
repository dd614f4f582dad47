"""A search's file: a sweep's file with a space to search. Reading, setting of values, writing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dynabro_cli.core.errors import SpecError, did_you_mean
from dynabro_cli.core.limits import MOST_CHARACTERS
from dynabro_cli.core.registration import parse_whole
from dynabro_cli.experiment.grid.goals import GOALS
from dynabro_cli.experiment.grid.search import SEEDS, Search, Then
from dynabro_cli.experiment.grid.search_space import RANGE, space_of
from dynabro_cli.experiment.grid.strict_yaml import Items, Node, Pairs, Word, as_yaml
from dynabro_cli.experiment.grid.sweep_file import (
    KEYS,
    Axis,
    Reading,
    Sweep,
    Values,
    check_value,
    read_mapping,
)
from dynabro_cli.experiment.grid.sweep_lookup import (
    read_file,
    read_settings,
    shipped,
    with_plugins,
    with_values,
    without,
)

SEARCH_KEYS = (
    *(key for key in KEYS if key != "extends"),
    *"search first minimize maximize trials sampler sampler_seed pruner then diverged".split(),
)
DIRECTIONS = ("minimize", "maximize")
SAMPLERS = ("tpe", "random", "cmaes", "grid")
PRUNERS = ("none", "median", "successive-halving", SEEDS)
DIVERGED = ("worst", "skip")
MOST_TRIALS = 100_000
CHANGEABLE = "description plugins grid first trials sampler sampler_seed pruner then".split()
"""Keys of a search's file that may change while trials are added."""
SETTABLE = ("trials", "sampler", "sampler_seed", "pruner")
"""Keys that ``--set`` can set."""


class _Reading(Reading):
    """Turn nodes into a Search, and collect problems."""

    keys = SEARCH_KEYS

    def __init__(self, source: str) -> None:
        super().__init__(source)
        # True while the base class reads the axes of search: value() then allows ranges
        self._searching = False

    def search(self, document: Pairs) -> Search:
        """Return the search; raise SpecError with all problems."""
        parts = self.parts(document)
        sweep = self.assemble(document, parts)
        axes = self._space(parts["search"]) if "search" in parts else ()
        if not axes and not ("search" in parts and self.problems):
            self.refuse(
                document.line,
                "a search needs a space. Try: search: {attack: [sf, 'ipm:epsilon={0.05..20 log}']}",
            )
        self._check_apart(sweep, axes, parts)
        directions = [name for name in DIRECTIONS if name in parts]
        if len(directions) != 1:
            self.refuse(document.line, "a search needs one goal. Try: minimize: final_accuracy")
        goal = self._word(parts, directions[0], tuple(GOALS), "") if directions else ""
        sampler = self._word(parts, "sampler", SAMPLERS, "tpe")
        whole = Search(
            sweep,
            axes,
            goal,
            directions == ["maximize"],
            self._whole(parts, "trials", 1, MOST_TRIALS),
            sampler,
            self._whole(parts, "sampler_seed", 0, 2**31 - 1) or 0,
            self._word(parts, "pruner", PRUNERS, "none"),
            self._then(parts["then"]) if "then" in parts else None,
            self._word(parts, "diverged", DIVERGED, "worst"),
            self._first(parts["first"]) if "first" in parts else (),
        )
        if "trials" not in parts and sampler != "grid":
            self.refuse(document.line, "a search needs a number of trials. Try: trials: 200")
        if not self.problems:
            try:
                self._check_sampler(whole, parts)
                self._check_first(whole, parts)
            except SpecError as error:
                self.refuse(parts["search"].line, *error.problems)
        if self.problems:
            raise SpecError(self.problems)
        return whole

    def _space(self, node: Node) -> tuple[Axis, ...]:
        """Return the axes of ``search``; a range may stand alone, without quotes and without a
        list.
        """
        if isinstance(node, Pairs):
            node = Pairs(tuple((key, _listed(value)) for key, value in node.pairs), node.line)
        self._searching = True
        axes = self.axes(node, "search")
        self._searching = False
        return axes

    def value(self, name: str, node: Node) -> str | None:
        """Return the value of a field; in the space it may have ranges, whose ends must be legal
        numbers.
        """
        text = (node.text or "") if self._searching and isinstance(node, Word) else ""
        if "{" not in text and "}" not in text:
            return super().value(name, node)
        if not RANGE.search(text):
            self.refuse(
                node.line,
                f"{name}={text}: a brace is not closed. Try: a range such as {{0.05..20 log}}",
            )
            return None
        try:
            entry = space_of([Axis(name, ({name: text},))]).axes[0].entries[0]
            for which in range(3):
                check_value(name, entry.probe(which).get(name, ""))
        except SpecError as error:
            self.refuse(node.line, *error.problems)
            return None
        self.places.setdefault((name, text), f"{self.source}:{node.line}")
        return text

    def _check_apart(self, sweep: Sweep, axes: Sequence[Axis], parts: Mapping[str, Node]) -> None:
        """Refuse a field that is fixed and searched, or searched twice."""
        fixed = dict.fromkeys(sweep.base, "base") | {
            name: "grid" for axis in sweep.grid for name in axis.fields
        }
        for axis in axes:
            for name in axis.fields:
                if name in fixed:
                    self.refuse(
                        parts["search"].line,
                        f"search varies {name}, and so does {fixed[name]}. Try: one of them",
                    )
                fixed[name] = f"search under {axis.label!r}"
                if name == "seed":
                    self.refuse(
                        parts["search"].line,
                        "search varies seed: a trial is a mean over seeds. Try: seeds: 0..1",
                    )

    def _check_sampler(self, search: Search, parts: Mapping[str, Node]) -> None:
        line = (parts.get("sampler") or parts["search"]).line
        space = search.space
        if search.sampler == "grid" and space.has_ranges:
            self.refuse(
                line, "sampler=grid: search has ranges. Try: sampler: tpe, or lists of values"
            )
        if search.sampler == "cmaes" and space.always < 2:
            self.refuse(
                line, "sampler=cmaes: it needs two ranges that every trial has. Try: sampler: tpe"
            )

    def _first(self, node: Node) -> tuple[Values, ...]:
        if not isinstance(node, Items):
            self.refuse(
                node.line,
                "first must be a list of mappings, field: value. Try: first: [{attack: sf}]",
            )
            return ()
        return tuple(self.values(item, "first") for item in node.items)

    def _check_first(self, search: Search, parts: Mapping[str, Node]) -> None:
        node = parts.get("first")
        if search.sampler == "grid" and node is not None:
            self.refuse(
                node.line, "sampler=grid: it makes every combination, in their order. Try: no first"
            )
        for item, values in zip(
            node.items if isinstance(node, Items) else (), search.first, strict=True
        ):
            try:
                search.space.parameters(values)
            except SpecError as error:
                self.refuse(item.line, *(f"first: {problem}" for problem in error.problems))

    def _word(self, parts: Mapping[str, Node], key: str, legal: Sequence[str], default: str) -> str:
        if key not in parts:
            return default
        text = self.text(parts[key], key)
        if text and text not in legal:
            self.refuse(
                parts[key].line,
                f"{key}={text} is not legal{did_you_mean(text, legal)}. Try: {' or '.join(legal)}",
            )
        return text

    def _whole(self, parts: Mapping[str, Node], key: str, low: int, high: int) -> int | None:
        if key not in parts:
            return None
        text = self.text(parts[key], key)
        try:
            value = parse_whole(text)
        except ValueError:
            value = low - 1
        if text and not low <= value <= high:
            self.refuse(
                parts[key].line,
                f"{key}={text} is not legal. Try: a whole number from {low} to {high:,}",
            )
        return value

    def _then(self, node: Node) -> Then | None:
        parts = (
            {str(key.text): value for key, value in node.pairs} if isinstance(node, Pairs) else {}
        )
        legal = ("seeds", "best", "first")
        wrong = [name for name in parts if name not in legal]
        if "seeds" not in parts or wrong:
            what = (
                f"unknown key {wrong[0]!r}{did_you_mean(wrong[0], legal)}"
                if wrong
                else "it has no seeds"
            )
            self.refuse(node.line, f"then: {what}. Try: then: {{seeds: 0..4, best: 3}}")
            return None
        best, first = (
            self._whole(parts, name, low, 1000) for name, low in (("best", 1), ("first", 0))
        )
        return Then(self.seeds(parts["seeds"]), best or 1, first or 0)


def _listed(node: Node) -> Node:
    """Return a list for a single value; ``{1..3}`` without quotes, which YAML reads as a mapping,
    is a range.
    """
    if isinstance(node, Items):
        return Items(tuple(_as_range(item) for item in node.items), node.line)
    range_ = _as_range(node)
    return Items((range_,), node.line) if isinstance(range_, Word) else node


def _as_range(node: Node) -> Node:
    if isinstance(node, Pairs) and len(node.pairs) == 1:
        key, value = node.pairs[0]
        if isinstance(value, Word) and value.text is None:
            return Word(f"{{{key.text}}}", node.line)
    return node


def parse_search(text: str, source: str) -> Search:
    """Read a search written in YAML.

    Raises:
        SpecError: With every problem that is visible without building components, one line each:
            ``source:line: problem``.
    """
    return _Reading(source).search(read_mapping(text, source, SEARCH_KEYS))


def fixed_part(search: Search) -> dict[str, Any]:
    """Return a search's document without the keys that may change while trials are added."""
    return {key: value for key, value in as_document(search).items() if key not in CHANGEABLE}


def is_search(name: str) -> bool:
    """Return True if a name is a search of the program, or a file with a space to search."""
    if name in shipped("searches"):
        return True
    try:
        with Path(name).open(encoding="utf-8") as file:
            return any(
                line.startswith("search:") for line in file.read(MOST_CHARACTERS).splitlines()
            )
    except (OSError, ValueError):
        return False


def load_search(name: str, settings: Sequence[str] = (), *, run_plugins: bool = True) -> Search:
    """Read the search ``name``, load its plugins, then set fields: a file, one of the program, or
    ``-``.

    Args:
        name: The name; without folder and suffix, the program's own searches come first.
        settings: ``FIELD=VALUE``, or ``KEY=VALUE`` for trials, sampler, sampler_seed, pruner and
            seeds.
        run_plugins: As of ``with_plugins``.

    Raises:
        NotFoundError: There is no search of this name.
        PluginError: A plugin raised an exception.
        SpecError: With every problem.
    """
    text, source, folder = read_file(name, "searches")
    search = parse_search(text, source)
    return set_values(
        replace(search, sweep=with_plugins(search.sweep, folder, run_plugins)), settings
    )


def set_values(search: Search, settings: Sequence[str]) -> Search:
    """Set fields and keys of a search; a field that the grid varies stays an axis of the grid,
    because it names the searches.

    Raises:
        SpecError: With every setting that is not legal, one line each.
    """
    values = read_settings(settings, SETTABLE)
    searched = [name for name in values if any(name in axis.fields for axis in search.axes)]
    if searched:
        raise SpecError(
            [
                f"--set {name}: search varies {name}. Try: a file with another space"
                for name in searched
            ]
        )
    sweep = without(search.sweep, "seed") if "seeds" in values else search.sweep
    keys = {name: values.pop(name) for name in (*SETTABLE, "seeds") if name in values}
    document = as_document(replace(search, sweep=with_values(sweep, values, axes_stay=True)))
    document |= {name: texts if name == "seeds" else texts[-1] for name, texts in keys.items()}
    return parse_search(as_yaml(document), "--set") if settings else search


def as_document(search: Search) -> dict[str, Any]:
    """Return a search as the mapping that its file has, complete."""
    sweep, then = search.sweep, search.then
    optional = {
        "plugins": list(sweep.plugins),
        "grid": {axis.label: [dict(point) for point in axis.points] for axis in sweep.grid},
        "exclude": [dict(values) for values in sweep.exclude],
        "first": [dict(values) for values in search.first],
        "seeds": [str(seed) for seed in sweep.seeds],
        "trials": search.trials and str(search.trials),
        "then": then
        and {"seeds": [str(seed) for seed in then.seeds], "best": str(then.best)}
        | ({"first": str(then.first)} if then.first else {}),
    }
    return {
        "name": sweep.name,
        "description": sweep.description,
        "base": dict(sweep.base),
        "search": {axis.label: [dict(point) for point in axis.points] for axis in search.axes},
        "maximize" if search.maximize else "minimize": search.goal,
        "sampler": search.sampler,
        "sampler_seed": str(search.sampler_seed),
        "pruner": search.pruner,
        "diverged": search.diverged,
    } | {key: value for key, value in optional.items() if value}
