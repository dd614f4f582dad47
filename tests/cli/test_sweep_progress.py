"""Progress of a sweep on standard error."""

from __future__ import annotations

import dataclasses

import pytest

from dynabro_cli.core import events
from dynabro_cli.experiment.resolve import Run, resolve
from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.runs.executors._api import Outcome
from dynabro_cli.runs.screen.progress import RunsProgress
from tests.runs.store.made import a_round, evaluated, finished, started, totals

pytestmark = pytest.mark.usefixtures("folder")

RUNS = [
    resolve(RunSpec(budget=100, method=method, seed=seed))
    for method in ("sgd", "dynabro")
    for seed in (0, 1)
]


def begin(progress: RunsProgress, slot: int, run: Run, spent: int = 50) -> None:
    """A run begins, and comes as far as ``spent``."""
    progress.started(slot, run)
    progress.event(slot, run, started())
    progress.event(slot, run, evaluated(0, 0.1))
    progress.event(slot, run, events.RoundsDone((a_round(spent - 1, byzantine=7),), totals(spent)))


def finish(progress: RunsProgress, slot: int, run: Run) -> None:
    """A run that has begun comes to its end."""
    progress.event(slot, run, evaluated(100, 0.875))
    progress.event(slot, run, finished(100))
    progress.ended(slot, Outcome(run, "finished", None))


def show(*, quiet: bool = False) -> RunsProgress:
    """Show a sweep of four runs: one stored, one that fails in its second attempt, two that
    finish.
    """
    with RunsProgress(RUNS, quiet=quiet) as progress:
        progress.ended(0, Outcome(RUNS[0], "stored", None))
        begin(progress, 0, RUNS[1])
        begin(progress, 1, RUNS[2])
        begin(progress, 0, RUNS[1])
        finish(progress, 1, RUNS[2])
        progress.ended(0, Outcome(RUNS[1], "failed", "the process died [/red]\nmore"))
        begin(progress, 0, RUNS[3])
        finish(progress, 0, RUNS[3])
    return progress


def test_plain_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show()
    captured = capsys.readouterr()
    assert captured.out == ""
    first, second, third = captured.err.splitlines()
    assert first.startswith(
        "2/4: digits, dynabro, cwtm, sf, periodic:K=10, seed 0: finished: accuracy 0.8750, about "
    )
    assert first.endswith(" s to go")
    assert second.startswith(
        "3/4: failed: digits, sgd, cwtm, sf, periodic:K=10, seed 1: the process died [/red]"
    )
    assert (
        third == "4/4: digits, dynabro, cwtm, sf, periodic:K=10, seed 1: finished: accuracy 0.8750"
    )


def test_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    show(quiet=True)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_line_for_all_and_one_for_each_slot(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    with RunsProgress(RUNS, quiet=False) as progress:
        progress.ended(0, Outcome(RUNS[0], "stored", None))
        begin(progress, 0, RUNS[1], spent=70)
        begin(progress, 1, RUNS[2], spent=30)
        begin(progress, 0, RUNS[1])  # its process died, and it begins again
        tasks = [(task.description, task.completed, task.total) for task in progress._live.tasks]
        assert tasks == [
            ("1 of 4 runs", 80, 300),
            (
                "accuracy 0.1000, 7 Byzantine; digits, dynabro, cwtm, sf, periodic:K=10, seed 0",
                30,
                100,
            ),
            ("accuracy 0.1000, 7 Byzantine; digits, sgd, cwtm, sf, periodic:K=10, seed 1", 50, 100),
        ]
        progress.ended(0, Outcome(RUNS[1], "failed", "bang [/red]\nmore"))
        finish(progress, 1, RUNS[2])
        tasks = [(task.description, task.completed, task.total) for task in progress._live.tasks]
        # half of the one that failed was done
        assert tasks == [("3 of 4 runs, 1 failed", 150, 250)]
    captured = capsys.readouterr()
    assert captured.out == ""
    assert (
        "failed: digits, sgd, cwtm, sf, periodic:K=10, seed 1: bang [/red]\n"
        in captured.err.replace("\r", "")
    )
    # the cursor is shown again
    assert captured.err.rindex("\x1b[?25h") > captured.err.rindex("\x1b[?25l")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Rich's clock."""
    now = [1000.0]
    monkeypatch.setattr("rich.console.monotonic", lambda: now[0])
    return now


def to_go(capsys: pytest.CaptureFixture[str]) -> str:
    """The remaining time in the last plain line."""
    return capsys.readouterr().err.splitlines()[-1].partition("about ")[2]


def test_the_time_to_go_is_of_several_runs_at_a_time(
    capsys: pytest.CaptureFixture[str], clock: list[float]
) -> None:
    """Two at a time spend 150 in 60 s; the other 250 take 100 s: with what is spent of the run in
    progress counted.
    """
    with RunsProgress(RUNS, quiet=False) as progress:
        progress.started(0, RUNS[0])
        progress.started(1, RUNS[1])
        clock[0] += 60
        progress.event(1, RUNS[1], events.RoundsDone((a_round(49),), totals(50)))
        finish(progress, 0, RUNS[0])
        assert to_go(capsys) == "1 min 40 s to go"


def test_the_time_to_go_of_a_run_that_goes_on(
    capsys: pytest.CaptureFixture[str], clock: list[float]
) -> None:
    """Nine tenths of it were done before; the tenth took 10 s, and 300 are left."""
    with RunsProgress(RUNS, quiet=False) as progress:
        progress.started(0, RUNS[0])
        progress.event(0, RUNS[0], dataclasses.replace(started(), resumed=totals(90)))
        clock[0] += 10
        finish(progress, 0, RUNS[0])
        assert to_go(capsys) == "5 min to go"


def test_a_run_that_spends_more_than_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with RunsProgress(RUNS, quiet=False) as progress:
        begin(progress, 0, RUNS[2], spent=120)
        assert [task.completed for task in progress._live.tasks] == [100, 100]


def test_progress_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed:
        def isatty(self) -> bool:
            return False

        def write(self, _: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None:
            pass

    monkeypatch.setattr("sys.stderr", Closed())
    assert show()._statuses.total() == 4


def test_half_a_minute_without_a_line_is_the_longest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("dynabro_cli.runs.screen.progress.time.monotonic", lambda: now[0])
    with RunsProgress(RUNS, quiet=False) as progress:
        progress.started(0, RUNS[1])
        for spent in (10, 20, 30, 40, 50):
            now[0] += 16
            progress.event(
                0, RUNS[1], events.RoundsDone((a_round(spent - 1, byzantine=7),), totals(spent))
            )
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[2].split(",")[0] for line in lines] == ["20/100", "40/100"]
    assert lines[0].startswith("0/4: digits, sgd, cwtm, sf, periodic:K=10, seed 1: 20/100")
