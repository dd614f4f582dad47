"""Common parts of the plots of any runs: which column is shown where, and names of series."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd
from matplotlib.colors import is_color_like
from sqlalchemy import Engine

from dynabro_cli.answers.analysis.columns import (
    COLUMNS,
    RULE,
    TUNING,
    column_of,
    is_number,
    method_names,
    name_of,
    naming,
    ordered,
    problem_fields,
    short,
    text_of,
    titled,
    whole_rule,
    with_columns,
)
from dynabro_cli.answers.figures._api import Choice
from dynabro_cli.answers.figures._style import Line, looks
from dynabro_cli.core.errors import SpecError
from dynabro_cli.experiment.effect import MET, READING
from dynabro_cli.runs.store.read.queries import query, sweeps_condition
from dynabro_cli.runs.store.tables import HAS_RESULT
from dynabro_cli.runs.store.views import RULE as WITH_RULE

MOST_PANELS, MOST_SERIES = 12, 16


class Series(NamedTuple):
    """Things with a colour: the runs with a column ``series``, the words and the look of each, and
    the title of the legend, whose fields are ``parts``.
    """

    runs: pd.DataFrame
    labels: dict[str, str]
    lines: dict[str, Line]
    title: str
    parts: list[str]


def too_many(count: int) -> SpecError:
    """Return the error of more series than can be distinguished."""
    return SpecError(
        f"the runs differ in {count} ways, and {MOST_SERIES} lines can be distinguished; narrow "
        "them with --where, or show a column with --facet"
    )


def refuse_too_many(engine: Engine, where: str | None, sweeps: Sequence[str]) -> None:
    """Raise ``too_many`` for runs that no panels could show, before they are read.

    What an adversary is called does not count, because some names have the same effect.
    """
    names = ", ".join(name for name in COLUMNS if name not in MET)
    condition = f"{HAS_RESULT} AND ({sweeps_condition(engine, where, sweeps) or 'TRUE'})"
    kinds = f"SELECT DISTINCT {names}, {WITH_RULE} FROM runs WHERE {condition}"
    ((count,),) = query(engine, f"SELECT COUNT(*) FROM ({kinds}) AS kinds").rows
    if count > MOST_PANELS * MOST_SERIES:
        raise too_many(count)


def whole_rules(runs: pd.DataFrame, choice: Choice) -> Choice:
    """Return a choice that shows the rule in place of an aggregator; see ``whole_rule``."""
    given = (choice.x, choice.hue, choice.facet)
    x, hue, facet = (name and whole_rule(name, runs, given) for name in given)
    return dataclasses.replace(choice, x=x, hue=hue, facet=facet)


def series_of(
    runs: pd.DataFrame, choice: Choice, hue: str | None, shown: Sequence[str | None]
) -> Series:
    """Name the series: the value of ``hue``, and of everything else in which runs differ and that
    is not shown.

    So a line is always a mean over seeds only.

    Raises:
        SpecError: There are too many series to distinguish.
    """
    given = [name for name in (*shown, hue) if name]
    already = [*given, *(("pre_aggregators", "aggregator") if RULE in given else ())]
    problem = problem_fields(runs, given)
    rest = naming(runs, [*already, *problem])
    parts = [*dict.fromkeys([*([hue] if hue else []), *problem, *rest])]
    texts = [
        method_names(runs)
        if name == "method"
        else runs[name].map(lambda value, name=name: text_of(name, value))
        for name in parts
    ]
    names = (
        [", ".join(words) for words in zip(*texts, strict=True)]
        if texts
        else ["all runs"] * len(runs)
    )
    named = runs.assign(series=names)
    raw = dict(
        zip(
            named["series"],
            named[hue].map(str) if hue and len(parts) == 1 else named["series"],
            strict=True,
        )
    )
    if len(raw) > MOST_SERIES:
        raise too_many(len(raw))
    places = choice.arranged(list(dict.fromkeys(names)), raw)
    labels = {name: short(choice.label(raw[name], name)) for name in places}
    lines = looks({name: name for name in places})
    chosen = {name: choice.colour(raw[name], name) for name in places}
    if wrong := [colour for colour in chosen.values() if colour and not is_color_like(colour)]:
        raise SpecError(f"colour={wrong[0]}: not a colour. Try: a name such as red, or #D55E00")
    lines = {name: line._replace(color=chosen[name] or line.color) for name, line in lines.items()}
    return Series(named, labels, lines, ", ".join(name_of(name) for name in parts), parts)


def chosen(runs: pd.DataFrame, choice: Choice) -> tuple[str, Choice]:
    """Choose a plot of some sweeps' runs, and what it shows where: fields of the grids, never one
    that follows from others.

    Numbers are along the axis, or else the adversary; the compared thing, methods or rules, has the
    colour.
    """
    several = ["sweep"] if runs["sweep"].nunique() > 1 else []
    runs = with_columns(runs, (*several, choice.x, choice.hue, choice.facet))
    given = {choice.x, choice.hue, choice.facet}
    needed = naming(runs, ["seed"])
    free = [name for name in (*needed, *several) if name not in given]
    if not free and choice.x is None:
        return "curves", choice

    def take(wanted: str | None, among: Sequence[str]) -> str | None:
        """Return the given column, or the first of those that vary and are not shown yet."""
        if wanted is not None:
            return wanted
        first = next((name for name in among if name in free), None)
        if first is not None:
            free.remove(first)
        return first

    numbers = [name for name in free if is_number(runs, name)]
    x = take(
        choice.x,
        [
            *(["switching"] if "switching" in numbers else []),
            *numbers,
            "attack",
            "switching",
            RULE,
            *needed,
        ],
    )
    hue = take(
        choice.hue, ["method", RULE, "aggregator", "pre_aggregators", *TUNING, *needed, *several]
    )
    rest = ["task", RULE, "aggregator", "pre_aggregators", "attack", "switching"]
    facet = take(choice.facet, [*several, READING, *rest, *needed])
    return "final", dataclasses.replace(
        choice, x=x or "method", hue=hue if x else None, facet=facet
    )


def panels_of(
    runs: pd.DataFrame, numbers: pd.DataFrame, facet: str | None, choice: Choice
) -> list[tuple[str, pd.DataFrame, pd.DataFrame]]:
    """Return the title of each panel, its runs, and its rows of ``numbers``.

    Raises:
        SpecError: There are too many panels to read.
    """
    if facet is None:
        return [("", runs, numbers)]
    values = choice.arranged(ordered(runs, facet))
    if len(values) > MOST_PANELS:
        raise SpecError(
            f"facet={facet} has {len(values)} values, and {MOST_PANELS} panels can be read. "
            "Try: --where"
        )
    return [
        (
            choice.label(value, titled(runs, facet, value)),
            *(frame[frame[facet] == value] for frame in (runs, numbers)),
        )
        for value in values
    ]


def apart(**shown: str | None) -> None:
    """Raise SpecError if two options show the same column."""
    options: dict[str, str] = {}
    for option, column in shown.items():
        if column is not None and column in options:
            raise SpecError(
                f"{option}={column}: --{options[column]} shows this column. Try: another "
                "column for one of them"
            )
        if column is not None:
            options[column] = option


def default_facet(
    runs: pd.DataFrame, choice: str | None, shown: Sequence[str | None]
) -> str | None:
    """Return the requested facet, or the task or the attack's reading if there are several."""
    if choice is not None:
        return column_of("facet", choice)
    return next(
        (name for name in ("task", READING) if name not in shown and runs[name].nunique() > 1), None
    )
