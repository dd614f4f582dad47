"""Content of the database while an executor makes a sweep's runs."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dynabro_cli.core.errors import InterruptedRunError
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.runs.executors import sweep as module
from dynabro_cli.runs.executors._api import Options, Outcome
from dynabro_cli.runs.executors.backend import Places
from dynabro_cli.runs.executors.sweep import make_all
from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.read.status import read_status
from dynabro_cli.runs.store.write.standing import Standing
from tests.runs.executors.made_runs import Log, execute_all, quadratic
from tests.runs.executors.test_scheduler import Scripted
from tests.runs.store.made import read

SEEDS = (0, 2, 3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.db"


def sweep(
    path: Path,
    name: str | None,
    *runs: Run,
    listener: Log | None = None,
    timeout: float | None = None,
) -> list[Outcome]:
    options = Options(jobs=1, device="cpu", sweep=name, timeout=timeout)
    engine = open_for_writing(str(path))
    return execute_all(
        runs, engine, options, listener or Log(), worker="tests.runs.executors.talkative:serve"
    )


@pytest.mark.thorough
def test_a_sweep_has_a_row_and_its_runs_are_seen_in_it(path: Path) -> None:
    class Looking(Log):
        def event(self, slot: int, run: Run, event: object) -> None:
            if type(event).__name__ == "Started":
                (state,) = read_status(str(path)).sweeps
                seen.append(
                    (len(state.in_progress), state.finished, state.to_go, state.stored_before)
                )

    seen: list[tuple[int, ...]] = []
    sweep(path, "before", quadratic(0))
    sweep(path, "mine", *map(quadratic, SEEDS), listener=Looking())
    assert seen == [(1, 0, 1, 1), (1, 1, 0, 1)]
    columns = "name, status, runs, stored_before, jobs, executor"
    rows = [("before", "finished", 1, 0, 1, "local"), ("mine", "finished", 3, 1, 1, "local")]
    assert read(path, f"SELECT {columns} FROM sweeps ORDER BY id") == rows


@pytest.mark.thorough
def test_a_sweep_with_a_failed_run(path: Path) -> None:
    sweep(path, "mine", quadratic(0), quadratic(1))
    assert read(path, "SELECT status FROM sweeps") == [("failed",)]
    sweep(path, "mine", quadratic(0), quadratic(1))  # which is not tried again
    assert read(path, "SELECT status, stored_before FROM sweeps ORDER BY id") == [
        ("failed", 0),
        ("failed", 2),
    ]


@pytest.mark.thorough
def test_runs_without_a_name_in_common_are_no_sweep(path: Path) -> None:
    sweep(path, None, quadratic(0))
    assert read(path, "SELECT * FROM sweeps") == []


def test_all_owners_are_kept_alive(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[tuple[str, ...]] = []

    @contextlib.contextmanager
    def heartbeats(engine: object, owners: Sequence[str]) -> Iterator[None]:
        kept.append(tuple(owners))
        yield

    monkeypatch.setattr(module, "heartbeats", heartbeats)
    options = Options(jobs=2, device="cpu", sweep="mine")
    interrupted = Scripted(on_wait=lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(InterruptedRunError):
        make_all(
            [quadratic(0), quadratic(1)],
            open_for_writing(str(path)),
            Places(options, ["cpu"], 2, interrupted),
            Log(),
            Standing(None),
        )
    ((owner, status),) = read(path, "SELECT owner, status FROM sweeps")
    ((*writers, last),) = kept
    assert (len(set(writers)), last, status) == (2, owner, "interrupted")
