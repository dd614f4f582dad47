"""Databases and checkpoints of older versions, each with a run that was terminated, and one with a result from schema 9 on.

``schema_7.tar.gz`` has a run on digits. ``schema_9.tar.gz``, of the last version with schema 9, and ``schema_10.tar.gz``, of an
earlier version with schema 10, have runs on the quadratic. No version wrote schema 8.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from dynabro_cli.simulation.checkpoint import FORMAT
from tests.cli.conftest import Dynabro
from tests.store.made import read

TORCH = "2.15.0+cu132"
"""The version of torch that wrote the checkpoints."""
DIGITS = ("run", "--model", "logistic", "--switching", "periodic:K=5", "--workers", "5", "--byzantine", "2", "--budget", "300")
DIGITS += ("--eval-every", "100", "--threads", "1", "--compile", "off", "--quiet")
QUADRATIC = ("run", "--task", "quadratic", "--workers", "3", "--byzantine", "1", "--attack", "shift:lambda=1", "--aggregator")
QUADRATIC += ("cwmed", "--switching", "periodic:K=5", "--budget", "120", "--eval-every", "20", "--threads", "1")
QUADRATIC += ("--compile", "off", "--quiet")
TERMINATED, FINISHED = ("--method", "momentum:beta=0.9"), ("--method", "sgd")
NUMBERS = "SELECT round, test_accuracy, test_loss, gap FROM evaluations JOIN runs ON run_id = id WHERE method = '{}' ORDER BY 1"


class Older(NamedTuple):
    """A database of an older version.

    Attributes:
        path: The file.
        version: Its schema.
        run: The command of its runs, without the method.
        rounds: Rounds of the run that was terminated.
        code: The digests that are stored with this run, and in its checkpoint; None before schema 8.
    """

    path: Path
    version: int
    run: tuple[str, ...]
    rounds: int
    code: str | None


@pytest.fixture(params=(7, 9, 10))
def older(folder: Path, request: pytest.FixtureRequest) -> Older:
    with tarfile.open(Path(__file__).with_name(f"schema_{request.param}.tar.gz")) as archive:
        archive.extractall(folder, filter="data")
    path = folder / "results.db"
    if request.param == 7:
        return Older(path, 7, DIGITS, 28, None)
    ((rounds, code),) = read(path, "SELECT rounds, code_digests FROM runs WHERE status = 'interrupted'")
    return Older(path, request.param, QUADRATIC, rounds, code)


def _upgrade(dynabro: Dynabro, older: Older) -> None:
    """Upgrade it if its schema is not the present one; then it has no problem."""
    assert dynabro("db", "upgrade").code == 0
    assert older.path.with_name(f"results.db.v{older.version}").exists() == (older.version < 10)
    assert dynabro("db", "check").code == 0


def _log(older: Older) -> str:
    (key,) = (row[0] for row in read(older.path, "SELECT run_key FROM runs WHERE method = 'momentum'"))
    return (older.path.parent / "results.db.d" / "logs" / f"{key}.log").read_text()


def _numbers(path: Path, method: str) -> list[float]:
    return [value for row in read(path, NUMBERS.format(method)) for value in row if value is not None]


@pytest.mark.parametrize("older", [7, 9], indirect=True)
def test_it_asks_for_the_upgrade(dynabro: Dynabro, older: Older) -> None:
    before = older.path.read_bytes()
    outcome = dynabro(*older.run, *TERMINATED)
    assert outcome.code == 65
    assert "Try: dynabro db upgrade" in outcome.err
    assert older.path.read_bytes() == before


@pytest.mark.parametrize("older", [9, 10], indirect=True)
def test_its_result_is_read_and_not_made_again(dynabro: Dynabro, older: Older) -> None:
    _upgrade(dynabro, older)
    before = read(older.path, "SELECT * FROM runs JOIN rounds ON run_id = id WHERE status = 'finished' ORDER BY round")
    outcome = dynabro(*older.run, *FINISHED)
    assert (outcome.code, "run 1, already in results.db" in outcome.out) == (0, True)
    assert read(older.path, "SELECT * FROM runs JOIN rounds ON run_id = id WHERE status = 'finished' ORDER BY round") == before
    assert dynabro("show", "1").code == 0
    assert dynabro(*older.run, *FINISHED, "--db", "new.db").code == 0
    assert _numbers(older.path, "sgd") == pytest.approx(_numbers(older.path.with_name("new.db"), "sgd"), rel=1e-3)


def test_its_run_is_made_again_as_its_checkpoint_is_of_other_code(dynabro: Dynabro, older: Older) -> None:
    """The command and the log say so, and every row is the new code's."""
    _upgrade(dynabro, older)
    outcome = dynabro(*older.run, *TERMINATED)
    assert outcome.code == 0
    other = "code of a component" if torch.__version__ == TORCH else "version of torch and code of a component"
    why = f"the checkpoint was made with another {other}; the run starts from the beginning"
    assert f"dynabro: warning: {why}" in outcome.err
    assert why in _log(older)
    assert dynabro(*older.run, *TERMINATED, "--db", "new.db").code == 0
    mine = "JOIN runs ON run_id = id WHERE method = 'momentum' ORDER BY round"
    for sql in (
        f"SELECT round, rounds.byzantine, switched FROM rounds {mine}",
        f"SELECT round, test_accuracy, test_loss, train_loss, gap FROM evaluations {mine}",
        "SELECT run_key, status, budget_spent, rounds FROM runs WHERE method = 'momentum'",
    ):
        assert read(older.path, sql) == read(older.path.with_name("new.db"), sql)


def test_its_checkpoint_resumes_if_the_code_is_the_same(
    dynabro: Dynabro, older: Older, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its format has stayed: with the digests that it has, it is used, and the run ends as one without interruption."""
    made_by: dict[str, Any] = {"format": FORMAT, "dynabro": "0.1.0", "torch": TORCH}
    made_by |= {} if older.version == 7 else {"code": older.code}
    monkeypatch.setattr("dynabro_cli.simulation.setup.digests_of", lambda components: older.code)
    monkeypatch.setattr("dynabro_cli.simulation.checkpoint._made_by", lambda code: made_by)
    _upgrade(dynabro, older)
    outcome = dynabro(*older.run, *TERMINATED)
    assert (outcome.code, outcome.problems) == (0, [])
    assert f"resuming after round {older.rounds} " in _log(older)
    assert dynabro(*older.run, *TERMINATED, "--db", "new.db").code == 0
    found, made = (_numbers(path, "momentum") for path in (older.path, older.path.with_name("new.db")))
    assert len(found) >= 3 * 4
    assert found == pytest.approx(made, rel=1e-3)
