"""The run key: equal for equal meaning, different for every difference, and the same for ever."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

import pytest

from dynabro_cli import RunSpec, identity
from dynabro_cli.identity import canonical_json, run_key
from dynabro_cli.resolve import REGISTRIES, resolve
from dynabro_cli.spec import fields

TAILORED = {
    "task": "quadratic",
    "method": "momentum:beta=0.99",
    "aggregator": "cwmed",
    "attack": "momentum-tailored:lambda=2",
    "switching": "rotating",
    "seed": 3,
}
BERNOULLI = {
    "task": "cifar10",
    "method": "dynabro:filter=option1,noise_bound=2",
    "aggregator": "cwtm",
    "pre_aggregators": "nnm",
    "attack": "ipm",
    "switching": "bernoulli:p=0.01,D=10,delta_max=0.72",
    "clock": "computation",
    "lr_rule": "adagrad-norm",
}


def key(**given: Any) -> str:
    return resolve(RunSpec(**given)).key


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "c4ae7670212c3ab69e6b43264ad293201141009b57bea10d457cfd80c2784480"),
        (TAILORED, "57c9d2303a439c1f6eb3eae36a2e459a0e0600ebb0b313f6307cc2a7f793ebfb"),
        (BERNOULLI, "4d2ae1d1dbe2e0d3475f4e45d137d0dce908aa3f457a61ae92fd636c21bad0a9"),
    ],
)
def test_golden_keys(given: dict[str, Any], expected: str) -> None:
    """A change here orphans every stored result: it must be meant, and comes with another KEY_VERSION."""
    assert key(**given) == expected


def test_the_key_is_the_hash_of_all_that_determines_the_numbers() -> None:
    text = (
        '{"aggregator":{"f":null,"name":"cwtm"},"attack":{"name":"sf"},"attack_entry":"gradient","batch_size":16,'
        '"budget":5000,"byzantine":8,"clock":"round","eval_every":100,"key_version":1,"learning_rate":0.05,'
        '"lr_drop":"0.8:0.1","lr_rule":"fixed","method":{"filter":"none","jmax":7,"name":"dynabro","noise_bound":null},'
        '"model":{"name":"cnn-digits"},"pre_aggregators":[],"seed":0,"switching":{"K":10,"name":"periodic"},'
        '"task":{"name":"digits"},"weight_decay":0.0001,"workers":17}'
    )
    assert key() == hashlib.sha256(text.encode()).hexdigest()


SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"task": "digits", "model": "cnn-digits", "workers": 17, "byzantine": 8, "learning_rate": 0.05, "aggregator": "cwtm"}),
    ({"method": "momentum"}, {"method": "momentum:form=ema,beta=0.90"}),
    ({"method": "dynabro"}, {"method": "dynabro:jmax=7,filter=none,noise_bound=auto"}),
    ({"learning_rate": 1}, {"learning_rate": 1.0}),
    ({"weight_decay": 0}, {"weight_decay": 0.0}),
    ({"weight_decay": 0.0}, {"weight_decay": -0.0}),
    ({"lr_drop": "0.80:0.1"}, {"lr_drop": "0.8:1e-1"}),
    ({"lr_drop": "0.5:0.1,0.8:0.2"}, {"lr_drop": "0.8:0.2,0.5:0.1"}),
    ({"lr_rule": "adagrad-norm"}, {"lr_rule": "adagrad-norm", "lr_drop": "none"}),
    ({"switching": "periodic:K=10"}, {"switching": " periodic: K=1e1 "}),
    ({"attack": "ipm"}, {"attack": "ipm:epsilon=.1"}),
    ({"attack": "alie"}, {"attack": "alie:z=auto"}),
    ({"attack": "shift:lambda=0"}, {"attack": "shift:lambda=-0"}),
    ({"pre_aggregators": "nnm"}, {"pre_aggregators": "nnm:f=auto"}),
    ({"task": "quadratic", "method": "sgd"}, {"task": "quadratic:condition=3,noise=gaussian", "method": "sgd"}),
    ({"task": "quadratic:start=1:2"}, {"task": "quadratic:start=1.0:2e0"}),
]


@pytest.mark.parametrize(("left", "right"), SAME)
def test_what_means_the_same_has_one_key(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert key(**left) == key(**right)


BASE = dataclasses.replace(resolve(RunSpec()).spec, lr_drop="none")
OTHER: dict[str, Any] = {
    "task": "fashion-mnist",
    "model": "mlp",
    "method": "sgd",
    "aggregator": "cwmed",
    "pre_aggregators": "nnm",
    "attack": "ipm",
    "attack_entry": "message",
    "switching": "static",
    "clock": "computation",
    "workers": 18,
    "byzantine": 7,
    "budget": 5001,
    "batch_size": 17,
    "learning_rate": 0.050000000000000010,
    "lr_rule": "adagrad-norm",
    "lr_drop": "0.8:0.1",
    "weight_decay": 2e-4,
    "eval_every": 101,
    "seed": 1,
    "precision": "bf16",
}


def test_the_table_has_every_field() -> None:
    assert list(OTHER) == list(fields())


@pytest.mark.parametrize("field", OTHER)
def test_every_field_counts(field: str) -> None:
    assert getattr(BASE, field) != OTHER[field]
    assert resolve(dataclasses.replace(BASE, **{field: OTHER[field]})).key != resolve(BASE).key


@pytest.mark.parametrize("registry", REGISTRIES)
def test_every_parameter_of_every_component_counts(registry: str) -> None:
    for entry in REGISTRIES[registry].entries().values():
        needed = ",".join(f"{info.key}={'x' if info.type is str else 1}" for info in entry.infos if info.required)
        component = REGISTRIES[registry].parse(f"{entry.name}:{needed}" if needed else entry.name)
        keys = {run_key(component.mapping)}
        for info in entry.infos:
            value = next(choice for choice in (0.37, 3, "y", (1.0, 2.0)) if isinstance(choice, info.type))
            changed = dataclasses.replace(component.parameters, **{info.field: value})
            keys.add(run_key(dataclasses.replace(component, parameters=changed).mapping))
        assert len(keys) == 1 + len(entry.infos), f"{entry.name}: a parameter is not part of the key"


def test_a_field_added_later_leaves_the_old_keys_alone() -> None:
    assert key(precision="fp32") == key() == run_key(resolve(RunSpec()).mapping)
    without = {name: value for name, value in resolve(RunSpec()).mapping.items() if name not in identity.ADDED_LATER}
    assert run_key(without) == key()
    assert len({key(precision=name) for name in ("fp32", "tf32", "bf16")}) == 3


def test_fields_added_later_are_left_out_at_their_default_only() -> None:
    assert {name: getattr(RunSpec(), name) for name in identity.ADDED_LATER} == identity.ADDED_LATER


def test_a_chains_order_counts() -> None:
    keys = {key(pre_aggregators=text) for text in ("none", "nnm", "nnm+nnm", "nnm:f=1+nnm", "nnm+nnm:f=1")}
    assert len(keys) == 5


def test_canonical_json() -> None:
    assert canonical_json({"b": 1, "a": {"d": None, "c": 0.1}}) == '{"a":{"c":0.1,"d":null},"b":1}'
    assert run_key({"b": 1, "a": 2}) == run_key({"a": 2, "b": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"a": float("nan")})


def test_a_new_meaning_gets_new_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    monkeypatch.setattr(identity, "KEY_VERSION", 2)
    assert key() != before


def test_the_mapping_survives_json() -> None:
    mapping = resolve(RunSpec(**BERNOULLI)).mapping
    assert run_key(json.loads(canonical_json(mapping))) == run_key(mapping)
