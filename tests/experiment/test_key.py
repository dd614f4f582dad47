"""The run key: equal for equal meaning, different for every difference, and the same for ever."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

import pytest

from dynabro_cli import RunSpec
from dynabro_cli.experiment import key as module
from dynabro_cli.experiment.key import canonical_json, run_key
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.experiment.spec import fields
from tests.tables import each_row

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


GOLDEN: list[tuple[dict[str, Any], str]] = [
    ({}, "c4ae7670212c3ab69e6b43264ad293201141009b57bea10d457cfd80c2784480"),
    (TAILORED, "57c9d2303a439c1f6eb3eae36a2e459a0e0600ebb0b313f6307cc2a7f793ebfb"),
    (BERNOULLI, "4d2ae1d1dbe2e0d3475f4e45d137d0dce908aa3f457a61ae92fd636c21bad0a9"),
    (
        {
            "task": "mnist",
        },
        "933c46ee52c1e2f9d0054b9bd06d50a8aae36c407739d7ed493f7c29e84c12bb",
    ),
    (
        {"task": "mnist", "model": "cnn-mnist:softmax=false"},
        "933c46ee52c1e2f9d0054b9bd06d50a8aae36c407739d7ed493f7c29e84c12bb",
    ),
    (
        {"task": "mnist", "model": "cnn-mnist:softmax=true"},
        "7ba7ee431e4128ba992cd182d387ab4114c02f2c262402c80ace48e1db50d9de",
    ),
    (
        {
            "task": "fashion-mnist",
            "model": "mlp:hidden=50,layers=2,dropout=0.5",
            "method": "momentum:beta=0.99,form=heavy-ball",
            "attack_entry": "state",
        },
        "e2246c9e661e04fc25b03c7d5b0a40d83e1ded4f0af10e1eab5119c454c5336a",
    ),
    (
        {
            "task": "cifar100",
            "aggregator": "krum:f=3,neighbours=m-f-1",
            "attack": "alie:z=1.5",
            "attack_entry": "message",
            "switching": "static",
        },
        "c0a56911ab8ef4e76c489c02477479cd54a952de27f06c9c52906a195de810fa",
    ),
    (
        {
            "model": "logistic",
            "method": "sgd",
            "aggregator": "mean",
            "attack": "none",
            "workers": 5,
            "byzantine": 0,
            "budget": 100,
            "batch_size": 4,
            "learning_rate": 0.125,
            "eval_every": 10,
        },
        "2d20b50719721acf8f4adda237d99eea0aeeb174a4eed57d4c2024ab3b600c41",
    ),
    (
        {
            "aggregator": "gm:T=20,nu=1e-5,tolerance=1e-4",
            "attack": "ipm:epsilon=0.5",
            "clock": "computation",
            "lr_drop": "0.5:0.5,0.9:0.1",
            "weight_decay": 0.0,
            "seed": 2**63 - 1,
        },
        "959e68fd080274092759a8f044e64868d18e37ac717578714b6bde9368288d7a",
    ),
    (
        {
            "method": "dynabro:jmax=3",
            "aggregator": "cwtm:f=2",
            "pre_aggregators": "nnm:f=1+nnm",
            "lr_rule": "adagrad-norm",
            "precision": "bf16",
        },
        "9364745d48ee9d281fea3b06a2a22695048809f223160c95bfc934aa731bc8d9",
    ),
    (
        {
            "method": "dynabro:jmax=auto,filter=option2",
            "budget": 700,
            "precision": "tf32",
        },
        "e1b1fb49ef383f9a6c82012154c6886cc1a762cb0182b41210c5ebabc54fcc74",
    ),
    (
        {
            "method": "dynabro:filter=option2,noise_bound=3",
            "pre_aggregators": "nnm",
        },
        "7e9df086caf323068b235ea2ceac2ce6da6053e4df6dfa6f92f22f084bcec6e7",
    ),
    (
        {
            "method": "sgd",
            "aggregator": "mfm:threshold=2.5",
            "switching": "bernoulli:p=0.5,D=3,delta_max=1",
        },
        "607fb4a0228270e15a79477c6b8323563d1cfcc36e37fdd2eaf678e9be250b80",
    ),
    (
        {
            "task": "quadratic:dimension=3,condition=5,sigma=0.1,noise=bounded,start=1:2:3,radius=9",  # noqa: E501
            "method": "momentum",
            "attack": "momentum-tailored:lambda=-2,beta=0.5",
            "switching": "rotating:period=7",
        },
        "9396034cf09ba34f7cf4b7fc869f784b3baa40a4a16b64b7c90e2bc86ef15c3f",
    ),
    (
        {
            "task": "quadratic",
            "method": "sgd",
            "aggregator": "cwmed",
            "attack": "shift:lambda=0.5",
            "switching": "periodic:K=333",
        },
        "325bf84b27c0cba8e0e56a5fa50a6bda4778a019a3f7e8648fe3457a5cfea597",
    ),
    (
        {
            "task": "image-folder:name=pets,like=cifar10",
            "aggregator": "krum",
            "byzantine": 11,
        },
        "5f180c52ba71d6c123e7fa36087d67c24d866e38a27fd72b215e204f6f58071b",
    ),
    (
        {
            "task": "digits",
            "data": "dirichlet:alpha=0.1,by=label",
            "validation": 0.125,
        },
        "e7b17cbc74a52db878fa1ff9ad83a239553e6b6ba01c644c01a87e00c246bda0",
    ),
    (
        {
            "task": "mnist",
            "data": "gamma:similarity=0.25",
        },
        "282375cd3ae160fda444b593587dafc27d2242bc62d15cf11e5d8a6440cbce74",
    ),
    (
        {"model": "mlp", "switching": "round-robin:K=3", "participation": 0.5},
        "94a9f69edc965342fed33e0736721ada40786402014d6ce4af7db599d0489a64",
    ),
]


@each_row(("given", "expected"), GOLDEN)
def test_golden_keys(given: dict[str, Any], expected: str) -> None:
    """A change here orphans every stored result: it must be meant, and comes with another
    KEY_VERSION.
    """
    assert key(**given) == expected


def test_every_field_has_a_golden_key_with_another_value_than_its_default() -> None:
    usual = {
        task: resolve(RunSpec(task=task, model="mlp")).spec
        for task in ("digits", "mnist", "cifar100", "fashion-mnist")
    }
    specs = [(given, usual.get(given.get("task", "digits"), BASE)) for given, _ in GOLDEN]
    default = {"task": "digits", "model": None}
    assert set(fields()) == {
        field
        for given, spec in specs
        for field, value in given.items()
        if value not in (None, default.get(field, getattr(spec, field)))
    }


def test_the_key_is_the_hash_of_all_that_determines_the_numbers() -> None:
    text = (
        '{"aggregator":{"f":null,"name":"cwtm"},"attack":{"name":"sf"},"attack_entry":"gradient","batch_size":16,'
        '"budget":5000,"byzantine":8,"clock":"round","eval_every":100,"key_version":1,"learning_rate":0.05,'
        '"lr_drop":"0.8:0.1","lr_rule":"fixed","method":{"filter":"none","jmax":7,"name":"dynabro","noise_bound":null},'
        '"model":{"name":"cnn-digits"},"pre_aggregators":[],"seed":0,"switching":{"K":10,"name":"periodic"},'
        '"task":{"name":"digits"},"weight_decay":0.0001,"workers":17}'
    )
    assert key() == hashlib.sha256(text.encode()).hexdigest()


BASE = dataclasses.replace(resolve(RunSpec()).spec, lr_drop="none")


def test_a_field_added_later_leaves_the_old_keys_alone() -> None:
    assert key(precision="fp32") == key() == run_key(resolve(RunSpec()).mapping)
    without = {
        name: value
        for name, value in resolve(RunSpec()).mapping.items()
        if name not in module.ADDED_LATER
    }
    assert run_key(without) == key()
    assert len({key(precision=name) for name in ("fp32", "tf32", "bf16")}) == 3
    assert key(data="iid", validation=0) == key()
    assert len({key(participation=share) for share in (1.0, 0.5, 0.25)}) == 3


def test_fields_added_later_are_left_out_at_their_default_only() -> None:
    usual = resolve(RunSpec()).mapping
    assert {name: usual[name] for name in module.ADDED_LATER} == module.ADDED_LATER


def test_a_chains_order_counts() -> None:
    keys = {
        key(pre_aggregators=text)
        for text in ("none", "nnm", "nnm+nnm", "nnm:f=1+nnm", "nnm+nnm:f=1")
    }
    assert len(keys) == 5


def test_canonical_json() -> None:
    assert canonical_json({"b": 1, "a": {"d": None, "c": 0.1}}) == '{"a":{"c":0.1,"d":null},"b":1}'
    assert run_key({"b": 1, "a": 2}) == run_key({"a": 2, "b": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"a": float("nan")})


def test_a_new_meaning_gets_new_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    monkeypatch.setattr(module, "KEY_VERSION", 2)
    assert key() != before


def test_the_mapping_survives_json() -> None:
    mapping = resolve(RunSpec(**BERNOULLI)).mapping
    assert run_key(json.loads(canonical_json(mapping))) == run_key(mapping)
