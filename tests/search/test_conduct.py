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
from sqlalchemy import text

from dynabro_cli.components import plugins
from dynabro_cli.errors import RunError, SpecError
from dynabro_cli.search import conduct
from dynabro_cli.search.findings import findings
from dynabro_cli.store import trials
from dynabro_cli.store.care.check import check
from dynabro_cli.store.care.merge import merge
from dynabro_cli.store.care.thin import thin
from dynabro_cli.store.open.engine import open_for_writing
from dynabro_cli.store.read.searches import evaluated
from tests.faults import ray_nodes
from tests.own import fresh, write_rule
from tests.postgres import cut_connections
from tests.search.made import SMALL, Watch, make, rows, small
from tests.store.made import change

optuna = pytest.importorskip("optuna")

RUNS = "SELECT run_key, status, rounds, final_gap FROM runs ORDER BY run_key"
SAMPLERS = [
    (),
    (("trials: 14", "trials: 14\npruner: median"),),
    (("trials: 14", "trials: 14\npruner: successive-halving"),),
    (("trials: 14", "trials: 14\nsampler: random"),),
    (
        ('[sf, "shift:lambda={0.1..30 log}"]', '["shift:lambda={0.1..30 log}"]'),
        ('[static, "periodic:K={1..50 int log}"]', '["periodic:K={1..50 int log}"]'),
        ("trials: 14", "trials: 14\nsampler: cmaes"),
    ),
]


@pytest.mark.parametrize(
    "pairs",
    [SAMPLERS[0], *(pytest.param(pairs, marks=pytest.mark.thorough) for pairs in SAMPLERS[1:])],
    ids=["tpe", "median", "halving", "random", "cmaes"],
)
def test_a_search_that_ends_anywhere_goes_on_as_if_it_had_not(pairs: tuple[tuple[str, str], ...], tmp_path: Path) -> None:
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


def test_a_search_in_postgresql_ends_and_goes_on_as_in_a_file(postgres: str, tmp_path: Path) -> None:
    make(small(), postgres, Watch(end_at=40))
    before = rows(postgres)
    assert "running" in {row[2] for row in before}
    make(small(), postgres)
    make(small(), tmp_path / "whole.db")
    assert rows(postgres) == rows(tmp_path / "whole.db")
    assert sorted(rows(postgres, RUNS)) == sorted(rows(tmp_path / "whole.db", RUNS))


@pytest.mark.parametrize("name", ["trials_of", "evaluated", "ends_of", "text_of"])
def test_a_search_waits_for_a_server_that_drops_its_connections(
    name: str, postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of every fifth of a search's transactions of one kind."""
    real, calls = getattr(conduct, name), itertools.count()

    def cutting(*arguments: Any) -> Any:
        if next(calls) % 5 == 0:
            cut_connections(postgres)
        return real(*arguments)

    search = small(SAMPLERS[1][0])
    make(search, postgres, Watch(end_at=100))
    with monkeypatch.context() as patch:
        patch.setattr(conduct, name, cutting)
        make(search, postgres)
    assert next(calls) > 0
    make(search, tmp_path / "whole.db")
    assert rows(postgres) == rows(tmp_path / "whole.db")


def test_the_steps_of_a_trial_give_the_same_after_their_own_commit(tmp_path: Path) -> None:
    make(small(("trials: 14", "trials: 2"), ("then: {seeds: 0..2, best: 2}", "")), tmp_path / "r.db")
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
    search = small(("trials: 14", "trials: 6\nsampler: random"), ("then: {seeds: 0..2, best: 2}", ""))
    with ray_nodes.two() as nodes:
        make(search, tmp_path / "ray.db", executor="ray", address=nodes.address, jobs=2, device="cpu")
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
    """Fields that a choice leaves out are proposed; a choice that was made before makes room for a proposal."""
    shift = '{attack: "shift:lambda=2.5", switching: static}'
    search = small(("trials: 14", f"trials: 5\nfirst: [{shift}, {{attack: sf}}, {shift}]"))
    path = tmp_path / "r.db"
    make(search, path, Watch(end_at=12))
    make(search, path)
    found = [json.loads(row[3]) for row in rows(path)]
    assert found[0] == {"attack": "shift:lambda={0.1..30 log}", "attack.shift.lambda": 2.5, "switching": "static"}
    assert found[1]["attack"] == "sf"
    assert found[2] != found[0]
    assert len({row[4] for row in rows(path)}) == 5
    make(search, tmp_path / "whole.db")
    assert rows(path) == rows(tmp_path / "whole.db")


@pytest.mark.thorough
def test_more_trials_continue_a_search(tmp_path: Path) -> None:
    make(small(), tmp_path / "whole.db")
    make(small(("trials: 14", "trials: 5"), ("then: {seeds: 0..2, best: 2}", "")), tmp_path / "r.db")
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


def test_another_search_of_the_same_name_is_refused(tmp_path: Path) -> None:
    make(small(("trials: 14", "trials: 1")), tmp_path / "r.db")
    with pytest.raises(SpecError, match="name=small: another search is stored under this name"):
        make(small(("budget: 20", "budget: 30")), tmp_path / "r.db")
    make(small(("trials: 14", "trials: 2")), tmp_path / "r.db")
    assert len(rows(tmp_path / "r.db")) == 2


@pytest.mark.thorough
def test_pruned_runs_are_stored_and_have_no_result(tmp_path: Path) -> None:
    make(small(*SAMPLERS[1]), tmp_path / "r.db")
    statuses = [status for _, _, status, *_ in rows(tmp_path / "r.db")]
    assert {"finished", "pruned"} == set(statuses)
    found = rows(
        tmp_path / "r.db", "SELECT status, budget_spent < budget, checkpoint, final_gap FROM runs WHERE status = 'pruned'"
    )
    assert len(found) > 0
    assert set(found) == {("pruned", 1, None, None)}
    assert rows(tmp_path / "r.db", "SELECT COUNT(*) FROM recovery JOIN runs ON id = run_id WHERE status = 'pruned'") == [(0,)]


def test_the_pruner_sees_the_stored_evaluations(tmp_path: Path) -> None:
    make(small(("trials: 14", "trials: 3")), tmp_path / "r.db")
    engine = open_for_writing(str(tmp_path / "r.db"))
    key = json.loads(rows(tmp_path / "r.db")[0][4])[0]
    with engine.connect() as connection:
        values = evaluated(connection, [key], "final_gap")[key]
    assert values == [
        gap
        for (gap,) in rows(
            tmp_path / "r.db",
            f"""
        SELECT gap FROM evaluations JOIN runs ON id = run_id WHERE run_key = '{key}' ORDER BY round""",
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
    assert len({parameters for _, _, _, parameters, _, _ in rows(tmp_path / "r.db")}) == len(rows(tmp_path / "r.db")) == 4


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


def test_failed_trials_are_repeated_if_asked(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    with fresh():
        plugins.load([str(write_rule(tmp_path, factor=f"(1 / (not __import__('os').path.exists({str(flag)!r})))"))])
        fewer = small(("trials: 14", "trials: 3"), ("then: {seeds: 0..2, best: 2}", ""), ("cwmed", "own"))
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
    make(small(("trials: 14", "trials: 2"), ("then: {seeds: 0..2, best: 2}", "")), tmp_path / "r.db")
    assert check(str(tmp_path / "r.db")).problems == []
    change(tmp_path / "r.db", "UPDATE trials SET run_keys = '{' WHERE number = 1")
    assert check(str(tmp_path / "r.db")).problems == ["trial 1 of small: its parameters or run keys cannot be read"]


@pytest.mark.thorough
@pytest.mark.parametrize(("word", "status"), [("worst", "finished"), ("skip", "failed")])
def test_a_diverged_trial_is_worst_or_skipped(word: str, status: str, tmp_path: Path) -> None:
    search = small(("[sf,", "[nan,"), ("trials: 14", f"trials: 8\ndiverged: {word}"), ("cwmed", "mean"))
    make(search, tmp_path / "r.db")
    ends = {key: end for key, end, *_ in rows(tmp_path / "r.db", RUNS)}
    hit = [row for row in rows(tmp_path / "r.db") if any(ends[key] == "diverged" for key in json.loads(row[4]))]
    assert 0 < len(hit) < 8
    assert {(row[2], row[5]) for row in hit} == {(status, None)}  # whatever the last model had
    engine = open_for_writing(str(tmp_path / "r.db"))
    with engine.connect() as connection:
        best = findings(search, connection)[0].best[0]
    assert (best.value == float("inf")) == (word == "worst")


@pytest.mark.thorough
def test_two_commands_share_a_search(tmp_path: Path) -> None:
    """The second command works while the first one is stopped in the middle of a trial, and leaves that trial alone."""
    from dynabro_cli.search import conduct as module

    class Both(Watch):
        """In the middle of the first command, make the search with a second one."""

        def trial_began(self, name: str, number: int, choices: object) -> None:
            super().trial_began(name, number, choices)  # type: ignore[arg-type]
            if number == 3:
                second.append(make(small(("trials: 14", "trials: 9")), tmp_path / "r.db"))

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
    assert rows(tmp_path / "first.db") == rows(tmp_path / "merged.db") == rows(tmp_path / "thinned.db")


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("most", "trials"), [(2, 14), pytest.param(10, 60, marks=pytest.mark.slow)])
def test_a_search_that_is_killed_has_the_trials_of_an_undisturbed_one(most: int, trials: int, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL.replace("trials: 14", f"trials: {trials}"))  # so that each kill finds some to do
    command = [sys.executable, "-m", "dynabro_cli", "search", "small.yaml", "--jobs", "1", "--checkpoint-every", "0.2", "--db"]
    environment = os.environ | {"DYNABRO_DB": ""}
    subprocess.run([*command, "whole.db"], cwd=tmp_path, env=environment, check=True, capture_output=True)
    drawn, kills = random.Random(1), 0
    while kills < most:
        process = subprocess.Popen([*command, "killed.db"], cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL, stdout=-1)
        before, until = _ended(tmp_path / "killed.db"), time.monotonic() + 60
        while process.poll() is None and _ended(tmp_path / "killed.db") == before and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(drawn.random() * 0.1)
        if process.poll() is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        kills += 1
    last = subprocess.run([*command, "killed.db"], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
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
