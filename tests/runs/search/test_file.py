"""Searches as their files say them."""

from __future__ import annotations

import pytest

from dynabro_cli.core.errors import SpecError
from dynabro_cli.experiment.grid.search import Then
from dynabro_cli.experiment.grid.search_file import (
    as_document,
    load_search,
    parse_search,
    set_values,
)
from dynabro_cli.experiment.grid.search_space import Range
from dynabro_cli.experiment.grid.strict_yaml import as_yaml
from dynabro_cli.experiment.grid.sweep_file import Axis
from dynabro_cli.runs.search.outlook import outlook
from tests.tables import each_row

pytest.importorskip("optuna")

WHOLE = """
name: whole
base: {weight_decay: 0.1, task: quadratic, budget: 20}
grid: {aggregator: [cwmed, gm]}
search:
  attack: [sf, "shift:lambda={0.1..30 log}"]
  method: ["momentum:beta={0..0.99}"]
  switching: [static, "periodic:K={1..50 int log}"]
  learning_rate: {0.001..0.1 log}
maximize: final_gap
trials: 12
seeds: 0..1
then: {seeds: 0..4, best: 3}
first: [{attack: "shift:lambda=2", switching: "periodic:K=5"}, {attack: sf, learning_rate: 0.01}]
"""


def changed(*pairs: tuple[str, str]) -> str:
    """The whole search with some of its text replaced."""
    text = WHOLE
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


def problems(text: str) -> list[str]:
    """The problems of a search's text, then of its components, without the file's name."""
    with pytest.raises(SpecError) as caught:
        outlook(parse_search(text, "x.yaml"))
    return [line.removeprefix("x.yaml:") for line in caught.value.problems]


def test_a_whole_search() -> None:
    search = parse_search(WHOLE, "x.yaml")
    assert search.axes[3] == Axis("learning_rate", ({"learning_rate": "{0.001..0.1 log}"},))
    assert (search.goal, search.maximize, search.trials, search.seeds) == (
        "final_gap",
        True,
        12,
        (0, 1),
    )
    assert search.then == Then((0, 1, 2, 3, 4), 3)
    assert search.space.parameters(search.first[0]) == {
        "attack": "shift:lambda={0.1..30 log}",
        "attack.shift.lambda": 2.0,
        "switching": "periodic:K={1..50 int log}",
        "switching.periodic.K": 5,
    }
    assert [name for name, _ in search.points()] == [
        "whole: aggregator=cwmed",
        "whole: aggregator=gm",
    ]
    names = [
        name
        for axis in search.space.axes
        for entry in axis.entries
        for own in entry.names.values()
        for name in own
    ]
    assert names == [
        "attack.shift.lambda",
        "method.momentum.beta",
        "switching.periodic.K",
        "learning_rate",
    ]


def test_it_is_the_same_when_it_is_written_and_read_again() -> None:
    search = parse_search(WHOLE, "x.yaml")
    assert parse_search(as_yaml(as_document(search)), "y.yaml") == search


@each_row(
    ("old", "new", "changed_key"),
    [
        ("{0.1..30 log}", "{1e-1..30.0 log}", None),
        ("momentum:beta={0..0.99}", "momentum:beta={0.0..0.99}", None),
        ("weight_decay: 0.1", "weight_decay: 0.10", None),
        ("{weight_decay: 0.1, task: quadratic", "{task: quadratic, weight_decay: 1e-1", None),
        ("seeds: 0..1", "seeds: [1, 0]", None),
        ("trials: 12", "trials: 20\nsampler: random", None),
        ("{0.1..30 log}", "{0.1..30}", "search"),
        ("{1..50 int log}", "{1..50 log}", "search"),
        ("{0.1..30 log}", "{0.1..31 log}", "search"),
        ("[sf, ", "[sf, alie, ", "search"),
        ("budget: 20}", "budget: 30}", "base budget"),
        ("budget: 20}", "budget: 20, workers: 5}", "base workers"),
        ("seeds: 0..1", "seeds: 0..2", "seeds"),
        ("maximize", "minimize", "goal"),
        ("trials: 12", "trials: 12\ndiverged: skip", "diverged"),
    ],
)
def test_a_question_is_the_same_in_another_spelling(
    old: str, new: str, changed_key: str | None
) -> None:
    first, second = (parse_search(text, "x.yaml").question for text in (WHOLE, changed((old, new))))
    assert [key for key in first | second if first.get(key) != second.get(key)] == (
        [changed_key] if changed_key else []
    )


def test_the_order_of_a_space_is_no_part_of_its_question() -> None:
    turned = changed(
        ('  attack: [sf, "shift:lambda={0.1..30 log}"]\n', ""),
        ("maximize:", '  attack: ["shift:lambda={0.1..30 log}", sf]\nmaximize:'),
    )
    assert parse_search(turned, "x.yaml").question == parse_search(WHOLE, "x.yaml").question


@each_row(
    ("axis", "names"),
    [
        ('lr_drop: ["{0.5..0.9}:{0.01..0.2}"]', ["lr_drop", "lr_drop.2"]),
        (
            'pre_aggregators: ["clipping:c={1..2}+clipping:c={1..2}"]',
            ["pre_aggregators.clipping.c", "pre_aggregators.clipping.c.2"],
        ),
        ('lr_drop: [none, "{0.5..0.9}:0.1"]', ["lr_drop#2"]),
        ('lr_drop: ["0.5:{0.1..0.2}", "0.5:{0.1..0.3}"]', ["lr_drop.5", "lr_drop.5#2"]),
        ('lr_drop: ["0.5:{0.1..0.2}", "0.5:{0.1..0.2},0.9:0.01"]', ["lr_drop.5", "lr_drop.5"]),
    ],
)
def test_each_range_of_a_value_has_its_own_number(axis: str, names: list[str]) -> None:
    search = parse_search(
        changed(("  learning_rate: {0.001..0.1 log}", f"  {axis}"), (", learning_rate: 0.01", "")),
        "x.yaml",
    )
    assert [
        name
        for entry in search.space.axes[3].entries
        for own in entry.names.values()
        for name in own
    ] == names
    assert outlook(search).legal == 4 * len(search.space.axes[3].entries)


def test_the_size_of_a_search() -> None:
    found = outlook(parse_search(WHOLE, "x.yaml"))
    assert (found.searches, found.trials, found.runs) == (2, 24, 2 * (12 * 2 + 3 * 3))
    assert (found.combinations, found.legal, found.idle) == (4, 4, ())


def test_combinations_that_cannot_run_are_counted() -> None:
    text = changed(("attack: [sf,", "attack_entry: [gradient, data]\n  attack: [sf,"))
    found = outlook(parse_search(text, "x.yaml"))
    assert (found.combinations, found.legal, found.idle) == (8, 4, ("attack_entry=data",))


def test_an_entry_that_another_search_of_the_file_has_is_not_idle() -> None:
    one = ("first: [", "exclude: [{aggregator: cwmed, attack: sf}]\nfirst: [")
    assert outlook(parse_search(changed(one), "x.yaml")).idle == ()
    both = (
        "first: [",
        "exclude: [{aggregator: cwmed, attack: sf}, {aggregator: gm, attack: sf}]\nfirst: [",
    )
    assert outlook(parse_search(changed(both), "x.yaml")).idle == ("attack=sf",)


@each_row(
    ("old", "new", "line", "word"),
    [
        ("{0.1..30 log}", "{}", 6, "it has no numbers LOW..HIGH. Try: {0.05..20}"),
        ("{0.1..30 log}", "{30..0.1 log}", 6, "30 is not below 0.1. Try: {0.1..30 log}"),
        ("{0.1..30 log}", "{0..30 log}", 6, "log needs numbers above 0. Try: {0.03..30 log}"),
        ("{0.1..30 log}", "{0.1..30 lgo}", 6, "unknown word 'lgo' (did you mean 'log'?)"),
        ("{1..50 int log}", "{0.5..50 int}", 8, "int needs whole numbers. Try: {1..50 int}"),
        ("{1..50 int log}", "{1..50}", 8, "K=21.2965 is not legal; K must be a whole number"),
        ("{1..50 int log}", "{1..50", 8, "a brace is not closed"),
        ("{0..0.99}", "{0..2}", 7, "beta=2 is not legal"),
        (
            "maximize: final_gap",
            "maximize: final_gpa",
            10,
            "maximize=final_gpa is not legal (did you mean 'final_gap'?)",
        ),
        ("trials: 12", "trials: 0", 11, "trials=0 is not legal. Try: a whole number from 1"),
        (
            "trials: 12",
            "trials: 12\nsampler: tpee",
            12,
            "sampler=tpee is not legal (did you mean 'tpe'?)",
        ),
        (
            "trials: 12",
            "trials: 12\nsampler: grid",
            12,
            "sampler=grid: search has ranges. Try: sampler: tpe",
        ),
        ("best: 3", "beste: 3", 13, "then: unknown key 'beste' (did you mean 'best'?)"),
        ("trials: 12", "trails: 12", 11, "unknown key 'trails' (did you mean 'trials'?)"),
        (
            "lambda=2",
            "lambda=0.01",
            14,
            "attack=shift:lambda=0.01 is not in the search space; legal: sf, shift:lambda={0.1",
        ),
        (
            "periodic:K=5",
            "rotating",
            14,
            "first: switching=rotating is not in the search space; legal: static, periodic",
        ),
        (
            "{attack: sf, learning",
            "{seed: 3, learning",
            14,
            "first: search does not vary seed. Try: fields of the search",
        ),
        ("first: [", "first: [sf, ", 14, "first must be a mapping"),
        ("first: [", "first: sf  # [", 14, "first must be a list of mappings"),
        (
            "trials: 12",
            "sampler: grid",
            14,
            "sampler=grid: it makes every combination, in their order. Try: no first",
        ),
        ("budget: 20}", "budget: 20, attack: sf}", 6, "search varies attack, and so does base"),
        (
            "search:\n",
            "search:\n  attack.shift.lambda: [{clock: round}, {clock: computation}]\n",
            6,
            (
                "search: an axis and a range are both named attack.shift.lambda. Try: another name "
                "for the axis"
            ),
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_line(old: str, new: str, line: int, word: str) -> None:
    found = problems(changed((old, new)))
    assert any(problem.startswith(f"{line}: ") and word in problem for problem in found), found


@each_row(
    ("old", "new", "word"),
    [
        ("maximize: final_gap\n", "", "a search needs one goal"),
        (
            "maximize: final_gap",
            "maximize: final_accuracy",
            "task 'quadratic' has no test set. Try: maximize: final_gap",
        ),
        (
            "task: quadratic, budget: 20",
            "task: mnist, budget: 20",
            "task 'mnist' has no known minimum",
        ),
        ("trials: 12\n", "", "a search needs a number of trials"),
        ("trials: 12", "trials: 12\nsampler: cmaes", ""),
    ],
)
def test_goals_and_trials(old: str, new: str, word: str) -> None:
    if not word:  # two ranges are in every trial, so that this is legal
        assert outlook(parse_search(changed((old, new)), "x.yaml")).trials == 24
        return
    assert any(word in problem for problem in problems(changed((old, new))))


def test_all_problems_at_once() -> None:
    text = changed(
        ("{0.1..30 log}", "{0..30 log}"), ("trials: 12", "trials: 0"), ("final_gap", "final_gpa")
    )
    assert len(problems(text)) == 3


def test_a_search_without_a_legal_combination() -> None:
    found = problems(changed(("aggregator: [cwmed, gm]", "byzantine: [1, 2]")))
    assert len(found) == 1
    assert found[0].startswith("whole: byzantine=2: no combination can run, first because")


def test_settings_name_the_searches() -> None:
    search = set_values(parse_search(WHOLE, "x.yaml"), ["aggregator=krum", "trials=3", "budget=10"])
    assert [name for name, _ in search.points()] == ["whole: aggregator=krum"]
    assert (search.trials, search.sweep.base["budget"]) == (3, "10")
    # rows of many methods become one
    fewer = set_values(load_search("worst-between"), ["method=sgd", "learning_rate=1"])
    rules = {
        (fixed.get("pre_aggregators"), fixed["aggregator"])
        for _, fixed in load_search("worst-between").points()
    }
    assert len(list(fewer.points())) == len(rules)
    assert (
        next(iter(fewer.points()))[0]
        == "worst-between: method=sgd, aggregator=nnm+cwtm, learning_rate=1"
    )
    one = set_values(
        load_search("worst-between"),
        ["pre=none", "aggregator=krum", "method=sgd", "learning_rate=1"],
    )
    assert [name for name, _ in one.points()] == [
        "worst-between: method=sgd, aggregator=krum, learning_rate=1"
    ]
    with pytest.raises(SpecError, match="search varies attack"):
        set_values(search, ["attack=sf"])


def test_numbers_of_a_range_are_short_and_inside() -> None:
    one = Range.parse("0.05..20 log")
    assert one.text(0.123456789) == "0.123457"
    assert one.text(20.0000001) == "20"


def test_the_programs_own_searches_are_legal() -> None:
    assert outlook(load_search("worst-adversary")).trials == 200
