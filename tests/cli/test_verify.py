"""``dynabro verify``: what it prints, stores and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dynabro_cli.answers.theory import subjects
from tests.answers.theory.made_rates import fill
from tests.cli.conftest import Dynabro
from tests.runs.store.made import read

QUICK = ("--restarts", "1", "--steps", "10", "--quiet")
COLUMNS = "rule, workers, byzantine, dimension, restarts, steps, seed, empirical"
SMALL = ("--m", "5", "--f", "2", *QUICK)


# --- kappa


@pytest.mark.thorough
def test_a_table_of_every_rule(dynabro: Dynabro) -> None:
    outcome = dynabro("verify", "kappa", *SMALL)
    assert (outcome.code, outcome.err) == (0, "")
    header, rule, *lines = outcome.out.splitlines()
    assert header.split() == ["rule", "found", "proved", "inputs", "notes"]
    assert set(rule) == {"-", " "}
    rows = {
        line.split()[0]: line.split() for line in lines if not line.startswith("not legal here: ")
    }
    assert rows["cwmed"][1:3] == ["2", "36"]
    assert rows["mean"][1:] == [">", "1e+06", "no", "proof", "1", "no", "bound", "in", "sight"]
    (krum,) = [line for line in lines if line.startswith("not legal here: krum: ")]
    assert "2f + 2 < m must hold" in krum


def test_findings_are_stored_and_printed_as_json(dynabro: Dynabro) -> None:
    outcome = dynabro(
        "verify", "kappa", "cwmed", "mean", "--pre", "nnm", *SMALL, "--json", "--db", "own.db"
    )
    assert (outcome.code, outcome.err) == (0, "")
    first, second = json.loads(outcome.out)
    assert (first["rule"], first["violated"], first["notes"]) == ("nnm+cwmed", False, [])
    assert (second["rule"], second["unbounded"]) == ("nnm+mean", True)
    assert first["proved"] == pytest.approx(8 * 2 / 3 * 37)
    assert second["proved"] is None
    stored = read(Path("own.db"), f"SELECT {COLUMNS} FROM verified_kappa")
    assert stored == [(one["rule"], 5, 2, 2, 1, 10, 0, one["empirical"]) for one in (first, second)]
    (worst,) = read(Path("own.db"), "SELECT worst FROM verified_kappa WHERE rule = 'nnm+cwmed'")
    assert json.loads(worst[0]) == first["worst"]


def test_a_broken_bound_is_loud(dynabro: Dynabro, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = subjects.build_chain
    monkeypatch.setattr(subjects, "build_chain", lambda *parts: chain(*parts)._replace(kappa=0.5))
    outcome = dynabro("verify", "kappa", "cwmed", *SMALL)
    assert outcome.code == 1
    told, count = outcome.problems
    assert told.startswith(
        "VIOLATED: cwmed with m=5, f=2: an input has the ratio 2, and kappa = 0.5 is proved"
    )
    assert count == "1 of 1 rules break their proved kappa: a bug in the rule or in its bound"
    assert "cwmed" in outcome.out
    assert dynabro("verify", "kappa", "cwmed", *SMALL, "--json").code == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ("--m", "4", "--f", "2"),
            "f=2 of m=4 is not legal: 0 <= 2f < m must hold. Try: --f with at most 1",
        ),
        (
            ("--f", "-1"),
            "f=-1 of m=17 is not legal: 0 <= 2f < m must hold. Try: --f with at most 8",
        ),
        (
            ("--dimension", "0"),
            "dimension=0 is not legal. Try: --dimension with a whole number >= 1",
        ),
        (("--seconds", "nan"), "seconds=nan is not legal. Try: --seconds with a number > 0"),
        (("cwmd",), "unknown aggregator 'cwmd' (did you mean 'cwmed'?); legal: "),
        (("cwmed", "--pre", "nn"), "unknown pre-aggregator 'nn'"),
        (("cwtm:f=9",), "'cwtm': f=9 is not legal with 17 workers"),
    ],
)
def test_what_is_refused(
    arguments: tuple[str, ...], problem: str, dynabro: Dynabro, folder: Path
) -> None:
    outcome = dynabro("verify", "kappa", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.problems[0].startswith(problem)
    assert len(outcome.problems) == 1
    assert list(folder.iterdir()) == []


def test_progress_is_on_standard_error(dynabro: Dynabro) -> None:
    outcome = dynabro("verify", "kappa", "cwmed", "mean", *SMALL[:-1])
    assert outcome.err == "cwmed: searching, 1 of 2 rules\nmean: searching, 2 of 2 rules\n"


# --- rate


def test_exponents_of_stored_runs(dynabro: Dynabro, folder: Path) -> None:
    runs = fill(folder / "rates.db")
    outcome = dynabro(
        "verify", "rate", "--seeds", "0..1", "--db", "rates.db", "--jobs", "0", "--quiet"
    )
    assert (outcome.code, outcome.err) == (0, "")
    _, _, *lines = outcome.out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["rounds"] * 3 + ["optimum"] * 3 + [
        "delta"
    ] * 3 + ["switches"] * 2
    assert "rounds: static" in lines[0]
    assert " -0.50 " in lines[0]
    assert "-0.50 to -0.50  -0.70" in lines[0]
    assert read(folder / "rates.db", "SELECT COUNT(*) FROM runs") == [(runs,)]


@pytest.mark.thorough
def test_exponents_as_json(dynabro: Dynabro, folder: Path) -> None:
    fill(folder / "rates.db", ("seeds=0",))
    outcome = dynabro(
        "verify",
        "rate",
        "switches",
        "--seeds",
        "0",
        "--db",
        "rates.db",
        "--jobs",
        "1",
        "--json",
        "--quiet",
    )
    assert (outcome.code, outcome.err) == (0, "")
    first, second = json.loads(outcome.out)
    assert (first["setting"], second["setting"]) == ("eta = 1/L", "eta = 1/(10 L)")
    assert first["slope"] == pytest.approx(1.2, abs=1e-3)
    assert first["share"] is None


def test_what_there_is_to_do(dynabro: Dynabro, folder: Path) -> None:
    outcome = dynabro("verify", "rate", "delta", "--seeds", "0..1", "--dry-run")
    assert (outcome.code, outcome.err) == (0, "")
    assert "54 runs planned" in outcome.out
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ("round",),
            (
                "part='round' is not legal (did you mean 'rounds'?). Try: one of rounds, optimum, "
                "delta, switches, all"
            ),
        ),
        (("--seeds", "x"), "--set seeds=x: seeds=x is not legal"),
        (("--jobs", "-1"), "jobs=-1 is not legal"),
    ],
)
def test_what_rate_refuses(
    arguments: tuple[str, ...], problem: str, dynabro: Dynabro, folder: Path
) -> None:
    outcome = dynabro("verify", "rate", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.problems[0].startswith(problem)
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_the_runs_are_made(dynabro: Dynabro, folder: Path) -> None:
    """Dynamic rounds do harm, and the more so the more there are; the second time nothing is
    made.
    """
    command = ("verify", "rate", "switches", "--seeds", "0", "--jobs", "2", "--json", "--quiet")
    outcome = dynabro(*command)
    assert outcome.code == 0
    assert read(folder / "results.db", "SELECT COUNT(*), MIN(status), MAX(status) FROM runs") == [
        (14, "finished", "finished")
    ]
    one = json.loads(outcome.out)[1]
    assert 0.5 < one["slope"] < 3
    assert dynabro(*command).out == outcome.out


# --- tau


@pytest.mark.thorough
def test_the_ratios_of_honest_corrections(dynabro: Dynabro) -> None:
    small = ("verify", "tau", "cwtm", "--m", "5", "--f", "1", "--budget", "40", "--seeds", "0..0")
    (found,) = json.loads(dynabro(*small, "--json").out)
    assert (found["rule"], found["seeds"]) == ("cwtm", 1)
    assert 0 < found["median"] <= found["q99"] <= found["q999"] <= found["largest"]
    header, _, row = dynabro(*small).out.splitlines()
    assert header.split()[:4] == ["rule", "runs", "corrections", "median"]
    assert row.split()[:4] == ["cwtm", "1", str(found["corrections"]), f"{found['median']:.2f}"]
