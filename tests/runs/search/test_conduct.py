"""Trials as runs: resumed, shared, pruned, failed."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import text

from dynabro_cli.answers.analysis.search_findings import code_of, findings, in_words
from dynabro_cli.core.errors import RunError, SpecError
from dynabro_cli.core.registration import plugins
from dynabro_cli.runs.search import conduct, study_in_progress
from dynabro_cli.runs.store.care.check import check
from dynabro_cli.runs.store.care.merge import merge
from dynabro_cli.runs.store.care.thin import thin
from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.ownership import new_owner
from dynabro_cli.runs.store.read.searches import curves_of
from dynabro_cli.runs.store.write import trials
from tests.faults import ray_nodes
from tests.own import fresh, write_rule
from tests.postgres import cut_connections
from tests.runs.search.made import SMALL, EndedError, Watch, make, rows, small
from tests.runs.store.made import change

optuna = pytest.importorskip("optuna")

FEW = ("trials: 14", "trials: 3")
ASKED = (
    '{attack: "shift:lambda=1", switching: static}',
    '{attack: "ipm:epsilon=1", switching: "periodic:K=3"}',
)
RUNS = "SELECT run_key, status, rounds, final_gap FROM runs ORDER BY run_key"
SAMPLERS = [
    (),
    (("trials: 14", "trials: 14\npruner: median"),),
    (("trials: 14", "trials: 14\npruner: successive-halving"),),
    (
        ("trials: 14", "trials: 14\npruner: seeds\nfirst: [{attack: sf}]"),
        ("seeds: 0..1\n", "seeds: 0..2\n"),
    ),
    (("trials: 14", "trials: 14\nsampler: random"),),
    (
        ('[sf, "shift:lambda={0.1..30 log}"]', '["shift:lambda={0.1..30 log}"]'),
        ('[static, "periodic:K={1..50 int log}"]', '["periodic:K={1..50 int log}"]'),
        ("trials: 14", "trials: 14\nsampler: cmaes"),
    ),
]


@pytest.mark.parametrize(
    "pairs",
    [
        *(pytest.param(pairs, marks=pytest.mark.thorough) for pairs in SAMPLERS[:2]),
        *(pytest.param(pairs, marks=pytest.mark.slow) for pairs in SAMPLERS[2:]),
    ],
    ids=["tpe", "median", "halving", "seeds", "random", "cmaes"],
)
def test_a_search_that_ends_anywhere_goes_on_as_if_it_had_not(
    pairs: tuple[tuple[str, str], ...], tmp_path: Path
) -> None:
    search = small(*pairs)
    whole = make(search, tmp_path / "whole.db")
    path, ends, drawn = tmp_path / "parts.db", 0, random.Random(0)
    while ends < 60:
        ends += 1
        watch = Watch(end_at=drawn.randint(5, whole.events // 3))
        make(search, path, watch)
        if watch.events < (watch.end_at or 0):
            break
    assert 2 < ends < 60
    assert len(rows(path)) == 14
    assert rows(path) == rows(tmp_path / "whole.db")
    assert rows(path, RUNS) == rows(tmp_path / "whole.db", RUNS)


@pytest.mark.thorough
def test_a_search_in_postgresql_ends_and_goes_on_as_in_a_file(
    postgres: str, tmp_path: Path
) -> None:
    make(small(), postgres, Watch(end_at=40))
    before = rows(postgres)
    assert "running" in {row[2] for row in before}
    make(small(), postgres)
    make(small(), tmp_path / "whole.db")
    assert rows(postgres) == rows(tmp_path / "whole.db")
    assert sorted(rows(postgres, RUNS)) == sorted(rows(tmp_path / "whole.db", RUNS))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["trials_of", "curves_of", "ends_of", "file_text"])
def test_a_search_waits_for_a_server_that_drops_its_connections(
    name: str, postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of every fifth of a search's transactions of one kind."""
    module = conduct if name == "file_text" else study_in_progress
    real, calls = getattr(module, name), itertools.count()

    def cutting(*arguments: Any) -> Any:
        if next(calls) % 5 == 0:
            cut_connections(postgres)
        return real(*arguments)

    search = small(SAMPLERS[1][0])
    make(search, postgres, Watch(end_at=100))
    with monkeypatch.context() as patch:
        patch.setattr(module, name, cutting)
        make(search, postgres)
    assert next(calls) > 0
    make(search, tmp_path / "whole.db")
    assert rows(postgres) == rows(tmp_path / "whole.db")


def test_the_steps_of_a_trial_give_the_same_after_their_own_commit(tmp_path: Path) -> None:
    make(
        small(("trials: 14", "trials: 2"), ("then: {seeds: 0..2, best: 2}", "")), tmp_path / "r.db"
    )
    with open_for_writing(str(tmp_path / "r.db")).begin() as connection:
        command = connection.execute(text("SELECT MAX(id) FROM sweeps")).scalar_one()
        begin = [trials.begin(connection, "small", 2, command, {"a": 1}, ["k"]) for _ in range(2)]
        assert begin == [True, True]
        assert not trials.begin(connection, "small", 2, command + 1, {"a": 1}, ["k"])
        assert [trials.take_over(connection, "small", command) for _ in range(2)] == [[2], [2]]
        for _ in range(2):
            trials.end(connection, "small", 2, "finished", 0.5)
        assert not trials.begin(connection, "small", 2, command, {"a": 1}, ["k"])


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_a_search_on_a_ray_cluster_has_the_values_of_one_here(tmp_path: Path) -> None:
    """Random proposals do not depend on the order in which trials end."""
    pytest.importorskip("ray")
    search = small(
        ("trials: 14", "trials: 6\nsampler: random"), ("then: {seeds: 0..2, best: 2}", "")
    )
    with ray_nodes.two() as nodes:
        make(
            search, tmp_path / "ray.db", executor="ray", address=nodes.address, jobs=2, device="cpu"
        )
    make(search, tmp_path / "here.db")
    assert rows(tmp_path / "ray.db", "SELECT executor, jobs FROM sweeps") == [("ray", 2)]
    assert rows(tmp_path / "ray.db") == rows(tmp_path / "here.db")


@pytest.mark.thorough
def test_nothing_is_asked_twice(tmp_path: Path) -> None:
    first, second = make(small(), tmp_path / "r.db"), make(small(), tmp_path / "r.db")
    assert len(first.trials) == 14
    assert first.repeated == [6]
    assert second.trials == []
    assert set(second.statuses) == {"stored"}  # the repetitions are looked up, and all are there


def test_the_first_trials_are_those_of_the_file(tmp_path: Path) -> None:
    """Fields that a choice leaves out are proposed; a choice that was made before makes room for a
    proposal.
    """
    shift = '{attack: "shift:lambda=2.5", switching: static}'
    search = small(("trials: 14", f"trials: 5\nfirst: [{shift}, {{attack: sf}}, {shift}]"))
    path = tmp_path / "r.db"
    make(search, path, Watch(end_at=12))
    make(search, path)
    found = [json.loads(row[3]) for row in rows(path)]
    assert found[0] == {
        "attack": "shift:lambda={0.1..30 log}",
        "attack.shift.lambda": 2.5,
        "switching": "static",
    }
    assert found[1]["attack"] == "sf"
    assert found[2] != found[0]
    assert len({row[4] for row in rows(path)}) == 5
    make(search, tmp_path / "whole.db")
    assert rows(path) == rows(tmp_path / "whole.db")


@pytest.mark.thorough
def test_more_trials_continue_a_search(tmp_path: Path) -> None:
    make(small(), tmp_path / "whole.db")
    make(
        small(("trials: 14", "trials: 5"), ("then: {seeds: 0..2, best: 2}", "")), tmp_path / "r.db"
    )
    make(small(), tmp_path / "r.db")
    assert rows(tmp_path / "r.db") == rows(tmp_path / "whole.db")


@pytest.mark.thorough
def test_values_are_means_over_the_seeds(tmp_path: Path) -> None:
    make(small(), tmp_path / "r.db")
    gaps = {key: gap for key, _, _, gap in rows(tmp_path / "r.db", RUNS)}
    for _, _, status, _, keys, value in rows(tmp_path / "r.db"):
        own = [gaps[key] for key in json.loads(keys)]
        assert len(own) == 2
        assert (status, value) == ("finished", pytest.approx(sum(own) / 2))


@pytest.mark.thorough
def test_another_search_of_the_same_name_is_refused(tmp_path: Path) -> None:
    make(small(("trials: 14", "trials: 1")), tmp_path / "r.db")
    with pytest.raises(SpecError, match="name=small: another search is stored under this name"):
        make(small(("budget: 20", "budget: 30")), tmp_path / "r.db")
    make(small(("trials: 14", "trials: 2")), tmp_path / "r.db")
    assert len(rows(tmp_path / "r.db")) == 2


@pytest.mark.thorough
def test_of_two_searches_of_a_name_that_begin_together_the_second_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other search is made after this one has read the database, and before this one is
    stored.
    """
    real, others = conduct.slots_of, [small(("budget: 20", "budget: 30"), FEW)]

    def meanwhile(*arguments: Any, **options: Any) -> Any:
        if others:
            make(others.pop(), tmp_path / "r.db")
        return real(*arguments, **options)

    monkeypatch.setattr(conduct, "slots_of", meanwhile)
    with pytest.raises(
        SpecError,
        match="name=small: another search is stored under this name, which differs in base budget",
    ):
        make(small(FEW), tmp_path / "r.db")
    assert rows(tmp_path / "r.db", "SELECT COUNT(*) FROM sweeps") == [(1,)]
    assert rows(tmp_path / "r.db", "SELECT DISTINCT budget FROM runs") == [(30,)]
    assert len(rows(tmp_path / "r.db")) == 3


@pytest.mark.thorough
def test_another_spelling_continues_a_search(tmp_path: Path) -> None:
    """Of numbers, and of what has no order; tests/runs/search/test_file.py has more."""
    pairs = (
        ('[sf, "shift:lambda={0.1..30 log}"]', '["shift:lambda={1e-1..30.0 log}", sf]'),
        ("budget: 20", "budget: '20'"),
        ("seeds: 0..1", "seeds: [1, 0]"),
    )
    make(small(("trials: 14", "trials: 6")), tmp_path / "whole.db")
    make(small(FEW), tmp_path / "r.db")
    make(small(("trials: 14", "trials: 6"), *pairs), tmp_path / "r.db")
    assert rows(tmp_path / "r.db") == rows(tmp_path / "whole.db")


@pytest.mark.thorough
def test_trials_of_another_search_are_found(tmp_path: Path) -> None:
    """As version 1.0.0 mixed them."""
    make(small(FEW), tmp_path / "r.db")
    make(small(FEW, ("budget: 20", "budget: 30")), tmp_path / "other.db")
    (keys,) = rows(tmp_path / "other.db", "SELECT run_keys FROM trials WHERE number = 1")
    change(tmp_path / "r.db", "UPDATE trials SET run_keys = ? WHERE number = 1", *keys)
    with pytest.raises(SpecError, match="small: trial 1 was made by another search of this name"):
        make(small(("trials: 14", "trials: 4")), tmp_path / "r.db")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("added", "number"), [("sampler: grid", 6), (f"first: [{', '.join(ASKED)}, {{attack: sf}}]", 5)]
)
def test_a_grid_and_first_trials_that_are_added_are_made(
    added: str, number: int, tmp_path: Path
) -> None:
    """Two choices of ``first`` are in no trial, and the third is."""
    path, then = tmp_path / "r.db", ("then: {seeds: 0..2, best: 2}", "")
    lists = (
        ('"shift:lambda={0.1..30 log}"', '"ipm:epsilon=1", "shift:lambda=1"'),
        ('"periodic:K={1..50 int log}"', '"periodic:K=3"'),
    )
    make(small(*lists, then, ("trials: 14", "trials: 3\nsampler: random\nsampler_seed: 2")), path)
    before = rows(path)
    for _ in range(2):
        make(
            small(*lists, then, ("trials: 14", f"trials: {6 if 'grid' in added else 3}\n{added}")),
            path,
        )
        found = rows(path)
        assert found[:3] == before
        assert len({row[3] for row in found}) == len(found) == number
        for asked in ASKED:
            assert [json.loads(row[3]) == yaml.safe_load(asked) for row in found].index(True) > 2


@pytest.mark.thorough
def test_choices_of_first_that_cannot_run_are_named(tmp_path: Path) -> None:
    search = small(
        FEW,
        ("[sf,", "[sf, label-flip,"),
        ("trials: 3", "trials: 3\nfirst: [{attack: label-flip}, {attack: sf}]"),
    )
    make(search, tmp_path / "r.db")
    with open_for_writing(str(tmp_path / "r.db")).connect() as connection:
        found = findings(search, connection)[0]
    assert (found.counts, found.untried) == ({"finished": 3}, ("attack=label-flip",))
    assert "first: no trial has attack=label-flip, of which no run can be made" in in_words(
        search, found
    )


@pytest.mark.thorough
def test_pruned_runs_are_stored_and_have_no_result(tmp_path: Path) -> None:
    make(small(*SAMPLERS[1]), tmp_path / "r.db")
    statuses = [status for _, _, status, *_ in rows(tmp_path / "r.db")]
    assert {"finished", "pruned"} == set(statuses)
    found = rows(
        tmp_path / "r.db",
        "SELECT status, budget_spent < budget, checkpoint, final_gap FROM runs WHERE status = "
        "'pruned'",
    )
    assert len(found) > 0
    assert set(found) == {("pruned", 1, None, None)}
    assert rows(
        tmp_path / "r.db",
        "SELECT COUNT(*) FROM recovery JOIN runs ON id = run_id WHERE status = 'pruned'",
    ) == [(0,)]


@pytest.mark.thorough
def test_the_pruner_sees_the_stored_evaluations(tmp_path: Path) -> None:
    make(small(("trials: 14", "trials: 3")), tmp_path / "r.db")
    engine = open_for_writing(str(tmp_path / "r.db"))
    key = json.loads(rows(tmp_path / "r.db")[0][4])[0]
    with engine.connect() as connection:
        values = curves_of(connection, [key], "final_gap")[key]
    assert values == [
        gap
        for (gap,) in rows(
            tmp_path / "r.db",
            f"""
        SELECT gap FROM evaluations JOIN runs ON id = run_id WHERE run_key = '{key}' ORDER BY round""",  # noqa: E501
        )
    ]
    assert len(values) == 3


@pytest.mark.thorough
def test_the_grid_sampler_tries_every_legal_combination_once(tmp_path: Path) -> None:
    pairs = (
        ('"shift:lambda={0.1..30 log}"', "label-flip, shift:lambda=1"),
        ('"periodic:K={1..50 int log}"', "periodic:K=3"),
        ("trials: 14", "sampler: grid"),
    )
    make(small(*pairs), tmp_path / "r.db")
    assert (
        len({parameters for _, _, _, parameters, _, _ in rows(tmp_path / "r.db")})
        == len(rows(tmp_path / "r.db"))
        == 4
    )


@pytest.mark.thorough
def test_a_plugin_that_raises_ends_the_trial_and_not_the_search(tmp_path: Path) -> None:
    pairs = (
        ("aggregator: cwmed, ", ""),
        ("search:", 'search:\n  aggregator: [cwmed, "own:broken=rule"]'),
    )
    with fresh():
        plugins.load([str(write_rule(tmp_path))])
        watch = make(small(*pairs), tmp_path / "r.db")
    statuses = {trial.status for trial in watch.trials}
    assert statuses == {"finished", "failed"}
    for _, _, status, parameters, _, value in rows(tmp_path / "r.db"):
        assert (status == "failed") == ("own" in parameters) == (value is None)


@pytest.mark.thorough
def test_failed_trials_are_repeated_if_asked(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    with fresh():
        plugins.load(
            [
                str(
                    write_rule(
                        tmp_path, factor=f"(1 / (not __import__('os').path.exists({str(flag)!r})))"
                    )
                )
            ]
        )
        fewer = small(
            ("trials: 14", "trials: 3"), ("then: {seeds: 0..2, best: 2}", ""), ("cwmed", "own")
        )
        make(fewer, tmp_path / "r.db")
        flag.unlink()
        assert make(fewer, tmp_path / "r.db").trials == []
        before = rows(tmp_path / "r.db")
        assert {(row[2], row[5]) for row in before} == {("failed", None)}
        again = make(fewer, tmp_path / "r.db", retry_failed=True)
    assert [trial.number for trial in again.trials] == [0, 1, 2]
    after = rows(tmp_path / "r.db")
    assert [row[3:5] for row in after] == [row[3:5] for row in before]
    assert all(status == "finished" and value > 0 for _, _, status, _, _, value in after)


def test_a_trial_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    make(
        small(("trials: 14", "trials: 2"), ("then: {seeds: 0..2, best: 2}", "")), tmp_path / "r.db"
    )
    assert check(str(tmp_path / "r.db")).problems == []
    change(tmp_path / "r.db", "UPDATE trials SET run_keys = '{' WHERE number = 1")
    assert check(str(tmp_path / "r.db")).problems == [
        "trial 1 of small: its parameters or run keys cannot be read"
    ]


@pytest.mark.thorough
def test_trials_of_other_code_are_repeated_if_asked(tmp_path: Path) -> None:
    search = small(FEW, ("cwmed", "own"), ("then: {seeds: 0..2, best: 2}", ""))
    with fresh():
        plugins.load([str(write_rule(tmp_path))])
        make(search, tmp_path / "r.db")
    before = rows(tmp_path / "r.db")
    with fresh():
        plugins.load([str(write_rule(tmp_path, factor="0.5"))])
        make(search, tmp_path / "r.db")
        assert rows(tmp_path / "r.db") == before
        with open_for_writing(str(tmp_path / "r.db")).connect() as connection:
            code = code_of(search, connection)
        assert (code.runs, code.changed, code.components) == (6, 6, {"aggregators/own": 6})
        make(search, tmp_path / "r.db", rerun="changed")
        make(search, tmp_path / "whole.db")
    after = rows(tmp_path / "r.db")
    assert [row[:5] for row in after] == [row[:5] for row in before]
    values = rows(tmp_path / "whole.db", "SELECT run_key, final_gap FROM runs ORDER BY run_key")
    assert rows(tmp_path / "r.db", "SELECT run_key, final_gap FROM runs ORDER BY run_key") == values
    assert all(row[5] != old[5] for row, old in zip(after, before, strict=True))


@pytest.mark.thorough
def test_the_repetitions_wait_for_the_trials_of_another_command(tmp_path: Path) -> None:
    """The other command is alive, until it is waited for."""
    path = tmp_path / "r.db"

    class Waiting(Watch):
        def waiting(self, runs: int) -> None:
            assert runs == 2
            assert not self.repeated
            change(path, "UPDATE sweeps SET status = 'interrupted' WHERE id = 1")

    make(small(FEW), path, Watch(end_at=8))
    assert rows(path, "SELECT number, sweep_id FROM trials WHERE status = 'running'") == [(0, 1)]
    owner = new_owner()
    change(
        path,
        "UPDATE sweeps SET status = 'running', owner = ?, heartbeat_at = '2200-01-01' WHERE id = 1",
        owner,
    )
    watch = make(small(FEW), path, Waiting())
    assert [trial.number for trial in watch.trials] == [1, 2, 0]
    assert watch.repeated == [6]


@pytest.mark.thorough
@pytest.mark.parametrize(("word", "status"), [("worst", "finished"), ("skip", "failed")])
def test_a_diverged_trial_is_worst_or_skipped(word: str, status: str, tmp_path: Path) -> None:
    search = small(
        ("[sf,", "[nan,"), ("trials: 14", f"trials: 8\ndiverged: {word}"), ("cwmed", "mean")
    )
    make(search, tmp_path / "r.db")
    ends = {key: end for key, end, *_ in rows(tmp_path / "r.db", RUNS)}
    hit = [
        row
        for row in rows(tmp_path / "r.db")
        if any(ends[key] == "diverged" for key in json.loads(row[4]))
    ]
    assert 0 < len(hit) < 8
    assert {(row[2], row[5]) for row in hit} == {(status, None)}  # whatever the last model had
    engine = open_for_writing(str(tmp_path / "r.db"))
    with engine.connect() as connection:
        best = findings(search, connection)[0].best[0]
    assert (best.value == float("inf")) == (word == "worst")


@pytest.mark.thorough
def test_two_commands_share_a_search(tmp_path: Path) -> None:
    """The second command works while the first one is stopped in the middle of a trial, and leaves
    that trial alone.
    """
    from dynabro_cli.runs.search import conduct as module

    class Both(Watch):
        """In the middle of the first command, make the search with a second one."""

        def trial_began(self, name: str, number: int, choices: object) -> None:
            super().trial_began(name, number, choices)  # type: ignore[arg-type]
            if number == 3:
                second.append(
                    make(small(("trials: 14", "trials: 9")), tmp_path / "r.db", Leaving())
                )

    class Leaving(Watch):
        """End instead of waiting for the first command, which waits for this one."""

        def waiting(self, runs: int) -> None:
            raise EndedError

    second: list[Watch] = []
    assert module.conduct
    first = make(small(), tmp_path / "r.db", Both())
    numbers = [[trial.number for trial in watch.trials] for watch in (first, *second)]
    assert numbers[1] == [4, 5, 6, 7, 8]
    assert sorted(numbers[0] + numbers[1]) == list(range(14))
    keys = [keys for *_, keys, _ in rows(tmp_path / "r.db")]
    assert len(set(keys)) == 14
    assert rows(tmp_path / "r.db", "SELECT DISTINCT status FROM trials") == [("finished",)]


@pytest.mark.thorough
def test_a_run_that_cannot_start_here_ends_the_search_and_not_its_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search, left = small(("trials: 14", "trials: 4"), ("then: {seeds: 0..2, best: 2}", "")), [5]

    def check_room(*_: object, **__: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise RunError("there is no memory")

    with monkeypatch.context() as patch:
        patch.setattr("dynabro_cli.simulation.need.check_room", check_room)
        with pytest.raises(RunError, match="there is no memory"):
            make(search, tmp_path / "r.db")
    assert [row[2] for row in rows(tmp_path / "r.db")] == ["finished", "finished", "running"]
    make(search, tmp_path / "r.db")
    make(search, tmp_path / "whole.db")
    assert rows(tmp_path / "r.db") == rows(tmp_path / "whole.db")


@pytest.mark.thorough
def test_trials_go_with_their_runs_when_databases_are_merged_or_thinned(tmp_path: Path) -> None:
    fewer = small(("trials: 14", "trials: 4"), ("then: {seeds: 0..2, best: 2}", ""))
    make(fewer, tmp_path / "first.db", Watch(end_at=60))  # in the middle of a trial
    before = rows(tmp_path / "first.db")
    assert "running" in {row[2] for row in before}
    assert merge(str(tmp_path / "first.db"), str(tmp_path / "merged.db")).trials == len(before)
    assert merge(str(tmp_path / "first.db"), str(tmp_path / "merged.db")).trials == 0
    thin(str(tmp_path / "first.db"), tmp_path / "thinned.db", every=2)
    for name in ("merged.db", "thinned.db"):
        assert rows(tmp_path / name) == before
        watch = make(fewer, tmp_path / name)
        assert [trial.number for trial in watch.trials] == list(range(len(before) - 1, 4))
    make(fewer, tmp_path / "first.db")
    assert (
        rows(tmp_path / "first.db") == rows(tmp_path / "merged.db") == rows(tmp_path / "thinned.db")
    )


@pytest.mark.thorough
def test_trials_of_one_search_in_two_databases_are_merged(tmp_path: Path) -> None:
    for name, seed, budget in (("a", 0, 20), ("b", 1, 20), ("c", 1, 30)):
        search = small(
            FEW,
            ("trials: 3", f"trials: 3\nsampler_seed: {seed}"),
            ("budget: 20", f"budget: {budget}"),
        )
        make(search, tmp_path / f"{name}.db")
    here, there, other = (str(tmp_path / f"{name}.db") for name in "abc")
    first = rows(here)
    missing = [row for row in rows(there) if row[4] not in {row[4] for row in first}]
    assert len(missing) == 2  # both have tried one choice without ranges
    for dry_run in (True, False):
        merged = merge(there, here, dry_run=dry_run)
        assert (merged.trials, merged.other_searches) == (2, [])
        merged = merge(other, here, dry_run=dry_run)
        assert (merged.trials, merged.other_searches) == (0, ["small"])
    assert rows(here) == [
        *first,
        *((row[0], number, *row[2:]) for number, row in enumerate(missing, 3)),
    ]
    assert merge(there, here).trials == 0
    make(small(("trials: 14", "trials: 7")), here)
    assert len(rows(here)) == 7


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("most", "trials"), [(2, 14), pytest.param(10, 60, marks=pytest.mark.slow)]
)
def test_a_search_that_is_killed_has_the_trials_of_an_undisturbed_one(
    most: int, trials: int, tmp_path: Path
) -> None:
    # so that each kill finds some to do
    (tmp_path / "small.yaml").write_text(SMALL.replace("trials: 14", f"trials: {trials}"))
    command = [
        sys.executable,
        "-m",
        "dynabro_cli",
        "search",
        "small.yaml",
        "--jobs",
        "1",
        "--checkpoint-every",
        "0.2",
        "--db",
    ]
    environment = os.environ | {"DYNABRO_DB": ""}
    subprocess.run(
        [*command, "whole.db"], cwd=tmp_path, env=environment, check=True, capture_output=True
    )
    drawn, kills = random.Random(1), 0
    while kills < most:
        process = subprocess.Popen(
            [*command, "killed.db"],
            cwd=tmp_path,
            env=environment,
            stderr=subprocess.DEVNULL,
            stdout=-1,
        )
        before, until = _ended(tmp_path / "killed.db"), time.monotonic() + 60
        while (
            process.poll() is None
            and _ended(tmp_path / "killed.db") == before
            and time.monotonic() < until
        ):
            time.sleep(0.02)
        time.sleep(drawn.random() * 0.1)
        if process.poll() is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        kills += 1
    last = subprocess.run(
        [*command, "killed.db"],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    assert kills == most, last.stdout
    assert rows(tmp_path / "killed.db") == rows(tmp_path / "whole.db")
    assert rows(tmp_path / "killed.db", RUNS) == rows(tmp_path / "whole.db", RUNS)


def _ended(path: Path) -> int:
    """Runs of the database that have a result."""
    copy = path.with_suffix(".copy")
    with suppress(Exception):
        for suffix in ("", "-wal"):
            if Path(f"{path}{suffix}").exists():
                shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
        return int(rows(copy, "SELECT COUNT(*) FROM runs WHERE status = 'finished'")[0][0])
    return 0


@pytest.mark.thorough
def test_the_first_seed_of_a_proposal_decides_about_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two trials of ``first`` have all seeds; a proposal has them if its first seed is in the
    best quarter so far.
    """
    search = small(
        ("trials: 14", f"trials: 14\npruner: seeds\nfirst: [{', '.join(ASKED)}]"),
        ('[sf, "shift', '[sf, "ipm:epsilon={0.1..9}", "shift'),
        ("seeds: 0..1\n", "seeds: 0..2\n"),
        ("{seeds: 0..2, best: 2}", "{seeds: 3..4, best: 1, first: 1}"),
    )
    more, counts = conduct.StudyInProgress.more, list[int]()

    def counting(study: Any) -> Any:
        runs = more(study)
        counts.append(len(runs))
        return runs

    monkeypatch.setattr(conduct.StudyInProgress, "more", counting)
    watch = make(search, tmp_path / "r.db")
    ends = dict(rows(tmp_path / "r.db", "SELECT run_key, final_gap FROM runs"))
    firsts: list[float] = []
    for trial in watch.trials:
        first = ends[trial.run_keys[0]]
        goes_on = trial.number < 2 or 4 * sum(other >= first for other in firsts) < len(firsts)
        assert trial.status == ("finished" if goes_on else "pruned")
        assert [key in ends for key in trial.run_keys] == [True, goes_on, goes_on]
        firsts.append(first)
    assert {trial.status for trial in watch.trials} == {"finished", "pruned"}
    whole = [trial for trial in watch.trials if trial.status == "finished"]
    best = {max(some, key=lambda trial: trial.value_or_inf).number for some in (whole, whole[:2])}
    assert watch.repeated == [2 * len(best)]
    # another place may begin the next proposal, and no seed is made that is not needed
    assert counts[:3] == [3, 3, 1]
    assert counts.count(1) == 12


@pytest.mark.thorough
def test_importances_are_of_the_choices_that_all_trials_have(tmp_path: Path) -> None:
    search = small(("trials: 14", "trials: 20\nsampler: random"))
    path = tmp_path / "results.db"
    make(search, path)
    engine = open_for_writing(str(path))
    with engine.connect() as connection:
        shares = findings(search, connection)[0].importances
    assert shares.keys() == {"attack", "switching"}
    assert sum(shares.values()) == pytest.approx(1)
