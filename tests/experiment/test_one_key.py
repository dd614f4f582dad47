"""Two ways to write one thing are one key, and two things are two: for every field, and every
parameter of every component.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import random
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dynabro_cli.components import ParameterInfo, format_value
from dynabro_cli.errors import SpecError
from dynabro_cli.experiment.resolve import REGISTRIES, resolve
from dynabro_cli.experiment.spec import RunSpec, fields
from dynabro_cli.grid.plan import plan
from dynabro_cli.grid.sweep_file import parse_sweep
from tests.contract.test_auto import FIELDS, least, needed

# Settings that suit components of all kinds; each is tried in the first in which it can run.
SETTINGS: list[dict[str, str]] = [
    {
        "task": "digits",
        "model": "mlp",
        "method": "momentum",
        "workers": "18",
        "byzantine": "6",
        "budget": "700",
    },
    {"task": "digits", "model": "mlp", "method": "dynabro:filter=option2,noise_bound=1"},
    {"task": "quadratic", "method": "dynabro"},
    {"task": "mnist", "method": "sgd"},
    {"task": "text-file", "method": "sgd"},
    {
        "task": "digits",
        "model": "mlp",
        "method": "momentum",
        "workers": "18",
        "byzantine": "2",
        "budget": "700",
    },
]

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
"""Texts that are no free words; tests/switching/test_trace.py has their keys."""
TEXTS = {
    "parts": ["sf/ipm", "ipm/sf", "sf/ipm/sf", "nan/gaussian", "alie/optimal-ipm"],
    "rule": ["gm", "cwmed", "cwtm", "mean", "krum"],
}
"""Values of the parameters that are texts and not any word."""

PARAMETERS = [
    (kind, entry.name, info)
    for kind, registry in REGISTRIES.items()
    for entry in registry.entries().values()
    for info in entry.infos
    if (kind, entry.name, info.key) not in NO_WORDS
]
every_parameter = pytest.mark.parametrize(
    ("kind", "name", "info"), PARAMETERS, ids=[f"{k}:{n}:{i.key}" for k, n, i in PARAMETERS]
)
MANY = 5
"""Parameters of a component up to which every order of them is tried."""
every_field = pytest.mark.parametrize("info", fields().values(), ids=fields())
few = settings(max_examples=10, deadline=None)
fewer = settings(max_examples=3, deadline=None)
"""For what is tried with each of more than a hundred parameters."""


def key(values: Mapping[str, str]) -> str:
    return resolve(RunSpec.from_text(values)).key


@functools.cache
def setting_of(kind: str, name: str) -> dict[str, str]:
    """A setting in which the component can run."""
    for setting in SETTINGS:
        values = setting | {FIELDS[kind]: needed(kind, name)}
        if kind != "models" and values["task"].partition(":")[0] == "quadratic":
            values.pop("model", None)
        try:
            resolve(RunSpec.from_text(values))
        except SpecError:
            continue
        return values
    raise AssertionError(f"no setting suits {kind}/{name}; add one to SETTINGS")


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
    required = [
        other
        for other in REGISTRIES[kind].entry(name).infos
        if other.required and other.key != info.key
    ]
    return f"{name}:" + ",".join(
        [*(least(kind, name, other) for other in required), f"{info.key}={text}"]
    )


def resolved(values: Mapping[str, str]) -> str:
    """The key, or nothing, to hypothesis, where the value does not suit the others."""
    try:
        return key(values)
    except SpecError:
        assume(False)
        raise


# --- one thing, one key


@pytest.mark.parametrize(
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


@every_parameter
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


@pytest.mark.parametrize("setting", SETTINGS)
@every_field
def test_a_fields_default_given_or_left_out(info: ParameterInfo, setting: dict[str, str]) -> None:
    """Also the defaults that are the task's."""
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


@pytest.mark.parametrize(
    ("kind", "name", "info"), [found for found in PARAMETERS if takes_zero(found[2])]
)
def test_zero_has_no_sign(kind: str, name: str, info: ParameterInfo) -> None:
    setting = setting_of(kind, name)
    texts = [given_text(kind, name, info, zero) for zero in ("0", "0.0", "-0.0", "-0", "-0e5")]
    assert len({key(setting | {FIELDS[kind]: text}) for text in texts}) == 1


@pytest.mark.parametrize("field", [name for name, info in fields().items() if takes_zero(info)])
def test_zero_has_no_sign_in_a_field(field: str) -> None:
    assert len({key({field: zero}) for zero in ("0", "0.0", "-0.0", "-0", "-0e5")}) == 1


@every_parameter
def test_a_parameters_default_given_or_left_out(kind: str, name: str, info: ParameterInfo) -> None:
    setting = setting_of(kind, name)
    if not info.required:
        for text in spellings(info.default):
            assert key(setting | {FIELDS[kind]: given_text(kind, name, info, text)}) == key(setting)


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in REGISTRIES for name in REGISTRIES[kind].entries()]
)
def test_the_order_of_parameters(kind: str, name: str) -> None:
    """Every parameter is given, with the value that it has anyway."""
    setting = setting_of(kind, name)
    part = REGISTRIES[kind].parse(setting[FIELDS[kind]])
    given_ = [
        f"{info.key}={format_value(getattr(part.parameters, info.field))}"
        for info in part.entry.infos
    ]
    orders = itertools.permutations(given_)
    if len(given_) > MANY:  # too many orders for all
        chance = random.Random(0)
        orders = (tuple(chance.sample(given_, len(given_))) for _ in range(200))
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


@every_parameter
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
