"""Labels: the words that every run has, and the fields that tell runs of the same words apart."""

from __future__ import annotations

from typing import Any

from dynabro_cli import RunSpec
from dynabro_cli.experiment.label import CELL, OTHERS, cell, labels, telling_apart
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.experiment.spec import fields


def made(**given: Any) -> dict[str, Any]:
    return resolve(RunSpec(**given)).fields


def test_every_field_is_in_the_words_or_beside_them() -> None:
    assert sorted((*CELL, *OTHERS)) == sorted(fields())


def test_a_run_in_a_few_words() -> None:
    assert cell(made(seed=3)) == "digits, dynabro, cwtm, sf, periodic:K=10, seed 3"
    assert cell(made(pre_aggregators="nnm", aggregator="gm")).split(", ")[2] == "nnm+gm"
    assert cell(made(learning_rate=1), ["budget", "learning_rate"]).endswith(
        ", seed 0, budget=5000, learning_rate=1"
    )


def test_what_the_words_say_is_no_news() -> None:
    """The learning rate is another for each method, and so tells nothing that the method does
    not.
    """
    assert (
        telling_apart(
            [made(method=method, seed=seed) for method in ("sgd", "dynabro") for seed in (0, 1)]
        )
        == []
    )


def test_runs_of_the_same_words_are_told_apart() -> None:
    runs = [made(learning_rate=rate, budget=budget) for rate in (1, 0.5) for budget in (10, 20)]
    assert telling_apart(runs) == ["budget", "learning_rate"]
    assert (
        labels(runs)[0]
        == "digits, dynabro, cwtm, sf, periodic:K=10, seed 0, budget=10, learning_rate=1"
    )
    assert len(set(labels(runs))) == 4


def test_one_field_is_enough_if_others_follow_it() -> None:
    """The declared number of Byzantine workers grows with the workers."""
    assert telling_apart([made(workers=workers) for workers in (9, 17, 33)]) == ["workers"]


def test_what_is_given_is_not_told_again() -> None:
    runs = [made(attack=attack, budget=budget) for attack, budget in (("sf", 10), ("ipm", 20))]
    assert telling_apart(runs, ("attack", "budget"), ()) == ["attack"]
    assert telling_apart(runs, ("attack", "budget"), ["budget"]) == []
    assert telling_apart([], ("attack",), ()) == []
