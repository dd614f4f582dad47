"""Properties of every field and every parameter of every component: absurd values are answered in
lines, two ways to write one thing are one key, two things are two, and auto is its value.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import random
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.events import Evaluated, Event, RoundsDone
from dynabro_cli.core.registration import Component, Entry, ParameterInfo, format_value
from dynabro_cli.experiment.grid.plan import plan
from dynabro_cli.experiment.grid.sweep_file import parse_sweep
from dynabro_cli.experiment.resolve import Run, resolve
from dynabro_cli.experiment.spec import MOST_WORKERS, RunSpec, fields
from dynabro_cli.simulation.setup import simulate_run
from tests import parameters
from tests.parameters import (
    FIELDS,
    entries_that,
    every_entry,
    every_field,
    needed,
    setting_of,
    text_of,
)
from tests.tables import Test, each_row

CHANGED = {
    "task": "fashion-mnist",
    "model": "logistic",
    "method": "sgd",
    "aggregator": "cwmed",
    "pre_aggregators": "nnm",
    "attack": "ipm",
    "switching": "static",
    "lr_drop": "0.3:0.5",
    "data": "sorted",
}
"""Another value of the fields that are texts; those with choices and numbers have theirs made
up.
"""

NO_WORDS = {("switching", "trace", "file"), ("switching", "trace", "hash")}
"""Texts that are no free words; tests/components/switching/test_trace.py has their keys."""
TEXTS = {
    "parts": ["sf/ipm", "ipm/sf", "sf/ipm/sf", "nan/gaussian", "alie/optimal-ipm"],
    "rule": ["gm", "cwmed", "cwtm", "mean", "krum"],
}
"""Values of the parameters that are texts and not any word."""

PARAMETERS = [
    place for place in parameters.PARAMETERS if (*place[:2], place[2].key) not in NO_WORDS
]


def each(found: Sequence[tuple[str, str, ParameterInfo]]) -> Callable[[Test], Test]:
    ids = [f"{kind}:{name}:{info.key}" for kind, name, info in found]
    return each_row(("kind", "name", "info"), found, ids=ids)


OF_EACH_TYPE = list(
    {(kind, info.type): (kind, name, info) for kind, name, info in PARAMETERS}.values()
)
"""A parameter of each type in each registry. Texts are read by type, so one of a type is enough."""
MANY = 3
"""Parameters of a component up to which every order of them is tried."""
few = settings(max_examples=10, deadline=None)
fewer = settings(max_examples=3, deadline=None)
"""For what is tried with each of more than a hundred parameters."""


def key(values: Mapping[str, str]) -> str:
    return resolve(RunSpec.from_text(values)).key


# --- absurd values

ABSURD = (
    *("0", "-1", "1", "1e6", "1e9", str(2**62), str(2**63), "1e18", "1e300", "1e308"),
    *("1e-300", "5e-324", "0.9999999999999999", "nan", "inf", "9" * 5000),
)
NUMBERS = [name for name, info in fields().items() if info.type in (int, float)]


def written(kind: str, entry: Entry[object]) -> Iterator[str]:
    """The component with each of its numbers at each absurd value."""
    for info in entry.infos:
        if info.type is not str:
            yield from (text_of(kind, entry, **{info.key: value}) for value in ABSURD)


@contextlib.contextmanager
def nothing_large(most: float = 50e6) -> Iterator[None]:
    """Limit the bytes that Python and NumPy use while the context is entered."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most


def answer(**values: str) -> list[str]:
    """Resolve a run; return what is wrong with it."""
    try:
        assert resolve(RunSpec.from_text(values)).key
    except SpecError as error:
        return [line for problem in error.problems for line in problem.split("\n")]
    return []


@each_row("name", NUMBERS)
def test_absurd_fields(name: str) -> None:
    with nothing_large(300e6):  # a million workers are legal
        for value in ABSURD:
            assert len(answer(**{name: value})) <= 5


@entries_that(lambda entry: any(info.type is not str for info in entry.infos))
def test_absurd_parameters(kind: str, entry: Entry[object]) -> None:
    with nothing_large():
        for text in written(kind, entry):
            assert len(answer(**{FIELDS[kind]: text})) <= 5
            if "aggregator" in kind:
                assert len(answer(**{FIELDS[kind]: text}, byzantine="2")) <= 5


@pytest.mark.thorough
@every_entry
def test_many_workers(kind: str, entry: Entry[object]) -> None:
    field = FIELDS[kind]
    task = {} if field in ("task", "model", "data") else {"task": "quadratic"}
    with nothing_large():
        for byzantine in ("2", "40000"):
            values = task | {
                field: text_of(kind, entry),
                "workers": "100000",
                "byzantine": byzantine,
            }
            assert len(answer(**values)) <= 5


def test_more_workers_than_a_run_may_have() -> None:
    assert answer(workers=str(MOST_WORKERS + 1)) == [
        (
            "workers=1000001 is not legal. Try: --workers with a whole number >= 1 and <= 1000000 "
            "or auto"
        )
    ]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "values",
    [
        {
            "task": "quadratic",
            "lr_drop": ",".join(f"0.{place:06}:0.5" for place in range(1, 50_000)),
        },
        {"task": "quadratic:dimension=50000,start=" + ":".join(["1"] * 50_000)},
        {"task": "quadratic", "pre_aggregators": "+".join(["clipping:c=1"] * 5000)},
        {"attack": "mixed:parts=" + "/".join(["sf"] * 30_000)},
        {"aggregator": "x" * 100_000},
        {"method": "sgd:" + ",".join(f"a{place}=1" for place in range(300))},
        {"aggregator": "mda", "workers": "20000", "byzantine": "8000"},
        {"pre_aggregators": "bucketing:s=1000000000000", "byzantine": "2"},
    ],
    ids=lambda values: ",".join(values),
)
def test_long_texts_and_large_counts(values: dict[str, str]) -> None:
    with nothing_large():
        answer(**values)


def test_what_these_are_told() -> None:
    (line,) = answer(aggregator="mda", workers="20000", byzantine="8000")
    assert "have more than 1000000000000000 subsets of 12000" in line
    assert line.endswith("up to 500000. Try: 'mda:f=1'")
    assert answer(attack="fang-krum:threshold=5e-324", byzantine="7") == []
    (line,) = answer(attack="mixed:parts=" + "/".join(["sf"] * 101))
    assert line == "attack 'mixed': parts= has 101 attacks. Try: 100 or fewer, joined by /"
    (line,) = answer(pre_aggregators="bucketing:s=1000000000000", byzantine="2")
    assert line.endswith("could be in half of them. Try: 'bucketing:s=4'")


def values_of(info: ParameterInfo) -> st.SearchStrategy[Any]:
    """Legal values of one field or parameter, as far as its own range goes."""
    low, high = info.limits["minimum"], info.limits["maximum"]
    if info.limits["choices"]:
        return st.sampled_from(info.limits["choices"])
    if info.type is int:
        low = 0 if low is None else low
        return st.integers(low, low + 6 if high is None else min(low + 6, high))
    if info.type is float:
        above, below = info.limits["above"], info.limits["below"]
        low, high = low if low is not None else above, high if high is not None else below
        bottom, top = (
            (-10.0 if low is None else float(low)),
            (10.0 if high is None else float(high)),
        )
        numbers = st.floats(
            bottom,
            top,
            exclude_min=above is not None,
            exclude_max=below is not None,
            allow_subnormal=False,
        )
        return numbers.map(lambda value: value + 0.0)
    if info.type is bool:
        return st.booleans()
    if info.type is tuple:
        return st.tuples(*[st.integers(-5, 5).map(float)] * 2)
    return (
        st.sampled_from(TEXTS[info.key])
        if info.key in TEXTS
        else st.from_regex("[a-z]{1,8}", fullmatch=True)
    )


def spellings(value: Any) -> list[str]:
    """Ways to write one value."""
    texts = [format_value(value)]
    if isinstance(value, tuple):
        texts += [":".join(choice) for choice in zip(*map(spellings, value), strict=False)]
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        texts += [
            repr(value),
            repr(float(value)),
            f"{float(value)!r}" + ("" if "e" in repr(float(value)) else "e0"),
            f"{value:.17e}",
        ]
        if value == int(value):
            texts += [f"{int(value)}", f"{int(value)}.0", f"{int(value)}e0", f"{int(value)}.000"]
            if value and value % 1000 == 0:
                texts.append(f"{int(value) // 1000}e3")
        if value == 0:
            texts += ["-0.0", "-0"]
    return texts


def given_text(kind: str, name: str, info: ParameterInfo, text: str) -> str:
    """The component with one parameter set, beside what it cannot do without."""
    return needed(kind, name, f"{info.key}={text}")


def resolved(values: Mapping[str, str]) -> str:
    """The key, or nothing, to hypothesis, where the value does not suit the others."""
    try:
        return key(values)
    except SpecError:
        assume(False)
        raise


# --- one thing, one key


@each_row(
    "info",
    [info for info in fields().values() if info.type is not str],
    ids=lambda info: info.field,
)
@few
@given(data=st.data())
def test_spellings_of_a_fields_value(info: ParameterInfo, data: st.DataObject) -> None:
    value = data.draw(values_of(info))
    usual = {"task": "digits", "method": "sgd", "byzantine": "0"}
    first, *others = [resolved(usual | {info.field: text}) for text in spellings(value)]
    assert set(others) <= {first}


@each(OF_EACH_TYPE)
@fewer
@given(data=st.data())
def test_spellings_of_a_parameters_value(
    kind: str, name: str, info: ParameterInfo, data: st.DataObject
) -> None:
    setting, value = setting_of(kind, name), data.draw(values_of(info))
    space = st.sampled_from(["", " "])
    texts = [given_text(kind, name, info, text) for text in spellings(value)]
    apart = (
        texts[0]
        .replace(",", data.draw(space) + "," + data.draw(space))
        .replace("=", data.draw(space) + "= ")
    )
    texts.append(apart)
    first, *others = [resolved(setting | {FIELDS[kind]: text}) for text in texts]
    assert set(others) <= {first}


USUAL, *OTHERS = parameters.SETTINGS[:-1]  # the last differs from the first in a number alone
DEFAULTS = [(name, info, USUAL) for name, info in fields().items()]
DEFAULTS += [
    (name, info, other) for name, info in fields().items() if info.optional for other in OTHERS
]
"""Every field in one setting. An optional field's default depends on the task and the method, so it
is tried in each setting.
"""


@each_row(
    ("info", "setting"),
    [(info, setting) for _, info, setting in DEFAULTS],
    ids=[f"{name}-{setting['task']}-{setting['method']}" for name, _, setting in DEFAULTS],
)
def test_a_fields_default_given_or_left_out(info: ParameterInfo, setting: dict[str, str]) -> None:
    left_out = {name: text for name, text in setting.items() if name != info.field}
    if left_out.get("task") is None:
        left_out.pop("model", None)
    run = resolve(RunSpec.from_text(left_out))
    value = getattr(run.spec, info.field)
    assert key(left_out | {info.field: format_value(value)}) == run.key
    if info.optional:
        assert key(left_out | {info.field: "auto"}) == run.key


def takes_zero(info: ParameterInfo) -> bool:
    try:
        return info.type in (int, float) and info.parse("0") == 0
    except ValueError:
        return False


@each(list({found[2].type: found for found in PARAMETERS if takes_zero(found[2])}.values()))
def test_zero_has_no_sign(kind: str, name: str, info: ParameterInfo) -> None:
    setting = setting_of(kind, name)
    texts = [given_text(kind, name, info, zero) for zero in ("0", "0.0", "-0.0", "-0", "-0e5")]
    assert len({key(setting | {FIELDS[kind]: text}) for text in texts}) == 1


@each_row("field", [name for name, info in fields().items() if takes_zero(info)])
def test_zero_has_no_sign_in_a_field(field: str) -> None:
    assert len({key({field: zero}) for zero in ("0", "0.0", "-0.0", "-0", "-0e5")}) == 1


@entries_that(lambda entry: bool(entry.infos))
def test_defaults_given_in_any_order_or_left_out(kind: str, entry: Entry[object]) -> None:
    """Every parameter is given, with the value that it has anyway."""
    name, setting = entry.name, setting_of(kind, entry.name)
    part = REGISTRIES[kind].parse(setting[FIELDS[kind]])
    given_ = [
        f"{info.key}={format_value(getattr(part.parameters, info.field))}"
        for info in part.entry.infos
    ]
    orders = itertools.permutations(given_)
    if len(given_) > MANY:  # too many orders for all
        chance = random.Random(0)
        orders = (tuple(chance.sample(given_, len(given_))) for _ in range(20))
    keys = {
        key(setting | {FIELDS[kind]: f"{name}:{','.join(order)}".rstrip(":")}) for order in orders
    }
    assert keys == {key(setting)}


@few
@given(
    st.lists(
        st.tuples(st.integers(1, 99), st.integers(1, 50)),
        min_size=1,
        max_size=4,
        unique_by=lambda drop: drop[0],
    ),
    st.randoms(),
)
def test_the_order_of_drops(drops: list[tuple[int, int]], chance: random.Random) -> None:
    plain = ",".join(f"{at / 100}:{factor / 10}" for at, factor in drops)
    chance.shuffle(drops)
    other = " , ".join(f"{at}e-2: {factor / 10:.3f}" for at, factor in drops)
    assert key({"lr_drop": plain}) == key({"lr_drop": other})


BASE = {
    "task": "quadratic",
    "budget": "5e3",
    "seed": "1",
    "lr_drop": "0.5:0.5",
    "aggregator": "cwtm",
}
GRID = {"method": ["sgd", "momentum:form=ema,beta=0.90"], "learning_rate": ["1e-2", "0.5"]}


@few
@given(st.randoms())
def test_the_order_of_keys_in_a_file(chance: random.Random) -> None:
    """JSON is YAML, in which the order of a mapping's keys can be chosen; the runs may come in
    another order.
    """

    def shuffled(mapping: Mapping[str, Any]) -> dict[str, Any]:
        return dict(chance.sample(list(mapping.items()), len(mapping)))

    document = {
        "name": "x",
        "base": shuffled(BASE),
        "grid": shuffled(GRID),
        "exclude": [shuffled({"method": "sgd", "budget": 1})],
    }
    expected = {
        key(BASE | {"method": method, "learning_rate": rate})
        for method in GRID["method"]
        for rate in GRID["learning_rate"]
    }
    assert {
        run.key for run in plan(parse_sweep(json.dumps(shuffled(document)), "x")).runs
    } == expected


@few
@given(
    st.sampled_from(["1", "1.0", "1e0", "10e-1"]),
    st.sampled_from(["5000", "5e3", "5000.0", "'5_000'"]),
    st.sampled_from(["0", "-0.0"]),
)
def test_numbers_in_a_file(rate: str, budget: str, decay: str) -> None:
    text = (
        f"name: x\nbase: {{learning_rate:   {rate} , budget: {budget},\n   weight_decay: "
        f"{decay}}}\n"
    )
    (run,) = plan(parse_sweep(text, "x")).runs
    assert run.key == resolve(RunSpec(learning_rate=1.0, budget=5000, weight_decay=0.0)).key


# --- two things, two keys


@every_field
@few
@given(data=st.data())
def test_another_value_of_a_field_is_another_run(info: ParameterInfo, data: st.DataObject) -> None:
    usual = {
        "task": "digits",
        "method": "momentum",
        "model": "mlp",
        "lr_drop": "none",
        "byzantine": "0",
    }
    spec = resolve(RunSpec.from_text(usual)).spec
    value = CHANGED[info.field] if info.field in CHANGED else data.draw(values_of(info))
    assume(value != getattr(spec, info.field))
    try:
        other = resolve(dataclasses.replace(spec, **{info.field: value}))
    except SpecError:
        assume(False)
        raise
    assert other.key != resolve(spec).key


@each(PARAMETERS)
@fewer
@given(data=st.data())
def test_another_value_of_a_parameter_is_another_run(
    kind: str, name: str, info: ParameterInfo, data: st.DataObject
) -> None:
    """Also where one of them is what auto comes to: it has auto's key, and the other has not."""
    setting = setting_of(kind, name)
    left, right = data.draw(values_of(info)), data.draw(values_of(info))
    assume(left != right)
    keys = [
        resolved(setting | {FIELDS[kind]: given_text(kind, name, info, format_value(value))})
        for value in (left, right)
    ]
    assert keys[0] != keys[1]


# --- auto

ONLY_THE_RUN_TELLS = {
    *(("methods", name, "noise_bound") for name in ("dynabro", "byzantine-sgd", "safeguard")),
    *(("methods", "byzantine-sgd", key) for key in ("D", "threshold_A", "threshold_B")),
    *(("methods", "safeguard", key) for key in ("threshold0", "threshold1")),
}
NOTHING = {
    ("tasks", "quadratic", "radius"),
    ("switching", "on-level", "K"),
    ("methods", "dynabro", "clip"),
}
NOTHING |= {
    ("methods", "mu2-sgd", "beta"),
    ("methods", "mu2-sgd", "gamma"),
    ("tasks", "image-folder", "size"),
}
"""Parameters for which auto means nothing, or a number that changes from round to round; no value
can replace it.
"""

# Settings in which components are tried; required parameters are 1.
BRIEF: dict[str, Any] = {
    "task": "quadratic",
    "workers": 9,
    "byzantine": 3,
    "budget": 20,
    "eval_every": 10,
}
AUTO_SETTINGS: list[dict[str, Any]] = [
    BRIEF | {"method": "momentum"},
    BRIEF | {"method": "dynabro:filter=option2,noise_bound=1", "workers": 8},
    BRIEF | {"method": "dynabro", "byzantine": 0},
]

OPTIONAL = [(kind, name, info.key) for kind, name, info in parameters.PARAMETERS if info.optional]
KNOWN = [place for place in OPTIONAL if place not in ONLY_THE_RUN_TELLS | NOTHING]


def part_of(run: Run, kind: str) -> Component[Any]:
    found = getattr(run, FIELDS[kind])
    return found[0] if kind == "pre_aggregators" else found


def with_value(place: tuple[str, str, str], run: Run, value: Any) -> Component[Any]:
    """The run's component with the parameter at ``value``."""
    part = part_of(run, place[0])
    return dataclasses.replace(
        part, parameters=dataclasses.replace(part.parameters, **{info_of(place).field: value})
    )


def info_of(place: tuple[str, str, str]) -> ParameterInfo:
    kind, name, key = place
    return next(info for info in REGISTRIES[kind].entry(name).infos if info.key == key)


def explicit_values(
    place: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> list[tuple[Run, Any]]:
    """The settings in which auto resolves to a value: a run with auto, and the value."""
    kind, name, key = place
    auto, seen, canonical = info_of(place).auto, list[Any](), Component.canonical
    assert auto is not None, f"{name}: say with auto= what {key}=auto comes to, or list it here"

    def spy(component: Component[Any], setting: Any) -> Component[Any]:
        if component.entry is REGISTRIES[kind].entry(name):
            seen.append(auto(component.parameters, setting))
        return canonical(component, setting)

    monkeypatch.setattr(Component, "canonical", spy)
    found = []
    for setting in AUTO_SETTINGS:
        if kind == "tasks" and setting["task"] != name:
            continue
        seen.clear()
        try:
            run = resolve(RunSpec(**setting | {FIELDS[kind]: needed(kind, name, f"{key}=auto")}))
        except SpecError:
            continue
        if seen and seen[-1] is not None:
            found.append((run, seen[-1]))
    return found


def numbers(run: Run) -> list[Event]:
    return [
        event
        for event in simulate_run(run, threads=1)
        if isinstance(event, (Evaluated, RoundsDone))
    ]


@each_row("place", sorted(ONLY_THE_RUN_TELLS | NOTHING), ids=":".join)
def test_auto_that_is_no_value_is_not_declared(place: tuple[str, str, str]) -> None:
    assert info_of(place).auto is None


@pytest.mark.thorough
@pytest.mark.parametrize("place", KNOWN, ids=":".join)
def test_auto_is_the_value_that_it_comes_to(
    place: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, name, _ = place
    found = explicit_values(place, monkeypatch)
    assert found, "no setting of these tells what auto comes to"
    run, value = found[0]
    made = []
    for choice in (None, value):
        part = with_value(place, run, choice)
        parts: dict[str, Any] = {FIELDS[kind]: (part,) if kind == "pre_aggregators" else part}
        made.append(numbers(dataclasses.replace(run, **parts)))
    assert made[0] == made[1], (name, value)


@pytest.mark.parametrize("place", KNOWN, ids=":".join)
def test_auto_and_its_value_are_one_run(
    place: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, name, _ = place
    for run, value in explicit_values(place, monkeypatch):
        changed: dict[str, Any] = {FIELDS[kind]: with_value(place, run, value).text}
        assert resolve(dataclasses.replace(run.spec, **changed)) == run, (name, value)
