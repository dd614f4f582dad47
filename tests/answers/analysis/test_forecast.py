"""Estimated cost of a plan, from stored runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dynabro_cli.answers.analysis import forecast as module
from dynabro_cli.answers.analysis.forecast import BYTES_A_ROW, BYTES_A_RUN, DeviceKind, Forecast
from dynabro_cli.core.errors import DatabaseError
from dynabro_cli.experiment.resolve import Run, resolve
from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.write.standing import read_standing
from tests.runs.store.made import change, record, whole_run


def run(method: str = "sgd", budget: int = 50, seed: int = 0, **fields: object) -> Run:
    return resolve(
        RunSpec(
            task="digits",
            model="logistic",
            method=method,
            budget=budget,
            eval_every=10,
            seed=seed,
            **fields,
        )
    )  # type: ignore[arg-type]


def forecast(runs: list[Run], database: str, **options: Any) -> Forecast:
    return module.forecast(
        runs, database, standing=read_standing(database, None, "none"), **options
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.db"


def store(
    path: Path,
    stored: Run,
    seconds: float,
    status: str = "finished",
    device: str = "cpu",
    spent: int = 10,
) -> None:
    """Store a run of ten rounds that took ``seconds``."""
    spec = stored.spec
    columns = {
        "model": spec.model,
        "method": spec.method,
        "workers": spec.workers,
        "batch_size": spec.batch_size,
    }
    engine = open_for_writing(str(path))
    record(engine, whole_run(spent, key=stored.key, device=device, **columns))
    change(
        path,
        "UPDATE runs SET wall_seconds = ?, status = ? WHERE run_key = ?",
        seconds,
        status,
        stored.key,
    )


def test_without_a_database_all_is_to_be_done(path: Path) -> None:
    ahead = forecast([run(), run(seed=1)], str(path))
    assert (ahead.planned, ahead.stored, ahead.failed, ahead.to_do, ahead.timed, ahead.seconds) == (
        2,
        0,
        0,
        2,
        0,
        None,
    )
    assert ahead.bytes == 2 * (BYTES_A_RUN + BYTES_A_ROW * (50 + 6))
    assert not path.exists()


@pytest.mark.parametrize(
    ("status", "retry", "counts"),
    [
        ("finished", False, (1, 0, 1)),
        ("diverged", True, (1, 0, 1)),
        ("failed", False, (0, 1, 1)),
        ("failed", True, (0, 0, 2)),
        ("interrupted", False, (0, 0, 2)),
        ("running", False, (0, 0, 2)),
    ],
)
def test_what_is_stored(status: str, retry: bool, counts: tuple[int, int, int], path: Path) -> None:
    store(path, run(), 1.0, status)
    ahead = forecast([run(), run(seed=1)], str(path), retry_failed=retry)
    assert (ahead.stored, ahead.failed, ahead.to_do) == counts


def test_time_is_that_of_the_same_method_or_else_of_any(path: Path) -> None:
    store(path, run(), 1.0)
    store(path, run(seed=1), 3.0)
    store(path, run("dynabro"), 20.0)
    ahead = forecast([run(seed=2), run("dynabro", seed=2), run("momentum")], str(path))
    assert ahead.timed == 3
    assert ahead.seconds == pytest.approx(50 * (4 / 20 + 20 / 10 + 24 / 30))


@pytest.mark.parametrize(
    ("jobs", "counted", "elapsed"), [(1, 1, 25), (2, 2, 12.5), (3, 3, 10), (9, 4, 10)]
)
def test_several_at_a_time_share_the_time(
    jobs: int, counted: int, elapsed: float, path: Path
) -> None:
    """But no sweep is over before its longest run."""
    store(path, run(), 1.0)
    waiting = [run(seed=1), run(seed=2), run(seed=3), run(seed=4, budget=100)]
    ahead = forecast(
        [run(), *waiting], str(path), jobs=jobs, place=lambda _: DeviceKind("cpu", jobs)
    )
    assert (ahead.jobs, ahead.seconds, ahead.elapsed) == (
        counted,
        pytest.approx(25),
        pytest.approx(elapsed),
    )


def test_each_device_has_its_own_speed_and_both_work_at_the_same_time(path: Path) -> None:
    """A computation takes 0.1 s on the CPU and 0.01 s on a GPU, which makes four of one kind at a
    time, then two of another.
    """
    store(path, run(), 1.0)
    store(path, run(seed=1), 0.1, device="cuda:0 NVIDIA H200")
    places = [DeviceKind("cpu", 3), DeviceKind("cuda", 4), DeviceKind("cuda", 2)]
    ahead = forecast(
        [run(seed=seed) for seed in range(2, 32)],
        str(path),
        place=lambda run: places[run.spec.seed % 3],
    )
    assert ahead.devices == {"cpu": 10, "cuda": 20}
    assert ahead.seconds == pytest.approx(10 * 5 + 20 * 0.5)
    assert ahead.elapsed == pytest.approx(50 / 3)
    ahead = forecast(
        [run(seed=seed) for seed in range(2, 32)],
        str(path),
        place=lambda run: places[1 + run.spec.seed % 2],
    )
    assert ahead.elapsed == pytest.approx(15 * 0.5 / 4 + 15 * 0.5 / 2)


@pytest.mark.parametrize(
    "other",
    [
        {"workers": 5},
        {"batch_size": 4},
        {"precision": "bf16"},
        {"participation": 0.5},
        {"model": "mlp"},
    ],
)
def test_other_runs_say_nothing_of_time(other: dict[str, object], path: Path) -> None:
    store(path, run(), 1.0)
    unlike = resolve(RunSpec(**({"model": "logistic", "method": "sgd", "budget": 50} | other)))  # type: ignore[arg-type]
    ahead = forecast([unlike, run(seed=1)], str(path))
    assert (ahead.to_do, ahead.timed, ahead.seconds) == (2, 1, pytest.approx(5.0))


@pytest.mark.parametrize("device", ["cuda:0 NVIDIA H200", "cuda:1 some other"])
def test_another_kind_of_device_says_nothing_of_time(device: str, path: Path) -> None:
    store(path, run(), 1.0, device=device)
    assert forecast([run(seed=1)], str(path)).seconds is None
    assert forecast(
        [run(seed=1)], str(path), place=lambda _: DeviceKind("cuda")
    ).seconds == pytest.approx(5)


@pytest.mark.parametrize("status", ["failed", "interrupted", "running", "diverged"])
def test_only_finished_runs_tell_the_time(status: str, path: Path) -> None:
    store(path, run(), 1.0, status)
    assert forecast([run(seed=1)], str(path)).seconds is None


def test_rows_of_multi_level_rounds(path: Path) -> None:
    """Seven computations a round on average: E[cost] of jmax 7 is 7 + 2^-7."""
    ahead = forecast([run("dynabro", budget=70_000)], str(path))
    rounds = 70_000 / (7 + 2**-7)
    assert ahead.bytes == round(BYTES_A_RUN + BYTES_A_ROW * (7001 + rounds))


def test_rows_of_a_method_that_draws_its_costs(path: Path) -> None:
    """Full gradients of 20 mini-batches in one of 4 rounds, and 2 computations in the others."""
    ahead = forecast([run("marina-pp:p=0.25,batches=20", budget=65_000)], str(path))
    assert (ahead.bytes - BYTES_A_RUN) / BYTES_A_ROW - 6501 == pytest.approx(65_000 / 6.5, rel=0.1)


def test_a_large_database_tells_its_own_growth(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(path, run(), 1.0, spent=200)
    assert forecast([run(seed=1)], str(path)).bytes == BYTES_A_RUN + BYTES_A_ROW * 56
    monkeypatch.setattr(module, "ENOUGH_ROWS", 201)
    expected = BYTES_A_RUN + path.stat().st_size / 201 * 56
    assert forecast([run(seed=1)], str(path)).bytes == round(expected)


def test_the_rows_of_a_thinned_database_are_those_that_it_keeps(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(path, run(), 1.0, spent=200)
    change(path, "UPDATE runs SET rounds_every = 10")
    monkeypatch.setattr(module, "ENOUGH_ROWS", 21)
    expected = BYTES_A_RUN + path.stat().st_size / 21 * 56
    assert forecast([run(seed=1)], str(path)).bytes == round(expected)


def test_what_cannot_be_told(path: Path) -> None:
    path.write_text("notes")
    with pytest.raises(DatabaseError, match="is not a dynabro database"):
        forecast([run()], str(path))
