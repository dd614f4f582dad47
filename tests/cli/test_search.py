"""``dynabro search``, and the commands that read what it has stored."""

from __future__ import annotations

import importlib.util
import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from sqlalchemy import Connection

from dynabro_cli.answers.analysis import search_findings
from dynabro_cli.experiment.grid.search import Search
from tests.cli.conftest import Dynabro
from tests.own import fresh

pytest.importorskip("optuna")

DIGITS = """
name: {name}
base: {{task: digits, model: logistic, workers: 4, byzantine: 1, budget: 12, eval_every: 4, batch_size: 4, method: sgd}}
grid: {{aggregator: [mean, cwmed]}}
search:
  attack: ["ipm:epsilon={{0.5..20 log}}", sf]
  switching: [{switching}]
minimize: final_accuracy
trials: 3
seeds: 0..1
then: {{seeds: 2..4, best: 1}}
"""  # noqa: E501
SUITE = """
name: suite
base: {task: digits, model: logistic, workers: 4, byzantine: 1, budget: 12, eval_every: 4, batch_size: 4, method: sgd}
grid:
  aggregator: [mean, cwmed]
  attack: [none, sf, nan]
  switching: [static, periodic:K=2]
seeds: 0..1
"""  # noqa: E501


@pytest.fixture(scope="session")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with two searches, static and switching, and a fixed suite on the same
    settings.
    """
    from dynabro_cli.experiment.grid.plan import plan
    from dynabro_cli.experiment.grid.search_file import parse_search
    from dynabro_cli.experiment.grid.sweep_file import parse_sweep
    from dynabro_cli.runs.executors import backends
    from dynabro_cli.runs.executors._api import Options
    from dynabro_cli.runs.executors.sweep import make_all
    from dynabro_cli.runs.store.open.engine import open_for_writing
    from dynabro_cli.runs.store.write.standing import Standing
    from tests.runs.executors.made_runs import Log
    from tests.runs.search.made import make

    folder = tmp_path_factory.mktemp("searched")
    for name, switching in (("static", "static"), ("moving", '"periodic:K={1..5 int}"')):
        make(parse_search(DIGITS.format(name=name, switching=switching), "x.yaml"), folder / "r.db")
    runs = plan(parse_sweep(SUITE, "suite.yaml")).runs
    engine = open_for_writing(str(folder / "r.db"))
    with backends.opened(Options(jobs=0, sweep="suite"), len(runs)) as places_for:
        make_all(runs, engine, places_for(runs), Log(), Standing(None))
    engine.dispose()
    return folder / "r.db"


def accuracies(database: Path, lost: float = 0.0) -> pd.DataFrame:
    """All runs with a result; a diverged one has the accuracy ``lost``."""
    with closing(sqlite3.connect(database)) as connection:
        runs = pd.read_sql(
            "SELECT * FROM runs WHERE status IN ('finished', 'diverged')", connection
        )
    return runs.assign(accuracy=runs["final_accuracy"].mask(runs["status"] == "diverged", lost))


def test_a_search_is_made_and_told(dynabro: Dynabro, folder: Path) -> None:
    text = DIGITS.format(name="small", switching="static").replace(
        "trials: 3", "trials: 6\nfirst: [{attack: sf}]"
    )
    (folder / "small.yaml").write_text(text.replace("grid: {aggregator: [mean, cwmed]}", ""))
    dry = dynabro("search", "small.yaml", "--dry-run")
    assert dry.code == 0
    assert "6 trials, each a mean over 2 seeds: at most 15 runs with what follows" in dry.out
    assert (
        "space: 2 combinations, each with the numbers of its ranges; first: 1 given choice\n"
    ) in dry.out
    assert "0 trials begun in results.db, 0 ended" in dry.out
    assert not (folder / "results.db").exists()
    made = dynabro("search", "small.yaml", "--jobs", "0")
    assert made.code == 0, made.err
    assert "6/6: small: trial 5: " in made.err
    assert "small: 6 trials in results.db: 6 finished" in made.out
    assert "lowest final test accuracy: " in made.out
    assert "found as trial " in made.out
    assert "dynabro run --task digits" in made.out
    found = json.loads(dynabro("search", "small.yaml", "--jobs", "0", "--json").out)[0]
    assert found["trials"] == {"finished": 6}
    runs = accuracies(folder / "results.db")
    values = [
        float(runs[runs["run_key"].isin(one["run_keys"])]["accuracy"].mean())
        for one in found["best"]
    ]
    assert [one["value"] for one in found["best"]] == pytest.approx(values)
    assert found["best"][0]["value"] == pytest.approx(min(values))
    assert len(found["best"][0]["repeated"]) == 3
    assert found["best"][1]["repeated"] == []
    assert (
        dynabro("search", "small.yaml", "--dry-run").out.count(
            "6 trials begun in results.db, 6 ended"
        )
        == 1
    )
    status = json.loads(dynabro("status", "--json").out)
    assert status["counts"] == {"finished": 15}


@pytest.mark.thorough
def test_others_can_write_while_a_search_computes_what_it_has_found(
    dynabro: Dynabro, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []

    def while_another_writes(
        search: Search, connection: Connection
    ) -> list[search_findings.Findings]:
        with closing(sqlite3.connect("results.db", timeout=0, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            written.append(True)
        return findings(search, connection)

    findings = search_findings.findings
    monkeypatch.setattr(search_findings, "findings", while_another_writes)
    (folder / "short.yaml").write_text(DIGITS.format(name="short", switching="static"))
    made = dynabro("search", "short.yaml", "--jobs", "0", "--set", "trials=1")
    assert (made.code, written) == (0, [True])


@pytest.mark.thorough
def test_the_progress_of_a_continued_search_counts_its_earlier_trials(
    dynabro: Dynabro, folder: Path
) -> None:
    (folder / "two.yaml").write_text(DIGITS.format(name="two", switching="static"))
    assert (
        "2/2: two: aggregator=cwmed: trial 0: "
        in dynabro("search", "two.yaml", "--set", "trials=1", "--jobs", "0").err
    )
    continued = dynabro("search", "two.yaml", "--set", "trials=2", "--jobs", "0").err
    assert "3/4: two: aggregator=mean: trial 1: " in continued
    assert "4/4: two: aggregator=cwmed: trial 1: " in continued
    with closing(sqlite3.connect(folder / "results.db")) as connection, connection:
        connection.execute(
            "UPDATE trials SET status = 'failed', value = NULL WHERE number = 1 AND search "
            "LIKE '%=mean'"
        )
    retried = dynabro(
        "search", "two.yaml", "--set", "trials=2", "--retry-failed", "--jobs", "0"
    ).err
    assert "4/4: two: aggregator=mean: trial 1: " in retried


def test_what_is_wrong_has_one_line_each(dynabro: Dynabro, folder: Path) -> None:
    text = DIGITS.format(name="small", switching="static").replace("{0.5..20 log}", "{0..20 log}")
    (folder / "small.yaml").write_text(
        text.replace("trials: 3", "trials: 0").replace("minimize", "minimise")
    )
    outcome = dynabro("search", "small.yaml")
    assert outcome.code == 2
    assert len(outcome.problems) == 4
    assert not (folder / "results.db").exists()


def test_a_search_that_is_not_there(dynabro: Dynabro) -> None:
    outcome = dynabro("search", "worst-adversery")
    assert outcome.code == 66
    assert "did you mean 'worst-adversary'?" in outcome.err


def test_optuna_is_an_extra(dynabro: Dynabro, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    outcome = dynabro("search", "worst-adversary", "--dry-run")
    assert (outcome.code, outcome.err) == (
        2,
        "dynabro: optuna is not installed. Try: pip install 'dynabro[search]'\n",
    )


def test_list_searches(dynabro: Dynabro) -> None:
    listing = dynabro("list", "searches").out
    assert re.search(r"^  worst-adversary +200 trials  ", listing, re.MULTILINE)
    assert re.search(r"^  worst-evade +all trials  ", listing, re.MULTILINE)
    assert {one["name"] for one in json.loads(dynabro("list", "searches", "--json").out)} >= {
        "worst-between",
        "worst-within",
    }


@pytest.mark.thorough
def test_the_plot_of_a_search(dynabro: Dynabro, searched: Path, folder: Path) -> None:
    outcome = dynabro("plot", "static", "--db", str(searched), "--out", "p")
    assert outcome.code == 0, outcome.err
    numbers = pd.read_csv(folder / "p" / "static.csv")
    assert (folder / "p" / "static.png").stat().st_size > 10_000
    assert len(numbers) == 6  # two searches of three trials
    for _, own in numbers.groupby("search"):
        assert list(own["best"]) == list(own["value"].cummin())
        assert own["repeated"].notna().sum() >= 1
    one = dynabro(
        "plot",
        "search",
        "--where",
        "search = 'static: aggregator=mean'",
        "--db",
        str(searched),
        "--out",
        "q",
    )
    assert one.code == 0, one.err
    assert len(pd.read_csv(folder / "q" / "search.csv")) == 3


@pytest.mark.thorough
def test_the_section_of_the_report(dynabro: Dynabro, searched: Path, folder: Path) -> None:
    assert dynabro("report", "static", "--db", str(searched), "--out", "r.html").code == 0
    text = (folder / "r.html").read_text()
    assert "static: aggregator=mean: lowest final test accuracy of 3 trials (3 finished)" in text
    assert "moving: " not in text
    assert " over 3 seeds" in text
    assert "the repeated seeds count" in text


@pytest.mark.parametrize(
    "text",
    [
        "minimize: [1]",
        *(
            pytest.param(text, marks=pytest.mark.thorough)
            for text in ("minimize:", "then: [1]", "then: {seeds: 5, x: 1}")
        ),
    ],
)
def test_a_search_that_cannot_be_read_breaks_no_page(
    dynabro: Dynabro, searched: Path, folder: Path, text: str
) -> None:
    path = folder / "damaged.db"
    path.write_bytes(searched.read_bytes())
    with closing(sqlite3.connect(path)) as connection, connection:
        (yaml,) = connection.execute("SELECT yaml FROM sweeps WHERE name = 'moving'").fetchone()
        key = text.partition(":")[0]
        lines = [text if line.startswith(f"{key}:") else line for line in yaml.splitlines()]
        assert text in lines
        connection.execute("UPDATE sweeps SET yaml = ? WHERE name = 'moving'", ["\n".join(lines)])
    left_out = "6 trials left out, first trial 0 of moving: aggregator="
    for words in (("report",), ("plot", "static"), ("leaderboard", "static")):
        out = "o.html" if words == ("report",) else "o"
        outcome = dynabro(*words, "--db", str(path), "--out", out)
        assert outcome.code == 0, outcome.err
        assert (left_out in outcome.err) is (words == ("report",)), outcome.err
    for words in (("plot", "moving"), ("leaderboard", "moving")):
        outcome = dynabro(*words, "--db", str(path), "--out", "p")
        assert outcome.code == 66
        assert left_out in outcome.err
        assert "Traceback" not in outcome.err
    checked = dynabro("db", "check", "--db", str(path))
    assert checked.code == 65
    assert (
        "of moving: aggregator=mean: its search cannot be read (moving:"
        in checked.out + checked.err
    )


def test_the_leaderboard(dynabro: Dynabro, searched: Path, folder: Path) -> None:
    outcome = dynabro("leaderboard", "static", "moving", "--db", str(searched), "--out", "p")
    assert outcome.code == 0, outcome.err
    assert {path.name for path in (folder / "p").iterdir()} == {
        f"leaderboard.{kind}" for kind in ("png", "csv", "tex", "html")
    }
    rows = pd.read_csv(folder / "p" / "leaderboard.csv")
    runs = accuracies(searched, 0.1)
    assert set(rows["rule"]) == {"mean", "cwmed"}
    assert list(rows["between"]) == sorted(rows["between"], reverse=True)
    for row in rows.itertuples():
        own = runs[runs["aggregator"] == row.rule]
        suite = own[own["sweep"] == "suite"]
        assert row.no_attack == pytest.approx(_mean(suite, attack="none"))
        assert row.not_finite == pytest.approx(
            min(_mean(suite, attack="nan", switching=way) for way in ("static", "periodic:K=2"))
        )
        # the suite does not have the seeds of the repetitions
        repeated = (
            own[own["seed"] >= 2]
            .groupby(["attack", "switching"])["accuracy"]
            .agg(["mean", "min", "size"])
            .reset_index()
        )
        assert set(repeated["size"]) == {3}
        # the trials' seeds choose
        first = own[own["seed"] < 2].groupby(["attack", "switching"])["accuracy"].mean()
        repeated = repeated.join(first.rename("first"), on=["attack", "switching"])
        static = repeated["switching"] == "static"
        for number, part in (
            (row.static_search, repeated[static]),
            (row.switching_search, repeated[~static]),
            (row.between, repeated),
        ):
            strongest = part[part["first"] == part["first"].min()]["mean"]
            assert any(number == pytest.approx(mean) for mean in strongest)
        # a round of SGD is one computation: both columns are equal
        assert row.between == row.within == row.worst
        assert row.between_candidates == len(repeated)
        assert row.between_apart
        assert row.between_lowest == row.within_lowest == pytest.approx(repeated["min"].min())
        assert row.between_attack.partition(",")[0] in set(repeated["attack"])
    assert list(rows["between_group"]) in (["a", "a"], ["a", "b"])
    assert rows["between_tied"].sum() == rows["between_group"].str.contains("a").sum()
    assert re.search(
        r"between rounds: [12] of 2 defences are not separated from the best, with ", outcome.out
    )


@pytest.fixture
def _nothing_stays() -> Iterator[None]:
    with fresh():
        yield


PUSH = """
from dynabro_cli.plugins import attack

@attack("push", reference="nobody")
def push(own, byzantine):
    \"\"\"Against the mean of the honest vectors, and far.\"\"\"
    return -1e30 * own[~byzantine].mean(0)
"""


@pytest.mark.thorough
@pytest.mark.usefixtures("_nothing_stays")
def test_an_attack_of_ones_own_counts_if_it_has_the_seeds_of_the_repetitions(
    dynabro: Dynabro, folder: Path
) -> None:
    """Of DynaBRO, nothing is known within rounds before a run has identities that change there."""
    (folder / "push.py").write_text(PUSH)
    (folder / "suite.yaml").write_text(SUITE.replace("method: sgd", "method: dynabro"))
    text = DIGITS.format(name="one", switching="static").replace("trials: 3", "trials: 2")
    text = (
        text.replace("method: sgd", "method: dynabro")
        .replace("{0.5..20 log}", "{0.001..0.002}")
        .replace(", sf", "")
    )
    (folder / "one.yaml").write_text(text)
    assert dynabro("search", "one.yaml", "--jobs", "0").code == 0

    def rows(*settings: str) -> dict[str, Any]:
        how = ("--plugin", "push.py", "--set", "aggregator=mean", "--jobs", "0")
        if settings:
            made = dynabro(
                "sweep",
                "suite.yaml",
                *how,
                *(word for setting in settings for word in ("--set", setting)),
            )
            assert made.code == 0, made.err
        outcome = dynabro("leaderboard", "one", "--plugin", "push.py", "--json")
        assert outcome.code == 0, outcome.err
        return {row["rule"]: row for row in json.loads(outcome.out)}

    before = rows()
    assert {row["within"] for row in before.values()} == {None}
    assert rows("seeds=0..3", "attack=push") == before
    after = rows("seeds=2..4", "attack=push", "switching=static")
    assert after["cwmed"] == before["cwmed"] | {
        name: after["cwmed"][name] for name in ("between_group", "between_tied")
    }
    assert (after["mean"]["between_attack"], before["mean"]["between_attack"].count("push")) == (
        "push, static",
        0,
    )
    within = rows("seeds=2..4", "attack=push", "switching=periodic:K=1", "clock=computation")[
        "mean"
    ]
    assert within["within_attack"] in ("push, static", "push, periodic:K=1, clock=computation")
    assert within["within"] <= within["between"] == after["mean"]["between"]
    assert within["worst"] == within["within"]
    assert within["lost"] is None
    longer = rows("seeds=2..4", "switching=static", "attack=none", "budget=48")["mean"]
    free = accuracies(folder / "results.db").query("attack == 'none' and budget == 48")["accuracy"]
    assert longer["lost"] == pytest.approx(free.mean() - longer["between"])


OTHERS = """seed < 2 AND (attack LIKE 'ipm:%' OR switching NOT IN ('static', 'periodic:K=2')) AND NOT EXISTS (
SELECT 1 FROM runs AS r WHERE r.seed >= 2
AND (r.attack, r.switching, r.aggregator) = (runs.attack, runs.switching, runs.aggregator))"""  # noqa: E501
"""Runs of trials that were not repeated, and that the fixed suite does not have."""


@pytest.mark.thorough
def test_a_leaderboard_needs_only_the_runs_of_the_repeated_trials(
    dynabro: Dynabro, searched: Path, folder: Path
) -> None:
    whole = _leaderboard(dynabro, searched)
    path = folder / "results.db"
    path.write_bytes(searched.read_bytes())
    removed = dynabro("db", "remove", "--where", OTHERS, "--yes")
    assert removed.code == 0, removed.err
    assert len(accuracies(path)) < len(accuracies(searched))
    pd.testing.assert_frame_equal(_leaderboard(dynabro, path), whole)


@pytest.mark.thorough
def test_a_leaderboard_counts_pruned_trials(dynabro: Dynabro, searched: Path, folder: Path) -> None:
    path = folder / "results.db"
    path.write_bytes(searched.read_bytes())
    with closing(sqlite3.connect(path)) as connection, connection:
        last = {
            row[0]: row
            for row in connection.execute(
                "SELECT search, number FROM trials ORDER BY value, number"
            )
        }
        change = "UPDATE trials SET status = 'pruned', value = NULL WHERE search = ? AND number = ?"
        connection.executemany(change, last.values())
        assert len(last) == 4
    rows = _leaderboard(dynabro, path)
    assert list(rows["trials"]) == [6, 6]  # three static, three switching


@pytest.mark.thorough
def test_a_search_that_chooses_the_rule_has_a_row_for_each_repeated_rule(
    dynabro: Dynabro, folder: Path
) -> None:
    text = DIGITS.format(name="rules", switching="static").replace(
        "grid: {aggregator: [mean, cwmed]}\n", ""
    )
    text = text.replace("search:", "search:\n  aggregator: [mean, cwmed, krum]").replace(
        "best: 1", "best: 3"
    )
    (folder / "rules.yaml").write_text(text.replace("trials: 3", "trials: 6\nsampler: random"))
    assert dynabro("search", "rules.yaml", "--jobs", "0").code == 0
    with closing(sqlite3.connect(folder / "results.db")) as connection:
        (repeated,) = zip(
            *connection.execute("SELECT DISTINCT aggregator FROM runs WHERE seed >= 2"), strict=True
        )
        chosen = [
            json.loads(row[0])["aggregator"]
            for row in connection.execute("SELECT parameters FROM trials")
        ]
    outcome = dynabro("leaderboard", "rules", "--json")
    assert outcome.code == 0, outcome.err
    assert len(repeated) > 1
    assert {row["rule"]: row["trials"] for row in json.loads(outcome.out)} == {
        rule: chosen.count(rule) for rule in repeated
    }


def _leaderboard(dynabro: Dynabro, path: Path) -> pd.DataFrame:
    outcome = dynabro("leaderboard", "static", "moving", "--db", str(path), "--out", "p")
    assert outcome.code == 0, outcome.err
    return pd.read_csv("p/leaderboard.csv")


def _mean(runs: pd.DataFrame, **fields: Any) -> float:
    for name, value in fields.items():
        runs = runs[runs[name] == value]
    assert len(runs) > 0
    return float(runs.groupby("switching")["accuracy"].mean().mean())


def test_a_leaderboard_without_searches(dynabro: Dynabro, results: Path) -> None:
    outcome = dynabro("leaderboard")
    assert (outcome.code, outcome.out) == (66, "")
    assert "no trial of a search is stored here. Try: dynabro search NAME" in outcome.err
    assert dynabro("leaderboard", "nothing").code == 66


def test_a_leaderboard_names_the_searches_that_are_not_stored(
    dynabro: Dynabro, searched: Path
) -> None:
    outcome = dynabro("leaderboard", "static", "nothing", "--db", str(searched))
    assert (outcome.code, outcome.out) == (66, "")
    assert "no trial of nothing is stored, but of moving, static" in outcome.err


@pytest.mark.thorough
def test_different_problems_have_no_common_leaderboard(dynabro: Dynabro, folder: Path) -> None:
    text = DIGITS.format(name="short", switching="static").replace("trials: 3", "trials: 1")
    (folder / "short.yaml").write_text(text)
    (folder / "long.yaml").write_text(
        text.replace("short", "long").replace("budget: 12", "budget: 16")
    )
    for name in ("short", "long"):
        assert dynabro("search", f"{name}.yaml", "--jobs", "0").code == 0
    outcome = dynabro("leaderboard")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.problems == [
        (
            "searches that differ in budget have no common ranking: long; short. Try: dynabro "
            "leaderboard long"
        )
    ]
    long = dynabro("leaderboard", "long")
    assert long.code == 0
    heads = ["defence", "between", "lowest", "within", "lowest"]  # nothing at four times the budget
    assert re.split(" {2,}", long.out.splitlines()[0].strip()) == heads


@pytest.mark.thorough
def test_a_search_of_a_file_with_two_problems_can_be_ranked_by_its_name(
    dynabro: Dynabro, folder: Path
) -> None:
    text = (
        DIGITS.format(name="both", switching="static")
        .replace("trials: 3", "trials: 1")
        .replace("budget: 12, ", "")
    )
    (folder / "both.yaml").write_text(text.replace("aggregator: [mean, cwmed]", "budget: [12, 16]"))
    assert dynabro("search", "both.yaml", "--jobs", "0").code == 0
    outcome = dynabro("leaderboard", "both")
    assert outcome.code == 2
    assert outcome.problems[0].endswith(
        "'both: budget=12'; 'both: budget=16'. Try: dynabro leaderboard 'both: budget=12'"
    )
    assert dynabro("leaderboard", "both: budget=12").code == 0


def test_pruned_runs_are_in_no_figure(dynabro: Dynabro, searched: Path, folder: Path) -> None:
    path = folder / "results.db"
    path.write_bytes(searched.read_bytes())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "UPDATE runs SET status = 'pruned', final_accuracy = NULL WHERE sweep = 'suite' "
            "AND attack = 'sf'"
        )
    assert (
        dynabro("plot", "final", "--x", "attack", "--where", "sweep = 'suite'", "--out", "p").code
        == 0
    )
    attacks = pd.read_csv(folder / "p" / "final.csv", keep_default_na=False)
    assert set(attacks["attack"]) == {"none", "nan"}


QUADRATIC = """
name: {name}
base: {{task: quadratic, method: momentum, aggregator: mean, budget: 8, workers: 5, byzantine: 1, eval_every: 4}}
search:
  attack: [{attacks}]
minimize: final_gap
trials: 2
"""  # noqa: E501


@pytest.mark.thorough
def test_a_search_and_a_sweep_have_two_names(dynabro: Dynabro, folder: Path) -> None:
    for name in ("first", "second"):
        (folder / f"{name}.yaml").write_text(QUADRATIC.format(name=name, attacks="sf, nan"))
        text = QUADRATIC.format(name=name, attacks="none").partition("search:")[0]
        (folder / f"{name}-sweep.yaml").write_text(f"{text}grid: {{attack: [none]}}\n")
    assert dynabro("search", "first.yaml", "--jobs", "0").code == 0
    assert dynabro("sweep", "second-sweep.yaml", "--jobs", "0").code == 0
    for arguments in (["--jobs", "0"], ["--dry-run"], ["--shard", "1/1", "--jobs", "0"]):
        outcome = dynabro("sweep", "first-sweep.yaml", *arguments)
        refused = (
            "name=first: a search is stored under this name. Try: another name in the sweep's file"
        )
        assert (outcome.code, outcome.problems[-1]) == (2, refused)
    for arguments in (["--jobs", "0"], ["--dry-run"]):
        outcome = dynabro("search", "second.yaml", *arguments)
        refused = "name=second: a sweep is stored under this name. Try: dynabro search --name NEW"
        assert (outcome.code, outcome.problems[-1]) == (2, refused)
    # as version 1.0.0 accepted it
    with closing(sqlite3.connect(folder / "results.db")) as connection, connection:
        assert connection.execute("SELECT name, COUNT(*) FROM sweeps GROUP BY name").fetchall() == [
            ("first", 1),
            ("second", 1),
        ]
        connection.execute("UPDATE sweeps SET name = 'first'")
        connection.execute("UPDATE runs SET sweep = 'first'")
    for arguments in (
        ["plot", "first"],
        ["report", "first", "--out", "r.html"],
        ["leaderboard", "first"],
    ):
        outcome = dynabro(*arguments)
        assert outcome.code == (66 if "leaderboard" in arguments else 0)  # nothing was repeated
        assert outcome.err.count("name=first: a search and a sweep are stored under this name") == 1


@pytest.mark.thorough
def test_a_search_whose_name_has_other_letters_is_another(dynabro: Dynabro, folder: Path) -> None:
    for name in ("small", "Small"):
        text = QUADRATIC.format(name=name, attacks="sf, nan").replace("aggregator: mean, ", "")
        (folder / f"{name}.yaml").write_text(f"{text}grid: {{aggregator: [mean]}}\n")
        assert dynabro("search", f"{name}.yaml", "--jobs", "0").code == 0
    assert dynabro("plot", "small").code == 0
    assert set(pd.read_csv("plots/small.csv")["search"]) == {"small: aggregator=mean"}


@pytest.mark.thorough
@pytest.mark.usefixtures("_nothing_stays")
def test_trials_without_a_value(dynabro: Dynabro, folder: Path) -> None:
    """The runs that fail, and those with an infinite gap."""
    (folder / "own.py").write_text("""
from dynabro_cli.plugins import attack


@attack("broken", reads_own=False)
def broken(own, byzantine, *, scale: float = 1.0):
    raise RuntimeError("broken")
""")
    (folder / "failed.yaml").write_text(
        QUADRATIC.format(name="failed", attacks='"broken:scale={1..2}"') + "plugins: [own.py]"
    )
    (folder / "infinite.yaml").write_text(QUADRATIC.format(name="infinite", attacks="nan, inf"))
    for _ in range(2):
        outcome = dynabro("search", "failed.yaml", "--jobs", "0")
        assert (outcome.code, outcome.err.splitlines()[-1]) == (
            3,
            (
                "dynabro: failed: no trial has a value, and 2 failed. Try: the same command with "
                "--retry-failed"
            ),
        )
    assert dynabro("search", "infinite.yaml", "--jobs", "0").code == 0
    # NULL is infinity
    with closing(sqlite3.connect(folder / "results.db")) as connection, connection:
        connection.execute("UPDATE trials SET value = NULL WHERE search = 'infinite'")
    for name, counts in (("failed", "2 failed"), ("infinite", "2 finished")):
        outcome = dynabro("plot", name)
        assert (outcome.code, outcome.problems[0].partition(". Try: ")[0]) == (
            66,
            f"{name}: no trial has a finite value ({counts})",
        )


TUNED = """
name: tuned
base: {task: digits, workers: 4, byzantine: 1, budget: 12, eval_every: 4, batch_size: 4, method: sgd, validation: 0.1}
search:
  learning_rate: {0.001..1 log}
maximize: validation_accuracy
trials: 3
seeds: 0
"""  # noqa: E501


@pytest.mark.thorough
def test_select_takes_the_best_trial_of_a_search(dynabro: Dynabro, folder: Path) -> None:
    (folder / "tuned.yaml").write_text(TUNED)
    assert dynabro("search", "tuned.yaml", "--jobs", "0").code == 0
    chosen = dynabro("select", "tuned.yaml", "--yaml", "chosen.yaml")
    assert chosen.code == 0, chosen.err
    with closing(sqlite3.connect(folder / "results.db")) as connection:
        rate, score = connection.execute(
            """SELECT learning_rate, MAX(validation_accuracy) FROM runs JOIN evaluations AS e
            ON e.run_id = runs.id AND e.round = runs.rounds"""
        ).fetchone()
    assert json.loads(dynabro("select", "tuned.yaml", "--json").out)[0]["best"][0][
        "value"
    ] == pytest.approx(score)
    dry = dynabro("sweep", "chosen.yaml", "--set", "budget=8", "--jobs", "0")
    assert dry.code == 0, dry.err
    with closing(sqlite3.connect(folder / "results.db")) as connection:
        found = connection.execute(
            "SELECT learning_rate, validation FROM runs WHERE sweep = 'tuned-selected'"
        ).fetchall()
    assert found == [(rate, 0.0)]
    (folder / "other.yaml").write_text(
        TUNED.replace("{0.001..1 log}", "{2..3}").replace("seeds: 0", "seeds: 1")
    )
    outcome = dynabro("select", "other.yaml")
    assert (outcome.code, outcome.out) == (2, "")
    assert (
        "name=tuned: another search is stored under this name, which differs in search and seeds"
        in outcome.err
    )
    (folder / "bad.yaml").write_text(
        TUNED.replace("tuned", "bad").replace("validation_accuracy", "final_accuracy")
    )
    assert "the test set is not for choosing" in dynabro("select", "bad.yaml").err


@pytest.mark.parametrize("name", ["", "a\nb", "../up", "/elsewhere", "a b"])
def test_a_name_is_no_path(name: str, dynabro: Dynabro, folder: Path) -> None:
    outcome = dynabro("search", "worst-adversary", "--name", name, "--dry-run")
    problem = (
        f"--name: name {name!r} is not legal. Try: letters, digits, dots, underscores and hyphens, "
        "at most 200"
    )
    assert (outcome.code, outcome.problems) == (2, [problem])
