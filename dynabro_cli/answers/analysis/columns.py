"""Columns of ``runs`` in which runs differ, and how their values are named and ordered in pictures,
tables and reports; and the columns of a table that a user names.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from dynabro_cli.answers.analysis.diverged import DIVERGED, share
from dynabro_cli.answers.analysis.metrics import METRIC_PREFIX, METRICS, Metric
from dynabro_cli.core.errors import SpecError, did_you_mean, many
from dynabro_cli.core.registration import format_value
from dynabro_cli.experiment.effect import BASE, ENTRY, MET, READING, aligned, entry_words
from dynabro_cli.experiment.label import CELL, OTHERS, rule_of, telling_apart, without_parameter
from dynabro_cli.experiment.spec import CHAIN, COMPONENTS, fields, full_name

if TYPE_CHECKING:
    from dynabro_cli.answers.analysis.results import Results

COLUMNS = (
    *(name for name in (*CELL, *OTHERS) if name != "seed" and fields()[name].result),
    READING,
)
"""Columns of ``runs`` in which runs of one experiment can differ, besides the seed;
``with_columns`` adds the reading.
"""
PROBLEM = ("task", "model", "budget", "workers", "byzantine", "data", READING)
"""Fields of which a matrix, a line or a worst case has one value, unless the user shows them."""
TUNING = ("learning_rate", "lr_rule", "lr_drop", "weight_decay", "batch_size")
"""Settings of a defence."""
RULE = "rule"
"""Name of the chain of pre-aggregators with the aggregator, such as ``nnm+cwtm``."""
DELTA_MAX = "\N{GREEK SMALL LETTER DELTA}\u2098\u2090\u2093"
BETA = "\N{GREEK SMALL LETTER BETA}"
TASKS = {
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "digits": "digits",
    "quadratic": "quadratic",
    "image-folder:name=cifar10-jpeg,like=cifar10": "CIFAR-10 re-encoded as JPEG",
}
"""Names of tasks in titles."""
RULES = {"mean": "Mean", "cwmed": "CWMed", "cwtm": "CWTM", "gm": "GM"}
"""Names of aggregation rules in the paper."""
MOST_TOLD = 8
"""Most values of a field, and most things with one of them, that a caption lists."""
NAMES = {
    "pre_aggregators": "pre-aggregator",
    "lr_rule": "learning rate's rule",
    "lr_drop": "learning rate drops",
    "data": "partition",
}
"""Fields whose name for people is not the column's."""
SEPARATOR = re.compile(r",(?! )")
"""Columns of two fields have a comma with a space in their heads."""


def problem_fields(runs: pd.DataFrame, shown: Iterable[str]) -> list[str]:
    """Return the fields of the problem in which runs differ, also if they follow from a column of
    ``shown`` that is not one of them, such as a task per attack.
    """
    return naming(runs, [name for name in shown if name in PROBLEM], PROBLEM)


def name_of(column: str) -> str:
    """Return the name of a column for people."""
    return NAMES.get(column, column.replace("_", " "))


def split_columns(option: str, names: str | None) -> tuple[str, ...]:
    """Return the columns that an option names, separated by commas; ``rule`` stands for
    pre-aggregators and aggregator.

    Raises:
        SpecError: One of them is not a legal column.
    """
    columns = [column_of(option, name.strip()) for name in names.split(",")] if names else []
    return tuple(
        part
        for name in columns
        for part in (("pre_aggregators", "aggregator") if name == RULE else (name,))
    )


def column_of(
    option: str, name: str, legal: Sequence[str] = (*COLUMNS, "seed", "sweep", "rule")
) -> str:
    """Return ``name`` if it is a legal column for an option, or a parameter of a component, such as
    ``method.beta``.

    Raises:
        SpecError: ``name`` is not a legal column.
    """
    name = full_name(name)
    field, dot, _ = name.partition(".")
    if name not in legal and not (dot and field in COMPONENTS and COLUMNS[0] in legal):
        raise SpecError(
            f"{option}={name} is not a column to plot by{did_you_mean(name, legal)}; legal: "
            f"{', '.join(legal)}"
        )
    return name


def with_columns(runs: pd.DataFrame, names: Iterable[str | None]) -> pd.DataFrame:
    """Return the runs with a column for each parameter of a component, such as ``method.beta``.

    Runs that met the same adversary have the same attack; see ``beside``. If the attack has several
    readings, the column ``reading`` says where it acts and what it changes there, and the attack
    does not.

    A run whose component lacks the parameter is left out. Where a parameter has a column, the
    component's own text does not repeat it.

    Raises:
        SpecError: No run has the parameter.
    """
    shown = [name for name in names if name]
    runs = beside(runs, shown)
    if runs[READING].any():
        runs = runs.assign(attack=runs[BASE])
    for name in dict.fromkeys(name for name in shown if "." in name):
        field, _, key = name.partition(".")
        parameters = runs["spec"].map(lambda spec, field=field: _parameters(spec, field))
        values = parameters.map(lambda parsed, key=key: parsed.get(key))
        if values.isna().all():
            legal = sorted({f"{field}.{key}" for parsed in parameters for key in parsed})
            raise SpecError(
                f"{name}: no run here has this parameter{did_you_mean(name, legal)}. Try: "
                f"{', '.join(legal)}"
            )
        runs, values = runs[values.notna()], values.dropna()
        rest = runs[field].map(lambda text, key=key: without_parameter(text, key))
        specs = runs["spec"].map(
            lambda spec, field=field, key=key: {**spec, field: _without(spec, field, key)}
        )
        runs = runs.assign(**{name: values.infer_objects(), field: rest, "spec": specs})
        runs = runs.assign(rule=[rule_of(run) for run in runs.to_dict("records")])
    return runs


def beside(runs: pd.DataFrame, shown: Sequence[str] = ()) -> pd.DataFrame:
    """Return the runs with the attack, its entry and the clock under which they are shown; see
    ``experiment.effect.aligned``.

    A run on which these have no effect is there once for each adversary that the others met. Of
    ``shown``, the entry and the clock keep their stored values.
    """
    stored = {ENTRY if name == ENTRY or name.startswith("attack.") else name for name in shown}
    records = runs[[*fields(), "sweep"]].to_dict("records")
    places = aligned(records, stored, [name for name in ("sweep",) if name in shown])
    kept = runs.iloc[[place for place, _ in places]].reset_index(drop=True)
    return kept.assign(**{name: [values[name] for _, values in places] for name in MET})


def _parameters(spec: Mapping[str, Any], field: str) -> dict[str, Any]:
    component = spec.get(field)
    if not isinstance(component, dict):
        return {}
    return {key: value for key, value in component.items() if key != "name"}


def _without(spec: Mapping[str, Any], field: str, key: str) -> dict[str, Any]:
    return {name: value for name, value in spec[field].items() if name != key}


def method_names(runs: pd.DataFrame) -> pd.Series:
    """Return the methods' names for a legend; the texts as typed if two methods have the same
    name.
    """
    labels = runs["spec"].map(lambda spec: method_label(spec["method"]))
    shared = runs.groupby(labels)["method"].transform("nunique") > 1
    return labels.where(~shared, runs["method"])


def text_of(name: str, value: Any) -> str:
    """Return a value for a legend or title; numbers have their column's name."""
    if name == "task":
        return TASKS.get(value, str(value))
    if name == "attack_entry":
        return entry_words(value)
    if name == "clock":
        return f"identities change by the {value}"
    if isinstance(value, str):
        return value
    return (
        f"{name.replace('_', ' ')} {value:g}"
        if isinstance(value, float)
        else (f"{name.replace('_', ' ')} {value}")
    )


def titled(runs: pd.DataFrame, name: str, value: Any) -> str:
    """Return the title of a panel, with the column's name unless the value says it."""
    if name == "method":
        return f"method: {method_names(runs)[runs['method'] == value].iloc[0]}"
    if name == "switching" and is_number(runs, name):
        return f"K = {tick(runs, name, value)}"
    short = text_of(name, value)
    return (
        f"{name_of(name)}: {value:g}"
        if isinstance(value, float)
        else f"{name_of(name)}: {value}"
        if short == str(value)
        else short
    )


def is_number(runs: pd.DataFrame, column: str) -> bool:
    """Return True if the values of a column are numbers, or rates of periodic switching."""
    if column == "switching":
        return all(spec["switching"]["name"] in ("periodic", "static") for spec in runs["spec"])
    return all(
        isinstance(value, int | float) and not isinstance(value, bool)
        for value in runs[column].dropna()
    )


def ordered(runs: pd.DataFrame, column: str) -> list[Any]:
    """Return the values of a column from left to right: numbers by size, K up to infinity, attacks
    and rules by the alphabet, other words in the order of the runs.
    """
    values = list(dict.fromkeys(runs[column]))
    if column != "switching":
        numbers = all(isinstance(value, int | float) for value in values)
        words = column in ("attack", "aggregator", "pre_aggregators", RULE)
        return sorted(values, key=_word if words else None) if numbers or words else values
    first = runs.drop_duplicates("switching")
    specs = {
        text: spec["switching"]
        for text, spec in zip(first["switching"], first["spec"], strict=True)
    }
    return sorted(values, key=lambda text: _pace(specs[text]))


def _word(value: Any) -> tuple[bool, str]:
    """Return a key that orders words by the alphabet, and "none" before them."""
    return value not in (None, "none"), str(value)


def _pace(strategy: dict[str, Any]) -> tuple[int, float, str]:
    if (
        strategy["name"] == "periodic"
        and isinstance(strategy.get("K"), int)
        and strategy["K"] < 2**63
    ):
        return 0, float(strategy["K"]), ""
    return (2, 0.0, "") if strategy["name"] == "static" else (1, 0.0, json.dumps(strategy))


def tick(runs: pd.DataFrame, column: str, value: Any) -> str:
    """Return a value for an axis; switching rates as K if all strategies have one."""
    if column == "switching" and is_number(runs, column):
        first = runs[runs["switching"] == value].iloc[0]
        return switching_rate(first["spec"]["switching"])
    return short(str(value))


def axis_label(runs: pd.DataFrame, column: str) -> str:
    """Return the name of an axis that shows a column."""
    if column == "switching" and is_number(runs, column):
        return switching_axis(runs["clock"])
    return name_of(column)


def whole_rule(name: str, runs: pd.DataFrame, given: Iterable[str | None] = ()) -> str:
    """Return ``rule`` in place of the aggregator or the pre-aggregators, if runs have any and
    ``given`` does not show them.

    ``cwtm`` after ``nnm`` is another rule than ``cwtm``, also if the one follows from the other.
    """
    name = full_name(name)
    chained = name in ("aggregator", CHAIN) and (runs[CHAIN] != "none").any()
    return RULE if chained and CHAIN not in given else name


def naming(
    runs: pd.DataFrame, given: Iterable[str] = (), among: Sequence[str] = COLUMNS
) -> list[str]:
    """Return the fields that name runs besides ``given``, in order: those that tell runs with equal
    values of ``given`` apart; see ``whole_rule``.

    Figures, tables, reports and sentences name runs by them, and what follows from them by
    ``differences_note``.
    """
    given = [*given]
    texts = runs[[*dict.fromkeys([*among, *given])]].astype(str).to_dict("records")
    names = telling_apart(texts, among, given)
    return [*dict.fromkeys(whole_rule(name, runs, given) for name in names)]


def labels_of(runs: pd.DataFrame) -> list[str]:
    """Return the fields of a label (``CELL``) in which runs differ, and others that distinguish
    runs with the same label; never the seed.
    """
    varied = [name for name in CELL if name != "seed" and runs[name].nunique(dropna=False) > 1]
    names = dict.fromkeys(whole_rule(name, runs) for name in varied)
    return [*names, *naming(runs, ["seed", *CELL], OTHERS)]


def differences_note(
    runs: pd.DataFrame, shown: Sequence[str], among: Sequence[str] = COLUMNS
) -> list[str]:
    """Return a line for each field in which runs differ and that is not shown, because it follows
    from what is, such as a learning rate per method.

    Args:
        runs: The runs, with the columns ``shown``.
        shown: Fields that an axis, a series, a panel or a row names.
        among: The fields to look at.
    """
    hidden = {*shown, *(("aggregator", CHAIN) if RULE in shown else ())}
    hidden |= {ENTRY, "clock"} if READING in shown else set()
    lines = []
    for name in dict.fromkeys(whole_rule(name, runs, shown) for name in among):
        if name in hidden or name not in runs or runs[name].nunique(dropna=False) < 2:
            continue
        sides = [_shown_as(runs, side) for side in sorted(shown, key=lambda side: side != "method")]
        values = runs[name].astype(object).where(runs[name].notna(), "none")
        sides += [a + " with " + b for a, b in itertools.combinations(sides, 2)]
        groups = [values.groupby(side, sort=False).unique() for side in sides]
        # the field that determines it, two of them, or else the first
        groups.sort(key=lambda group: not (group.map(len) == 1).all())
        by_values: dict[tuple[str, ...], list[str]] = {}
        for side, group in groups[0].items() if groups else ():
            key = tuple(sorted(group, key=lambda value: (isinstance(value, str), value)))
            by_values.setdefault(key, []).append(str(side))
        words = [
            f"{' or '.join(map(format_value, of))} for {', '.join(names[:MOST_TOLD])}"
            + (f" and {len(names) - MOST_TOLD} more" if len(names) > MOST_TOLD else "")
            for of, names in by_values.items()
        ]
        if not words:
            continue
        if len(words) > MOST_TOLD:
            words = [f"{len(words)} values"]
        what = "learning rates differ" if name == "learning_rate" else f"{name_of(name)} differs"
        lines.append(f"{what}: {'; '.join(words)}")
    return lines


def _shown_as(runs: pd.DataFrame, name: str) -> pd.Series[Any]:
    if "spec" not in runs:
        return runs[name].map(format_value)
    if name == "method":
        return method_names(runs)
    if name == "switching":
        return runs[name].map({value: titled(runs, name, value) for value in runs[name].unique()})
    name = whole_rule(name, runs)
    return runs[name].map(lambda value: text_of(name, value))


def method_label(mapping: Mapping[str, Any]) -> str:
    """Return a method's label for a legend, from its mapping in ``spec``; its name if this version
    has other parameters.
    """
    try:
        return _method(mapping)
    except (KeyError, TypeError, ValueError, OverflowError):
        return str(mapping["name"])


def _method(mapping: Mapping[str, Any]) -> str:
    name = mapping["name"]
    if name == "momentum":
        form = "" if mapping["form"] == "ema" else f", {mapping['form']}"
        return f"momentum {BETA}={mapping['beta']:g}{form}"
    if name == "dynabro":
        words = ["DynaBRO"]
        if mapping.get("filter") not in (None, "none", "off"):
            words.append(str(mapping["filter"]))
        if mapping.get("jmax", 7) not in (7, None):
            words.append(f"J\u2098\u2090\u2093={mapping['jmax']}")
        words += [
            f"{name}={mapping[name]:g}" for name in ("tau", "clip") if mapping.get(name) is not None
        ]
        return ", ".join(words)
    if name == "safeguard":
        return f"SafeguardSGD, {mapping['guards']}"
    mu2 = "\N{GREEK SMALL LETTER MU}\N{SUPERSCRIPT TWO}-SGD"
    titles = {
        "sgd": "SGD",
        "byzantine-sgd": "ByzantineSGD",
        "demoa": "DeMoA",
        "nsgdm": "Byz-NSGDM",
        "mu2-sgd": mu2,
    }
    return titles.get(name, str(name))


def switching_rate(mapping: Mapping[str, Any]) -> str:
    """Return K of a periodic strategy, and the infinity sign for the static one."""
    return "\N{INFINITY}" if mapping["name"] == "static" else str(mapping.get("K", "?"))


def switching_axis(clocks: Iterable[str]) -> str:
    """Return the name of an axis of switching rates, for runs whose identities change by these
    clocks.
    """
    ticks = {"round": "rounds", "computation": "gradient computations"}
    units = (ticks.get(clock, clock) for clock in sorted(set(clocks), reverse=True))
    return f"K, {' or '.join(units)} between two switches"


def short(text: str, most: int = 90) -> str:
    """Return ``text``, shortened if it is longer."""
    return text if len(text) <= most else text[: most - 3] + "..."


def metric_of(results: Results, name: str | None, *, along: bool = False) -> Metric:
    """Return the metric called ``name``; by default accuracy, or the gap if no run has an accuracy.

    Raises:
        SpecError: There is no such metric, no run has it, or a curve ``along`` a run is wanted and
            it is a single number.
    """
    if name is None:
        name = usual_metric(results.runs)
    extra = [
        column.removeprefix(METRIC_PREFIX)
        for column in results.runs
        if column.startswith(METRIC_PREFIX)
    ]
    if name not in METRICS and name not in extra:
        legal = [*METRICS, *extra]
        raise SpecError(
            f"metric={name} is not legal{did_you_mean(name, legal)}; legal: {', '.join(legal)}"
        )
    column = METRIC_PREFIX + name
    metric = METRICS.get(name) or Metric(column, column, name)
    if along and not metric.along:
        raise SpecError(
            f"metric={name} is one number per run, not a curve. Try: dynabro plot final "
            f"--metric {name}"
        )
    if not results.runs[metric.final].notna().any():
        lost = int((results.runs["status"] == DIVERGED).sum())
        why = f" ({share(lost, len(results.runs))})" if lost else ""
        raise SpecError(
            f"no run here has a number for metric={name}{why}. Try: another one of "
            f"{', '.join(METRICS)}"
        )
    return metric


def usual_metric(runs: pd.DataFrame) -> str:
    """Return ``accuracy``; ``gap`` if no run has a model."""
    return "accuracy" if runs["model"].notna().any() else "gap"


def having(results: Results, metric: Metric) -> Results:
    """Return the runs that have the metric: for a column of ``recovery`` runs with a number; else
    runs of tasks with one.

    A run that diverged on a task whose number of classes is unknown has no accuracy, and stays.
    """
    has_metric = results.runs[metric.final].notna()
    if metric.along:
        has_metric = has_metric.groupby(results.runs["task"]).transform("any")
    left_out = int((results.runs["status"][~has_metric] == DIVERGED).sum())
    words = f"{many(left_out, 'diverged run')} without a number left out" if left_out else ""
    label = ", ".join(filter(None, (results.label, words)))
    return dataclasses.replace(results, runs=results.runs[has_metric], label=label)


def chosen_columns(
    table: pd.DataFrame, bold: Collection[tuple[int, int]], names: str | None
) -> tuple[pd.DataFrame, Collection[tuple[int, int]]]:
    """Return the first columns of a table, as far as they are needed to tell its rows apart, and
    the named columns; and the places in bold.

    Raises:
        SpecError: The table has no such column.
    """
    if names is None:
        return table, bold
    heads = [" ".join(str(head).split()) for head in table]
    keys = heads.index("") + 1 if "" in heads else 1
    while table.iloc[:, :keys].duplicated().any() and keys < len(heads):
        keys += 1
    chosen = SEPARATOR.split(names)
    if wrong := [name for name in chosen if name not in heads]:
        raise SpecError(
            f"columns={wrong[0]}: not a column of the table{did_you_mean(wrong[0], heads)}. Try: "
            f"{','.join(heads[keys:])}"
        )
    places = [*dict.fromkeys([*range(keys), *map(heads.index, chosen)])]
    moved = {(row, places.index(column)) for row, column in bold if column in places}
    return table.iloc[:, places], moved
