"""The content of a report: its numbers are the database's, and its commands repeat its runs."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dynabro_cli.answers.analysis.cells import curves
from dynabro_cli.answers.analysis.results import Results, read_runs
from dynabro_cli.answers.figures.report import findings, gather
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.experiment.schedule import identities
from dynabro_cli.experiment.spec import RunSpec, fields
from dynabro_cli.runs.store.open.engine import open_read_only
from tests.answers.figures.report.conftest import Gathered
from tests.cli.conftest import Dynabro
from tests.command_lines import parse
from tests.runs.store.made import change, read


@pytest.mark.thorough
def test_cells_have_the_numbers_of_the_database(gathered: Gathered, real_database: Path) -> None:
    found = gathered()
    own = [cell for cell in found["cells"] if found["tasks"][cell["task"]]["metric"] == "accuracy"]
    stored = read(
        real_database, "SELECT mean, std, n FROM final_accuracy WHERE task = 'digits' ORDER BY mean"
    )
    assert len(stored) == 3
    assert sorted((cell["mean"], cell["std"], cell["n"]) for cell in own) == [
        (pytest.approx(mean, rel=1e-4), pytest.approx(std, rel=1e-4, abs=1e-12), n)
        for mean, std, n in stored
    ]


@pytest.mark.thorough
def test_every_run_is_there_with_its_cell(gathered: Gathered, real_database: Path) -> None:
    found = gathered()
    methods = next(k for k, field in enumerate(found["fields"]) if field["name"] == "method")
    rows = {run[0]: run for run in found["runs"]}
    stored = read(
        real_database, "SELECT id, run_key, method, seed, status, final_accuracy, rounds FROM runs"
    )
    assert len(rows) == len(stored) == 7
    names = {"sgd": "SGD", "dynabro": "DynaBRO"}
    for run_id, key, method, seed, status, accuracy, rounds in stored:
        _, short, cell, own_seed, own_status, score, own_rounds, seconds, *_ = rows[run_id]
        assert key.startswith(short)
        assert found["fields"][methods]["values"][found["cells"][cell]["at"][methods]] == names.get(
            method, f"momentum \N{GREEK SMALL LETTER BETA}={method.partition('=')[2] or '0.9'}"
        )
        assert (own_seed, own_status, own_rounds) == (seed, status, rounds)
        assert seconds > 0
        assert accuracy is None or score == pytest.approx(accuracy, rel=1e-4)


def test_the_last_point_of_a_curve_is_the_final_score(gathered: Gathered) -> None:
    found = gathered()
    curves = [
        (cell["curve"], cell["mean"]) for cell in found["cells"] if "--method" in cell["command"]
    ]
    # not of dynabro, whose last round spends more than the rest of the budget
    assert len(curves) == 3
    for (budgets, means, stds), mean in curves:
        assert means[-1] == pytest.approx(mean, rel=1e-3)
        assert len(budgets) == len(means) == len(stds) > 3
        assert budgets == sorted(set(budgets))


@pytest.mark.thorough
def test_curves_are_read_in_portions(
    gathered: Gathered, real_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []

    def counted(part: Results, *arguments: Any) -> pd.DataFrame:
        sizes.append(len(part.runs))
        return curves(part, *arguments)

    monkeypatch.setattr(gather, "curves", counted)
    for portion in (2, 1000):
        monkeypatch.setattr(gather, "PORTION", portion)
        assert gathered(real_database)["cells"] == gathered()["cells"]
        assert sum(sizes) == 7
        assert (max(sizes) <= 3) == (portion == 2)  # a cell has two runs at most
        sizes.clear()


@pytest.mark.thorough
def test_a_report_loads_no_torch(real_database: Path, tmp_path: Path) -> None:
    """Torch alone takes 500 MB."""
    program = """
import sys
from dynabro_cli.cli.app import main
try:
    main()
finally:
    assert "torch" not in sys.modules
"""
    words = ["report", "--db", str(real_database), "--out", str(tmp_path / "report.html")]
    subprocess.run([sys.executable, "-c", program, *words], check=True)
    assert '"timelines":[{' in (tmp_path / "report.html").read_text()


@pytest.mark.thorough
def test_curves_are_thinned_to_their_ends(
    gathered: Gathered, real_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [cell["curve"] for cell in gathered()["cells"]]
    monkeypatch.setattr(gather, "ALL_POINTS", 1)
    monkeypatch.setattr(gather, "FEWEST_POINTS", 3)
    for (budgets, means, _), (few, kept, _) in zip(
        whole, [cell["curve"] for cell in gathered(real_database)["cells"]], strict=True
    ):
        assert len(few) == 3 < len(budgets)
        assert (few[0], few[-1], kept[0], kept[-1]) == (
            budgets[0],
            budgets[-1],
            means[0],
            means[-1],
        )


def test_the_command_of_every_run_has_its_key(gathered: Gathered) -> None:
    found = gathered()
    for _, key, cell, seed, *_ in found["runs"]:
        program, *words = shlex.split(f"{found['cells'][cell]['command']} --seed {seed}")
        assert program == "dynabro"
        given = {name: value for name, value in parse(words).items() if name in fields() and value}
        given |= {name: "+".join(value) for name, value in given.items() if isinstance(value, list)}
        assert resolve(RunSpec.from_text(given)).key.startswith(key)


def test_timelines_and_bars_are_the_rounds(gathered: Gathered, real_database: Path) -> None:
    found = gathered()
    assert {line["switching"] for line in found["timelines"]} == {"periodic:K=4", "periodic:K=10"}
    for line in found["timelines"]:
        masks = np.zeros((line["ticks"], line["workers"]), dtype=bool)
        for worker, start, end in line["spans"]:
            assert not masks[start:end, worker - 1].any()
            masks[start:end, worker - 1] = True
        counts = dict(
            read(real_database, "SELECT round, byzantine FROM rounds WHERE run_id = ?", line["run"])
        )
        assert masks.sum(1).tolist() == [counts[tick] for tick in range(line["ticks"])]
        shares = [
            share
            for task, switching, _, share in found["bars"]
            if (task, switching) == (line["task"], line["switching"])
        ]
        assert sum(shares) == pytest.approx(1)


def test_a_timeline_of_stored_identities(
    gathered: Gathered, real_database: Path, tmp_path: Path
) -> None:
    path = tmp_path / "stored.db"
    path.write_bytes(real_database.read_bytes())
    change(path, "INSERT INTO identities VALUES (1, 0, '[1,3]')")
    change(path, "INSERT INTO identities VALUES (1, 25, '[2]')")
    (line,) = gathered(path, "id = 1")["timelines"]
    assert sorted(line["spans"]) == [[1, 0, 25], [2, 25, line["ticks"]], [3, 0, 25]]


@pytest.mark.thorough
def test_an_unknown_strategy_has_no_timeline(
    gathered: Gathered, real_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(results: object, run: dict[str, object], ticks: int) -> object:
        return identities({**run, "switching": "nosuch"}, ticks)

    monkeypatch.setattr(gather, "masks_of", unknown)
    assert gathered(real_database)["timelines"] == []


def test_answers_are_the_numbers_of_a_matrix(gathered: Gathered, real_database: Path) -> None:
    """One for each compared field; the best cell of a column has the highest mean."""
    own = [one for one in gathered()["answers"] if one["task"] == "digits"]
    assert own[0]["label"] == "method"
    (panel,) = own[0]["panels"]
    means = {row[0]: float(row[1][0]["mean"]) for row in panel["rows"]}
    stored = read(
        real_database,
        "SELECT AVG(final_accuracy) FROM runs WHERE task = 'digits' AND method = 'sgd'",
    )
    assert means["SGD"] == pytest.approx(stored[0][0], abs=6e-4)
    best = [row[0] for row in panel["rows"] if row[1][0]["best"]]
    assert best == [max(means, key=lambda name: means[name])]
    assert own[0]["sentence"].startswith(f"no test separates the best two: {best[0]} with ")


def test_a_matrix_with_too_many_cells_is_no_answer(
    gathered: Gathered, real_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [
        sum(
            cell is not None
            for panel in answer["panels"]
            for row in panel["rows"]
            for cell in row[1]
        )
        for answer in gathered()["answers"]
    ]
    monkeypatch.setattr(findings, "MOST_CELLS", max(sizes) - 1)
    assert len(gathered(real_database)["answers"]) == sum(size < max(sizes) for size in sizes)


def test_the_largest_sweep_with_an_answer_comes_first(
    gathered: Gathered, real_database: Path, tmp_path: Path
) -> None:
    path = tmp_path / "sweeps.db"
    shutil.copy(real_database, path)
    change(path, "UPDATE runs SET sweep = 'large' WHERE task = 'digits'")
    change(path, "UPDATE runs SET sweep = 'small' WHERE method != 'dynabro' AND seed = 0")
    found = gathered(path)
    sweeps = list(dict.fromkeys(answer["sweep"] for answer in found["answers"]))
    assert sweeps == ["large", "small"]
    assert found["tasks"][0]["sweep"] == "large"
    # a sweep of one method has no answer
    change(path, "UPDATE runs SET sweep = iif(method = 'sgd', 'lone', 'pair')")
    found = gathered(path, "task = 'digits' AND (method = 'sgd' OR seed = 0)")
    assert found["answers"][0]["sweep"] == found["tasks"][0]["sweep"] == "pair"


@pytest.mark.thorough
def test_a_sweep_is_described_by_its_file(
    gathered: Gathered, real_database: Path, tmp_path: Path
) -> None:
    path = tmp_path / "described.db"
    shutil.copy(real_database, path)
    change(path, "UPDATE runs SET sweep = 'mine'")
    columns = (
        "name, status, runs, stored_before, jobs, executor, started_at, heartbeat_at, "
        "owner, host, pid, yaml"
    )
    time = "2026-01-01 00:00:00.000000"
    text = "name: mine\ndescription: Which rule holds\n"
    values = f"'mine', 'finished', 1, 0, 1, 'local', '{time}', '{time}', 'a', 'b', 1, '{text}'"
    change(path, f"INSERT INTO sweeps ({columns}) VALUES ({values})")
    assert gathered(path)["about"] == [
        {"name": "mine", "description": "Which rule holds", "text": text}
    ]


@pytest.mark.thorough
def test_answers_have_the_differences_of_pairs(gathered: Gathered) -> None:
    content = gathered(where="task = 'digits'")
    (answer,) = [answer for answer in content["answers"] if answer["label"] == "method"][:1]
    (panel,) = answer["panels"]
    means = {row[0]: float(row[1][0]["mean"]) for row in panel["rows"]}
    rows = answer["differences"]["rows"]
    assert len(rows) == len(means) * (len(means) - 1) // 2
    for _, a, b, pairs, difference, interval, _ in rows:
        assert pairs == 2
        assert float(difference) == pytest.approx(means[a] - means[b], abs=2e-3)
        low, high = map(float, interval.split(" to "))
        assert low <= float(difference) <= high


@pytest.mark.thorough
def test_runs_without_a_result_are_counted(
    gathered: Gathered, real_database: Path, tmp_path: Path
) -> None:
    path = tmp_path / "failed.db"
    path.write_bytes(real_database.read_bytes())
    change(path, "UPDATE runs SET status = 'failed' WHERE id = 1")
    change(path, "UPDATE runs SET status = 'interrupted' WHERE id IN (2, 3)")
    found = gathered(path)
    assert found["statuses"] == {"failed": 1, "interrupted": 2}
    assert len(found["runs"]) == 4
    assert gathered(path, "id <> 2")["statuses"] == {"failed": 1, "interrupted": 1}


def test_a_report_of_a_sweep_counts_its_runs_only(real_database: Path, tmp_path: Path) -> None:
    path = tmp_path / "two.db"
    path.write_bytes(real_database.read_bytes())
    change(path, "DELETE FROM sweep_runs")
    change(path, "UPDATE runs SET sweep = iif(id < 4, 'mine', 'other')")
    change(path, "UPDATE runs SET status = 'running' WHERE id IN (1, 4, 5)")
    engine = open_read_only(str(path))
    for sweep, where, count in (("mine", None, 1), ("other", None, 2), ("other", "id = 4", 1)):
        runs = read_runs(engine, where if where is None else "TRUE", (sweep,))
        measured = (engine, identities, lambda run: (0, False, False))
        results = Results(runs, runs, "", *measured, (sweep,))
        assert gather._statuses(results, where) == {"running": count}


def test_numbers_that_json_lacks(gathered: Gathered, real_database: Path, tmp_path: Path) -> None:
    path = tmp_path / "none.db"
    path.write_bytes(real_database.read_bytes())
    change(path, "UPDATE runs SET final_accuracy = NULL, wall_seconds = NULL")
    change(path, "UPDATE evaluations SET test_accuracy = NULL, gap = 9e999")
    json.dumps(gathered(path), allow_nan=False)


@pytest.mark.thorough
@pytest.mark.parametrize("sweep", ["digits-periodic", "history-methods", "hardware", ""])
def test_a_report_of_real_runs_counts_each_once(sweep: str, folder: Path, dynabro: Dynabro) -> None:
    """SGD and DynaBRO are beside each reading of an attack on momentum; the terminal, the page, its
    cells and the database have the same number of runs.
    """
    example = Path(__file__).parents[4] / "results.db.example"
    named = (sweep,) if sweep else ()
    outcome = dynabro("report", *named, "--db", str(example), "--out", "r.html")
    assert outcome.code == 0
    where = f"WHERE sweep = '{sweep}'" if sweep else ""
    ((count,),) = read(example, f"SELECT COUNT(*) FROM runs {where}")
    assert f"{count} runs written" in outcome.err
    page = Path("r.html").read_text()
    assert f"{count} runs with a result" in page
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])["content"]
    ids = [run[0] for run in data["runs"]]
    assert len(ids) == len(set(ids)) == count
    seeds = {(run[2], run[3]) for run in data["runs"]}
    for place, cell in enumerate(data["cells"]):
        assert cell["n"] == sum(of == place for of, _ in seeds) > 0
