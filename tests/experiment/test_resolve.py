"""Resolution of a typed spec into a complete and canonical one, or into a list of all its
problems.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from dynabro_cli import RunSpec
from dynabro_cli.components.attacks.alie import alie_z
from dynabro_cli.core.errors import SpecError
from dynabro_cli.experiment.resolve import resolve
from tests.tables import each_row


def filled(**given: Any) -> RunSpec:
    return resolve(RunSpec(**given)).spec


def problems(**given: Any) -> list[str]:
    """The lines that resolving complains with."""
    with pytest.raises(SpecError) as caught:
        resolve(RunSpec(**given))
    return caught.value.problems


TASKS: dict[str, dict[str, Any]] = {
    "mnist": {
        "model": "cnn-mnist",
        "workers": 17,
        "byzantine": 8,
        "budget": 5000,
        "batch_size": 32,
        "lr_drop": "0.8:0.1",
        "weight_decay": 1e-4,
    },
    "cifar10": {
        "model": "cnn-cifar",
        "workers": 25,
        "byzantine": 12,
        "budget": 8000,
        "batch_size": 64,
        "lr_drop": "0.75:0.1",
        "weight_decay": 1e-4,
    },
    "digits": {"model": "cnn-digits", "workers": 17, "byzantine": 8, "lr_drop": "0.8:0.1"},
    "quadratic": {
        "model": None,
        "workers": 3,
        "byzantine": 1,
        "budget": 3000,
        "batch_size": 1,
        "lr_drop": "none",
        "weight_decay": 0.0,
        "learning_rate": 5e-3,
    },
}


@each_row("task", TASKS)
def test_the_papers_settings_are_the_defaults(task: str) -> None:
    spec = filled(task=task)
    assert {name: getattr(spec, name) for name in TASKS[task]} == TASKS[task]
    assert spec.aggregator == "cwtm"
    assert all(
        getattr(spec, field.name) is not None
        for field in dataclasses.fields(spec)
        if field.name != "model"
    )


@pytest.mark.parametrize("task", ["mnist", "cifar10", "digits"])
def test_the_default_learning_rate_depends_on_the_method(task: str) -> None:
    rates = {
        method: filled(task=task, method=method).learning_rate
        for method in ("sgd", "momentum:beta=0.99", "dynabro")
    }
    assert rates == {"sgd": 0.01, "momentum:beta=0.99": 0.01, "dynabro": 0.05}


def test_what_is_given_is_kept() -> None:
    given = {
        "task": "mnist",
        "model": "mlp:hidden=7",
        "aggregator": "gm",
        "workers": 9,
        "byzantine": 0,
        "budget": 10,
        "batch_size": 3,
        "learning_rate": 0.3,
        "lr_drop": "none",
        "weight_decay": 0.0,
        "eval_every": 2,
        "seed": 5,
    }
    spec = filled(**given)
    assert {name: getattr(spec, name) for name in given} == given


def test_texts_become_canonical() -> None:
    spec = filled(
        task=" quadratic: sigma=0.50 ,dimension=2",
        method="momentum:form=ema,beta=0.990",
        aggregator="krum:f=0.0,neighbours=m-f-1",
        pre_aggregators="nnm:f=auto+nnm:f=0",
        attack="shift:lambda=1e-1",
        switching="periodic:K=1e1",
        lr_drop="0.80:0.10,0.5:5",
        learning_rate=1,
    )
    assert spec == RunSpec(
        task="quadratic",
        method="momentum:beta=0.99",
        aggregator="krum:f=0,neighbours=m-f-1",
        pre_aggregators="nnm+nnm:f=0",
        attack="shift:lambda=0.1",
        attack_entry="gradient",
        switching="periodic:K=10",
        lr_drop="0.5:5,0.8:0.1",
        learning_rate=1.0,
        workers=3,
        byzantine=1,
        budget=3000,
        batch_size=1,
        weight_decay=0.0,
        eval_every=10,
    )
    assert isinstance(spec.learning_rate, float)


@each_row(
    "given",
    [
        {},
        {"task": "quadratic:start=1:2,radius=9", "method": "momentum", "switching": "rotating"},
        {
            "task": "cifar10",
            "method": "dynabro:filter=option2",
            "lr_rule": "adagrad-norm",
            "attack": "alie:z=1.5",
        },
        {
            "task": "image-folder:name=x,like=mnist",
            "pre_aggregators": "nnm:f=2",
            "lr_drop": "0.9:0.5,0.4:0.1",
        },
    ],
)
def test_resolving_twice_changes_nothing(given: dict[str, Any]) -> None:
    once = resolve(RunSpec(**given))
    again = resolve(once.spec)
    assert again == once
    assert again.key == once.key


@each_row(
    ("workers", "byzantine"),
    [(1, 0), (3, 1), (17, 8), (18, 8), (100, 47)],
)
def test_byzantine_scales_with_the_workers(workers: int, byzantine: int) -> None:
    assert filled(task="mnist", workers=workers).byzantine == byzantine


def test_byzantine_of_rotating_is_the_largest_third() -> None:
    given = {"method": "momentum", "switching": "rotating"}
    assert [filled(workers=m, **given).byzantine for m in (3, 5, 6, 17, 25)] == [1, 2, 2, 6, 9]
    assert filled(workers=9, byzantine=3, **given).byzantine == 3
    (line,) = problems(workers=9, byzantine=2, **given)
    assert "Try: byzantine=3" in line


def test_rotating_among_four_workers() -> None:
    """The largest third is two of four, which is not less than half: no number of Byzantine workers
    is advised.
    """
    given = {"method": "momentum", "switching": "rotating", "workers": 4}
    for byzantine in (None, 1):
        (line,) = problems(**given, byzantine=byzantine)
        assert line.endswith("Try: 3, 5 or more workers")


def test_option2_aggregates_with_mfm() -> None:
    assert filled(method="dynabro:filter=option2").aggregator == "mfm"
    assert filled(method="dynabro:filter=option2,noise_bound=3").aggregator == "mfm"
    assert filled(method="dynabro:filter=option1").aggregator == "cwtm"
    (line,) = problems(method="dynabro:filter=option2", aggregator="gm")
    assert line.startswith(
        "method 'dynabro:filter=option2' aggregates with mfm, and aggregator=gm. Try: no "
        "--aggregator"
    )


def test_assembled_parts_know_of_each_other() -> None:
    run = resolve(RunSpec(method="dynabro:filter=option2,noise_bound=2", workers=5))
    method, aggregator = run.assemble()
    rounds = round(5000 / (7 + 2**-7))
    assert method.threshold == pytest.approx(2 * math.sqrt(8 * math.log(16 * 25 * rounds)) * 2)
    assert aggregator.kappa is None
    _, mixed = resolve(RunSpec(pre_aggregators="nnm", workers=5)).assemble()
    # NNM before CWTM, at f = 2 of 5
    assert mixed.kappa == pytest.approx(8 * 2 / 3 * (6 * 2 * (1 + 2) + 1))


def test_two_f_must_be_less_than_m() -> None:
    for workers, byzantine in ((17, 9), (4, 2), (1, 1)):
        line = problems(workers=workers, byzantine=byzantine)[0]
        most = (workers - 1) // 2
        assert line.startswith(
            f"byzantine={byzantine} of workers={workers} is not legal: 2f < m must hold, so f "
            f"is at most {most}"
        )
        assert f"Try: --byzantine {most}" in line
    assert filled(workers=4, byzantine=1).byzantine == 1


def test_a_batch_cannot_be_larger_than_the_data() -> None:
    assert filled(batch_size=1437).batch_size == 1437
    (line,) = problems(batch_size=1438)
    assert (
        line == "batch_size=1438 is larger than the 1437 training samples of 'digits'. Try: "
        "--batch-size 16"
    )
    assert filled(task="quadratic", batch_size=10**6).batch_size == 10**6


def test_models_and_tasks() -> None:
    assert problems(task="quadratic:sigma=1", model="mlp") == [
        "task 'quadratic:sigma=1' has no model, and model=mlp. Try: no --model"
    ]
    (line,) = problems(task="digits", model="cnn-mnist")
    assert line.startswith(
        "model 'cnn-mnist' needs images of at least 16 x 16 pixels, but the task's are 8 x 8. "
        "Try: --model"
    )


def test_adagrad_norm_has_no_drops() -> None:
    assert filled(lr_rule="adagrad-norm").lr_drop == "none"
    (line,) = problems(lr_rule="adagrad-norm", lr_drop="0.8:0.1")
    assert line.endswith("and lr_drop=0.8:0.1. Try: --lr-drop none")


def test_an_objective_has_one_precision() -> None:
    assert (
        filled(task="quadratic").precision
        == filled(task="quadratic", precision="fp32").precision
        == "fp32"
    )
    for precision in ("tf32", "bf16"):
        assert filled(task="digits", precision=precision).precision == precision
        assert problems(task="quadratic:sigma=1", precision=precision) == [
            (
                "task 'quadratic:sigma=1' is computed in double precision, and "
                f"precision={precision}. Try: --precision fp32"
            )
        ]


def test_parts_that_do_not_fit() -> None:
    (line,) = problems(method="sgd", aggregator="mfm")
    assert line.startswith("aggregator 'mfm' needs threshold= here")
    assert filled(method="sgd", aggregator="mfm:threshold=2").aggregator == "mfm:threshold=2"
    (line,) = problems(method="dynabro:filter=option1", aggregator="mean")
    assert "needs an aggregator with a proved kappa" in line
    (line,) = problems(method="sgd", attack="momentum-tailored:lambda=1")
    assert "needs a momentum parameter" in line
    (line,) = problems(
        method="momentum", attack="momentum-tailored:lambda=1", attack_entry="message"
    )
    assert line.endswith("--attack-entry gradient")
    (line,) = problems(method="sgd", switching="rotating")
    assert "Try: 'rotating:period=...'" in line
    (line,) = problems(aggregator="cwtm:f=9")
    assert "f=9 is not legal with 17 workers" in line
    (line,) = problems(pre_aggregators="nnm:f=9")
    assert "'nnm': f=9 is not legal with 17 workers" in line


def test_parts_that_do_not_fit_are_told_together() -> None:
    lines = problems(
        method="sgd", aggregator="mfm", attack="momentum-tailored:lambda=1", switching="rotating"
    )
    assert [line.partition(" needs")[0].partition(" takes")[0] for line in lines] == [
        "aggregator 'mfm'",
        "attack 'momentum-tailored'",
        "switching 'rotating'",
    ]


NAMES = {
    "method": "dynabr",
    "attack": "ipn",
    "switching": "periodc:K=3",
    "pre_aggregators": "nmn",
    "model": "cnn-mnits",
    "aggregator": "cwt",
}


def test_unknown_names_are_told_all_at_once() -> None:
    lines = problems(**NAMES, workers=0, clock="wall")
    assert len(lines) == len(NAMES) + 2
    text = "\n".join(lines)
    for start in (
        "clock=wall",
        "workers=0",
        *(f"unknown {kind} '" for kind in ("method", "attack", "switching strategy")),
    ):
        assert f"\n{start}" in f"\n{text}"
    for name in ("dynabro", "ipm", "periodic", "nnm", "cnn-mnist", "cwtm"):
        assert f"(did you mean '{name}'?)" in text


@each_row("given", [{"workers": 0}, {"task": "mnits"}, {"method": "dynabr"}, {"byzantine": 9}])
def test_a_wrong_drop_is_told_with_whatever_else_is_wrong(given: dict[str, Any]) -> None:
    assert any(line.startswith("lr_drop=x is not legal") for line in problems(lr_drop="x", **given))


def test_names_are_told_with_an_unknown_task() -> None:
    text = "\n".join(problems(task="mnits", **NAMES))
    for name in ("mnist", "dynabro", "ipm", "periodic", "nnm", "cwtm", "cnn-mnist"):
        assert f"(did you mean '{name}'?)" in text


def test_every_problem_of_one_component_is_told() -> None:
    lines = problems(switching="bernoulli:p=2,q=1", method="momentum:beta=x,form=y")
    assert len(lines) == 6  # beta, form; q, p, D, delta_max


@each_row(
    "name",
    ["task", "model", "method", "aggregator", "pre_aggregators", "attack", "switching", "lr_drop"],
)
@each_row("value", [3, ["sgd"]])
def test_values_that_are_no_text(name: str, value: Any) -> None:
    assert any(line.startswith(f"{name}=") for line in problems(**{name: value}))


# --- what auto comes to

AUTO: list[tuple[dict[str, Any], str, str, str]] = [
    ({"byzantine": 5}, "aggregator", "cwtm:f=5", "cwtm"),
    ({}, "aggregator", "krum:neighbours=m-f-1,f=7", "krum:f=7,neighbours=m-f-1"),
    ({"byzantine": 7}, "aggregator", "krum:neighbours=m-f-1,f=7", "krum:neighbours=m-f-1"),
    ({}, "pre_aggregators", "nnm:f=8+nnm:f=7+nnm:f=8", "nnm+nnm:f=7+nnm"),
    (
        {"method": "dynabro:filter=option2,noise_bound=3", "budget": 7},
        "aggregator",
        "mfm:threshold={T}",
        "mfm",
    ),
    ({"method": "sgd"}, "aggregator", "mfm:threshold=2.5", "mfm:threshold=2.5"),
    ({"budget": 700}, "method", "dynabro:jmax=6", "dynabro:jmax=auto"),
    ({"budget": 700}, "method", "dynabro:jmax=7", "dynabro"),
    ({"budget": 1000}, "method", "dynabro:jmax=auto", "dynabro"),
    ({}, "method", "dynabro:noise_bound=auto", "dynabro"),
    (
        {"method": "momentum:beta=0.99"},
        "attack",
        "momentum-tailored:lambda=1,beta=0.99",
        "momentum-tailored:lambda=1",
    ),
    (
        {"method": "momentum"},
        "attack",
        "momentum-tailored:lambda=1,beta=0.99",
        "momentum-tailored:lambda=1,beta=0.99",
    ),
    ({"method": "momentum:beta=0.99"}, "switching", "rotating:period=33", "rotating"),
    ({"method": "sgd"}, "switching", "rotating:period=33", "rotating:period=33"),
    ({"task": "quadratic"}, "attack", "alie:z=0", "alie"),
    (
        {"task": "quadratic", "method": "momentum", "switching": "rotating"},
        "attack",
        "alie:z=0",
        "alie",
    ),
    ({"task": "quadratic", "workers": 9, "switching": "static"}, "attack", "alie:z=0", "alie:z=0"),
    (
        {"task": "quadratic", "switching": "bernoulli:p=0,D=1,delta_max=1"},
        "attack",
        "alie:z=0",
        "alie:z=0",
    ),
    ({"method": "sgd"}, "task", "quadratic:start=3:-3.0:3,dimension=3", "quadratic:dimension=3"),
    ({"method": "sgd"}, "task", "quadratic:start=3:-3", "quadratic"),
    ({"method": "sgd"}, "task", "quadratic:start=3:3", "quadratic:start=3:3"),
]


@each_row(("given", "field", "text", "expected"), AUTO)
def test_what_auto_comes_to_is_written_as_auto(
    given: dict[str, Any], field: str, text: str, expected: str
) -> None:
    """However it is typed, a run has one text, one mapping and one key."""
    threshold = 2 * math.sqrt(8 * math.log(16 * 17**2 * 1)) * 3  # 2 C V of a run of one round
    run = resolve(RunSpec(**given, **{field: text.format(T=repr(threshold))}))
    assert getattr(run.spec, field) == expected
    short = resolve(RunSpec(**given, **{field: expected}))
    assert (run, run.mapping, run.key) == (short, short.mapping, short.key)


def test_a_threshold_that_is_to_be_measured_is_not_known() -> None:
    text = "mfm:threshold=1000000000"
    assert filled(method="dynabro:filter=option2", aggregator=text).aggregator == text


def test_rotating_groups_of_unlike_sizes_have_no_one_z() -> None:
    """Five workers are in groups of 2, 2 and 1."""
    given = {"workers": 5, "method": "momentum", "switching": "rotating"}
    text = f"alie:z={alie_z(5, 2)!r}"
    assert filled(attack=text, **given).attack == text
    assert filled(attack=text, **given | {"switching": "static"}).attack == "alie"


@pytest.mark.parametrize("method", ["byzantine-sgd", "safeguard", "safeguard:guards=single"])
def test_methods_that_filter_take_the_mean(method: str) -> None:
    assert filled(method=method).aggregator == "mean"
    assert (
        resolve(RunSpec(method=method, aggregator="mean")).key
        == resolve(RunSpec(method=method)).key
    )
    first, second = problems(method=method, aggregator="cwtm", pre_aggregators="nnm")
    assert first == (
        f"method '{method}' filters by itself and takes the mean of what is left, and "
        "aggregator=cwtm. "
        "Try: no --aggregator, or --aggregator mean"
    )
    assert (
        second == f"method '{method}' judges each worker's own messages, and pre_aggregators=nnm. "
        "Try: no --pre"
    )


def test_a_cohort_has_its_share_of_byzantine_workers() -> None:
    run = resolve(RunSpec(method="marina-pp:C=5", aggregator="cwtm", workers=17, byzantine=8))
    method, _ = run.assemble()
    rule = run.cohort_rule(method)
    assert rule is not None
    messages = torch.tensor([[0.0], [1.0], [2.0], [30.0], [40.0]])
    # floor(5 x 8/17) = 2 are cut from either side
    assert rule.aggregate(messages, {}, 1)[0].tolist() == [2.0]
    assert (
        resolve(RunSpec(method="sgd")).cohort_rule(resolve(RunSpec(method="sgd")).assemble()[0])
        is None
    )


@each_row(
    ("fields", "batches"),
    [
        ({}, 90),
        ({"data": "sorted"}, 6),
        ({"validation": 0.5}, 45),
        ({"data": "dirichlet:alpha=1", "validation": 0.5}, 3),
    ],
)
def test_a_full_gradient_is_one_of_a_workers_samples(fields: dict[str, Any], batches: int) -> None:
    """Digits have 1437 samples to train on, 719 where half of them is held out; 17 workers have 85
    or 43 each.
    """
    run = resolve(
        RunSpec(task="digits", method="marina-pp", batch_size=16, workers=17, byzantine=2, **fields)
    )
    assert run.method_setting.batches == batches


@each_row(
    ("fields", "what"),
    [
        ({"method": "safeguard"}, "method 'safeguard'"),
        ({"method": "byzantine-sgd"}, "method 'byzantine-sgd'"),
        ({"method": "marina-pp"}, "method 'marina-pp'"),
        ({"aggregator": "monna"}, "aggregator 'monna'"),
        ({"attack": "mimic"}, "attack 'mimic'"),
        ({"attack": "mixed"}, "attack 'mixed'"),
    ],
)
def test_what_tells_workers_apart_needs_all_of_them(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(SpecError) as caught:
        resolve(RunSpec(**{"method": "sgd"} | fields, workers=17, byzantine=3, participation=0.5))
    assert caught.value.problems == [
        f"{what} needs every worker in every round, and participation=0.5. Try: --participation 1"
    ]
