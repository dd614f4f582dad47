"""Pairs of stored runs that differ in the compared fields only: the same seed, data and Byzantine
workers.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd
from sqlalchemy import Engine

from dynabro_cli.answers.analysis.columns import RULE, differences_note, naming
from dynabro_cli.answers.analysis.diverged import DIVERGED, counted_as, share
from dynabro_cli.answers.analysis.metrics import METRICS
from dynabro_cli.answers.analysis.paired_tests import LEVEL, Paired, differences, holm, paired
from dynabro_cli.core.errors import NotFoundError, SpecError, did_you_mean, many
from dynabro_cli.core.registration import PLUS, Registry, format_value, split_text
from dynabro_cli.experiment.comparison import mixture, versions
from dynabro_cli.experiment.effect import BASE, ENTRY, READING, aligned
from dynabro_cli.experiment.label import OTHERS, rule_of, telling_apart
from dynabro_cli.experiment.spec import CHAIN, COMPONENTS, canonical, fields, full_name
from dynabro_cli.runs.store.read.queries import query, warn_of_missed
from dynabro_cli.runs.store.tables import HAS_RESULT

COMPARED = ("accuracy", "loss", "gap")
"""Metrics of which ``runs`` has a column."""
IDENTITIES = ("switching", "clock", "workers", "byzantine", "participation")
"""Fields that determine, with the seed, which workers are Byzantine when (except
for strategies that follow the run).
"""
FOLLOWING = ("adaptive", "evade")
"""Switching strategies that follow the run."""
FEW = 6
"""Fewest pairs for which Wilcoxon's p can be under 0.05: it is at least 2/2^n."""
NAMES = ("task", "method", "aggregator", "pre_aggregators", "attack", "switching", *OTHERS)

RATE, SWEEP = "learning_rate", "sweep"
Fields = dict[str, Any]


class Cell(NamedTuple):
    """The pairs that differ in their seed only.

    Attributes:
        labels: The fields that distinguish this cell from the others.
        seeds: The seeds of the pairs.
        a: Mean of A.
        b: Mean of B.
        test: The differences A - B.
        holm_t: Holm's adjusted p of the t-test over all cells.
        holm_wilcoxon: Holm's adjusted p of Wilcoxon's test over all cells.
        better: ``A`` or ``B`` if the adjusted p of the t-test is at most ``LEVEL``; empty
            otherwise.
        diverged: Number of diverged runs of A, and of B.
    """

    labels: Fields
    seeds: tuple[int, ...]
    a: float
    b: float
    test: Paired
    holm_t: float
    holm_wilcoxon: float
    better: str
    diverged: tuple[int, int] = (0, 0)


class Comparison(NamedTuple):
    """All cells of a comparison, the number of runs without a partner, and if both sides have the
    same Byzantine workers.

    ``rates`` are the learning rates of A and of B. ``mixture`` says if the runs'
    data differ, and ``differing`` what follows from the labels of cells.
    """

    cells: list[Cell]
    alone: int
    same_identities: bool
    rates: tuple[tuple[float, ...], ...]
    mixture: str | None
    differing: list[str]

    @property
    def notes(self) -> list[str]:
        """Lines that a reader of the numbers must know."""
        lines = [f"warning: {self.mixture}"] if self.mixture else []
        if self.alone:
            lines.append(f"{many(self.alone, 'run')} without a partner left out")
        if self.rates[0] != self.rates[1]:
            a, b = (" or ".join(f"{rate:g}" for rate in rates) for rates in self.rates)
            lines.append(f"learning rates differ: A {a}, B {b}")
        lines += self.differing
        if not self.same_identities:
            lines.append(
                "A and B do not have the same Byzantine workers: pairs share the seed only"
            )
        pairs = sum(cell.test.n for cell in self.cells)
        lost = [share(sum(cell.diverged[which] for cell in self.cells), pairs) for which in (0, 1)]
        lines += [f"{word}: {words}" for word, words in zip("AB", lost, strict=True) if words]
        few = min(cell.test.n for cell in self.cells)
        if few < FEW:
            least = min(1.0, 2 / 2**few)
            lines.append(f"with {many(few, 'pair')} in a row, Wilcoxon's p is at least {least:g}")
        return lines


def stored_components(engine: Engine) -> dict[str, set[str]]:
    """Return the components of all runs by the field that has them, a chain's one by one."""
    return {
        field: {
            part
            for (value,) in query(engine, f"SELECT DISTINCT {field} FROM runs").rows
            for part in split_text(value or "", PLUS)
        }
        for field in COMPONENTS
    }


def usual_metric(engine: Engine, where: str | None) -> str:
    """Return ``gap`` if no run of a condition has a model, as on the quadratic problem."""
    sql = f"SELECT COUNT(model) FROM runs WHERE {where or 'TRUE'}"
    return "accuracy" if next(iter(query(engine, sql).rows))[0] else "gap"


def side(
    text: str,
    registries: Mapping[str, Registry[Any]],
    stored: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> Fields:
    """Read one side of a comparison: a method, or ``FIELD=VALUE`` separated by spaces; values as
    they are stored.

    Args:
        text: The side as typed.
        registries: The registries of all components.
        stored: As of ``stored_components``: components of plugins that are not loaded may be
            named as they are stored, without parameters if one has the name.

    Raises:
        SpecError: A field or value is not legal.
    """
    values: Fields = {}
    for part in filter(None, split_text(text, r"\s+")):
        match = re.fullmatch(r"(\w+)=(.+)", part)
        name, value = (
            (full_name(match[1]), match[2])
            if match
            else (_field_of(part, registries, stored), part)
        )
        if (name not in fields() or name == "seed") and name != SWEEP:
            legal = [*(field for field in fields() if field != "seed"), SWEEP]
            raise SpecError(
                f"{name}={value}: not a field to compare by{did_you_mean(name, legal)}. Try: "
                f"{', '.join(legal)}"
            )
        if name in values:
            raise SpecError(f"{text!r}: {name} is given twice. Try: one value")
        for stored_field, part_text in canonical({name: value}).items():
            values[stored_field] = (
                part_text
                if stored_field == SWEEP
                else _stored(stored_field, part_text, registries, stored.get(stored_field, ()))
            )
    if not values:
        raise SpecError("a side of a comparison is empty. Try: dynabro compare dynabro momentum")
    return values


def _field_of(
    text: str, registries: Mapping[str, Registry[Any]], stored: Mapping[str, Collection[str]]
) -> str:
    """Return the field of a component's text: its method, or the only field whose components have
    its name.
    """
    name = split_text(text, PLUS)[-1].partition(":")[0]
    candidates = [field for field, kind in COMPONENTS.items() if name in registries[kind].entries()]
    candidates = candidates or [
        field for field, kind in COMPONENTS.items() if registries[kind].knows(name)
    ]
    candidates = candidates or [field for field in stored if _of_name(name, stored[field])]
    return candidates[0] if len(candidates) == 1 else "method"


def compare(
    engine: Engine, a: Fields, b: Fields, where: str | None = None, metric: str = "accuracy"
) -> Comparison:
    """Compare the runs with the values ``a`` with the runs with the values ``b``, paired by seed
    and all other fields.

    Args:
        engine: The database, open for reading.
        a: Values of fields, as of ``side``.
        b: The same; a field that only one side names may differ from pair to pair, and is not
            compared.
        where: An SQL condition on ``runs``.
        metric: One of ``COMPARED``.

    Raises:
        SpecError: The condition or metric is not valid, the sides are equal, a run has several
            partners, the runs met an attack in several readings, or a mean would be over runs that
            differ in more than their seed.
        NotFoundError: No pair has a number for the metric.
    """
    if metric not in COMPARED:
        raise SpecError(
            f"metric={metric}: not legal{did_you_mean(metric, COMPARED)}. Try: "
            f"{', '.join(COMPARED)}"
        )
    a, b = _with_chain(a, b), _with_chain(b, a)
    if a == b:
        raise SpecError(
            "A and B are the same. Try: two different methods, or FIELD=VALUE with two values"
        )
    for values in (a, b):
        warn_of_missed(engine, f"sweep = '{values[SWEEP]}'" if SWEEP in values else "")
    stored = _runs(engine, where, METRICS[metric].final)
    runs = [
        {**stored[place], **values, "stored": stored[place], RULE: rule_of(stored[place])}
        for place, values in aligned(stored)
    ]
    without = [_having([run for run in runs if math.isnan(run["value"])], side) for side in (a, b)]
    runs = [run for run in runs if not math.isnan(run["value"])]
    sides = [_having(runs, given) for given in (a, b)]
    varied = {name for name in (*a, *b) if a.get(name) != b.get(name)}
    kept = [name for name, field in fields().items() if name not in {*a, *b} and field.result]
    first, second = (
        _by(chosen, kept, word, {*a, *b}) for chosen, word in zip(sides, ("A", "B"), strict=True)
    )
    pairs = [(first[key], second[key]) for key in first if key in second]
    # methods at rates of their own: a fair comparison, if nothing else differs
    if not pairs and RATE in kept:
        kept.remove(RATE)
        first, second = (
            _by(chosen, kept, word, {*a, *b, RATE})
            for chosen, word in zip(sides, ("A", "B"), strict=True)
        )
        pairs = [(first[key], second[key]) for key in first if key in second]
    if not pairs:
        names = [name for name in kept if name != "seed"]
        raise NotFoundError(_why(sides, names, where, metric, without))
    _check_reading(pairs, kept, a, b)
    frame, names = pd.DataFrame([run for run, _ in pairs]), [name for name in NAMES if name in kept]
    # a side that names a part of the rule has another rule than the other side
    whole = {CHAIN, "aggregator"} <= {*names}
    apart = (
        naming(frame, (), names) if whole else telling_apart(frame.to_dict("records"), names, ())
    )
    kept = [name for name in kept if name != "seed"]
    cells = _cells(pairs, kept, apart, higher=metric == "accuracy")
    # ids, because aligned may have a run several times: once for each adversary that others met
    alone = len(
        {run["id"] for run in (*first.values(), *second.values())}
        - {run["id"] for pair in pairs for run in pair}
    )
    follows = any(str(run["switching"]).startswith(FOLLOWING) for run, _ in pairs)
    rates = tuple(tuple(sorted({pair[which][RATE] for pair in pairs})) for which in (0, 1))
    data = versions(run["code_digests"] for pair in pairs for run in pair)
    same = not varied & set(IDENTITIES) and not follows
    rest = differences_note(frame, apart, names)
    return Comparison(cells, alone, same, rates, mixture(data), rest)


def _having(runs: Sequence[Fields], given: Fields) -> list[Fields]:
    """Return the runs with some values; the values may also be those that are stored with a run."""
    matching = [run for run in runs if all(run[name] == value for name, value in given.items())]
    return matching or [
        run
        for run in runs
        if all(value in (run[name], run["stored"].get(name)) for name, value in given.items())
    ]


def _check_reading(
    pairs: Sequence[tuple[Fields, Fields]], kept: Sequence[str], *sides: Fields
) -> None:
    """Raise SpecError if pairs on the same problem met an attack in several readings: they have no
    common answer.
    """
    rest = [name for name in kept if name not in ("seed", "switching", "clock", "attack", ENTRY)]
    readings: dict[tuple[Any, ...], dict[tuple[Any, Any], None]] = {}
    for run, _ in pairs:
        if run[READING] and {"attack", ENTRY} <= set(kept):
            readings.setdefault((run[BASE], *(run[name] for name in rest)), {})[
                run["attack"], run[ENTRY]
            ] = None
    for (base, *_), variants in readings.items():
        if len(variants) > 1:
            once = len({entry for _, entry in variants}) == len(variants)
            texts = [
                f"{ENTRY}={entry}" if once else f"attack={attack} {ENTRY}={entry}"
                for attack, entry in variants
            ]
            words = [
                " ".join(f"{name}={format_value(value)}" for name, value in side.items())
                for side in sides
            ]
            typed = " ".join(f"'{side} {texts[-1]}'" for side in words)
            raise SpecError(
                f"attack={base}: the runs met it in {len(variants)} readings, "
                f"{' or '.join(texts)}. Try: {typed}"
            )


def _with_chain(side_fields: Fields, other: Fields) -> Fields:
    """Return a side whose rule has no chain before it, if the other side has one, as ``cwtm``
    against ``nnm+cwtm``.
    """
    return (
        {**side_fields, CHAIN: "none"}
        if "aggregator" in side_fields and CHAIN in other and CHAIN not in side_fields
        else side_fields
    )


def _cells(
    pairs: Sequence[tuple[Fields, Fields]],
    kept: Sequence[str],
    apart: Sequence[str],
    *,
    higher: bool,
) -> list[Cell]:
    groups: dict[tuple[Any, ...], list[tuple[Fields, Fields]]] = {}
    for pair in sorted(pairs, key=lambda pair: int(pair[0]["seed"])):
        groups.setdefault(tuple(pair[0][name] for name in kept), []).append(pair)
    tests = [
        paired(
            differences(
                *({pair[which]["seed"]: pair[which]["value"] for pair in group} for which in (0, 1))
            )
        )
        for group in groups.values()
    ]
    by_t, by_ranks = holm([test.p_t for test in tests]), holm([test.p_wilcoxon for test in tests])
    cells = []
    for which, word in enumerate("AB"):
        for group in groups.values():
            _check_mean([pair[which] for pair in group], word)
    for group, test, p_value, p_by_ranks in zip(
        groups.values(), tests, by_t, by_ranks, strict=True
    ):
        ahead = "A" if (test.mean > 0) == higher else "B"
        mean_a, mean_b = (
            sum(pair[which]["value"] for pair in group) / len(group) for which in (0, 1)
        )
        seeds = tuple(int(pair[0]["seed"]) for pair in group)
        lost = [sum(pair[which]["status"] == DIVERGED for pair in group) for which in (0, 1)]
        labels = {name: group[0][0][name] for name in apart}
        cells.append(
            Cell(
                labels,
                seeds,
                mean_a,
                mean_b,
                test,
                p_value,
                p_by_ranks,
                ahead if p_value <= LEVEL else "",
                (lost[0], lost[1]),
            )
        )
    return sorted(cells, key=lambda cell: [_natural(value) for value in cell.labels.values()])


def _check_mean(runs: Sequence[Fields], word: str) -> None:
    """Raise SpecError if runs of a cell differ in more than their seed."""
    for name in (name for name, field in fields().items() if field.result and name != "seed"):
        other = next((run for run in runs if run[name] != runs[0][name]), None)
        if other is not None:
            value, different = format_value(runs[0][name]), format_value(other[name])
            raise SpecError(
                f"{name}={value}: a mean over runs {runs[0]['id']} and {other['id']} would mix "
                f"it with {name}={different}. "
                f"Try: {name}={value} in {word}"
            )


def _natural(value: Any) -> list[tuple[int, float, str]]:
    """Return a key that orders texts with numbers in them by the numbers."""
    parts = re.split(r"(\d+(?:\.\d+)?)", str(value))
    return [
        (1, 0.0, part) if place % 2 == 0 else (0, float(part), "")
        for place, part in enumerate(parts)
    ]


def _runs(engine: Engine, where: str | None, column: str) -> list[Fields]:
    """Return the runs with a result as fields by name, with ``status``, ``id``, and ``value``, the
    number in ``column`` that counts; NaN without one.
    """
    condition = f"AND ({where})" if where else ""
    names = ", ".join((*fields(), SWEEP, "code_digests"))
    table = query(
        engine,
        f"SELECT id, status, {column} AS value, {names} FROM runs WHERE {HAS_RESULT} {condition} "
        "ORDER BY id",
    )
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.sharing()]
    for row in rows:
        if row["status"] == DIVERGED:
            row["value"] = counted_as(column, row["task"], row["model"], row["code_digests"])
    return [{**row, "value": math.nan if row["value"] is None else row["value"]} for row in rows]


def _by(
    runs: Iterable[Fields], kept: Sequence[str], word: str, free: Iterable[str]
) -> dict[tuple[Any, ...], Fields]:
    """Return the runs by the values that a partner must share."""
    by_key: dict[tuple[Any, ...], Fields] = {}
    for run in runs:
        key = tuple(run[name] for name in kept)
        if key in by_key:
            other = by_key[key]
            names = [name for name in free if run[name] != other[name]]
            values = "; ".join(
                f"{name}={format_value(other[name])} and {name}={format_value(run[name])}"
                for name in names
            )
            raise SpecError(
                f"{word}: runs {other['id']} and {run['id']} would have one partner "
                f"({values}). Try: one of them"
            )
        by_key[key] = run
    return by_key


def _why(
    sides: Sequence[Sequence[Fields]],
    kept: Sequence[str],
    where: str | None,
    metric: str,
    without: Sequence[Sequence[Fields]],
) -> str:
    """Explain why nothing pairs; ``without`` are the runs of the sides without a number."""
    within = " among the runs of --where" if where else ""
    for side_runs, word, lacking in zip(sides, ("A", "B"), without, strict=True):
        if not side_runs and lacking:
            lost = share(sum(run["status"] == DIVERGED for run in lacking), len(lacking))
            return (
                f"{word}: {many(len(lacking), 'run')}{within} with these values, without a number "
                f"for metric={metric}{f' ({lost})' if lost else ''}. Try: another --metric"
            )
        if not side_runs:
            return (
                f"{word}: no run{within} with a result has these values. Try: dynabro runs, "
                "which lists the values"
            )
    apart = []
    for name in kept:
        values: list[Mapping[Any, None]] = [
            dict.fromkeys(run[name] for run in side_runs) for side_runs in sides
        ]
        if not set(values[0]) & set(values[1]):
            texts = (
                " or ".join(format_value(value) for value in list(side_values)[:3])
                for side_values in values
            )
            apart.append((name, *texts))
    if apart:
        name, of_a, of_b = apart[0]
        listed = "; ".join(f"{name}: A {of_a}, B {of_b}" for name, of_a, of_b in apart)
        typed = shlex.join([f"... {name}={of_a}", f"... {name}={of_b}"])
        return f"no pair: A and B differ in what is not compared ({listed}). Try: {typed}"
    if not {run["seed"] for run in sides[0]} & {run["seed"] for run in sides[1]}:
        return "no pair: A and B have no seed in common. Try: the same seeds for both"
    return (
        "no pair: no run of A has a run of B that is equal in all other fields. Try: a "
        "narrower --where, and dynabro runs"
    )


def _of_name(name: str, stored: Collection[str]) -> list[str]:
    """Return the stored components with a name."""
    return sorted(text for text in stored if text.partition(":")[0] == name)


def _component(text: str, registry: Registry[Any], stored: Collection[str]) -> str:
    """Return a component as the column has it; if nothing has registered its name, it is one of
    the stored ones.
    """
    name, colon, _ = text.partition(":")
    same = [] if registry.knows(name) else _of_name(name, stored)
    if len(same) > 1 and not colon:
        raise SpecError(f"{text}: the runs have {' and '.join(same)}. Try: one of them")
    return same[0] if same and not colon else text if text in same else registry.parse(text).text


def _stored(
    name: str, text: str, registries: Mapping[str, Registry[Any]], stored: Collection[str]
) -> Any:
    """Return a value as the column has it."""
    try:
        if name == CHAIN:
            parts = [] if text == "none" else split_text(text, PLUS)
            registry = registries[COMPONENTS[name]]
            return "+".join(_component(part, registry, stored) for part in parts) or text
        if name in COMPONENTS:
            return _component(text, registries[COMPONENTS[name]], stored)
        return fields()[name].parse(text)
    # a SpecError is a ValueError, too, and says more than the message below
    except SpecError:
        raise
    except ValueError:
        raise SpecError(f"{name}={text}: not legal. Try: {fields()[name].legal}") from None
