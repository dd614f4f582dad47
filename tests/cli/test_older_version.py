"""A database and a checkpoint of an older version: ``schema_7.tar.gz``, of a run that was terminated in round 28."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest

from dynabro_cli.simulation.checkpoint import FORMAT
from tests.cli.conftest import Dynabro
from tests.store.made import read

TORCH = "2.15.0+cu132"
"""The version of torch that wrote the checkpoint."""
STORED = Path(__file__).with_name("schema_7.tar.gz")
RUN = ("run", "--model", "logistic", "--method", "momentum:beta=0.9", "--switching", "periodic:K=5", "--workers", "5")
RUN += ("--byzantine", "2", "--budget", "300", "--eval-every", "100", "--threads", "1", "--compile", "off", "--quiet")


@pytest.fixture
def older(folder: Path) -> Path:
    with tarfile.open(STORED) as archive:
        archive.extractall(folder, filter="data")
    return folder / "results.db"


def test_it_asks_for_the_upgrade(dynabro: Dynabro, older: Path) -> None:
    before = older.read_bytes()
    outcome = dynabro(*RUN)
    assert outcome.code == 65
    assert "Try: dynabro db upgrade" in outcome.err
    assert older.read_bytes() == before


def test_its_run_is_made_again_as_its_checkpoint_is_of_other_code(dynabro: Dynabro, older: Path) -> None:
    """The command and the log say so, and every row is the new code's."""
    assert dynabro("db", "upgrade").code == 0
    assert dynabro("db", "check").code == 0
    outcome = dynabro(*RUN)
    assert outcome.code == 0
    why = "the checkpoint was made with another code of a component; the run starts from the beginning"
    assert f"dynabro: warning: {why}" in outcome.err
    (log,) = (older.parent / "results.db.d" / "logs").iterdir()
    assert why in log.read_text()
    assert dynabro(*RUN, "--db", "new.db").code == 0
    for sql in (
        "SELECT round, byzantine, switched FROM rounds ORDER BY round",
        "SELECT round, test_accuracy, test_loss, train_loss FROM evaluations ORDER BY round",
        "SELECT id, run_key, status, budget_spent, rounds FROM runs",
    ):
        assert read(older, sql) == read(older.with_name("new.db"), sql)


def test_its_checkpoint_resumes_if_the_code_is_the_same(dynabro: Dynabro, older: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its format has stayed: with the digests that it has, none, it is used, and the run ends as one without interruption."""
    monkeypatch.setattr("dynabro_cli.simulation.setup.digests_of", lambda components: None)
    monkeypatch.setattr("dynabro_cli.simulation.checkpoint._made_by", _made_by_schema_7)
    assert dynabro("db", "upgrade").code == 0
    outcome = dynabro(*RUN)
    assert (outcome.code, outcome.problems) == (0, [])
    (log,) = (older.parent / "results.db.d" / "logs").iterdir()
    assert "resuming after round 28 " in log.read_text()
    assert dynabro(*RUN, "--db", "new.db").code == 0
    sql = "SELECT round, test_accuracy, test_loss FROM evaluations ORDER BY round"
    found, made = ([value for row in read(db, sql) for value in row] for db in (older, older.with_name("new.db")))
    assert found == pytest.approx(made, rel=1e-3)


def _made_by_schema_7(_code: str | None) -> dict[str, Any]:
    return {"format": FORMAT, "dynabro": "0.1.0", "torch": TORCH}
