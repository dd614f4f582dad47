"""Progress on standard error."""

from __future__ import annotations

import dataclasses
import re

import pytest

from dynabro_cli.core import events
from dynabro_cli.experiment.resolve import Run, resolve
from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.runs.executors._api import Outcome
from dynabro_cli.runs.screen.progress import PLAIN_LINES, RunsProgress
from dynabro_cli.simulation import setup
from tests.cli.conftest import Dynabro
from tests.runs.store.made import a_round, evaluated, finished, started, totals

pytestmark = pytest.mark.usefixtures("folder")

QUADRATIC = ("run", "--task", "quadratic", "--method", "sgd", "--budget", "20")


class Single(RunsProgress):
    """The display of a run of one sample in each computation of all workers."""

    def __init__(self, budget: int, *, quiet: bool = False) -> None:
        self.run = resolve(
            RunSpec(task="quadratic", budget=budget, workers=1, byzantine=0, batch_size=1)
        )
        super().__init__([self.run], quiet=quiet)
        self.started(0, self.run)

    def tell(self, *happened: events.Event) -> None:
        for event in happened:
            self.event(0, self.run, event)


def show(budget: int, *, quiet: bool = False, step: int = 1) -> None:
    """Show a run that is evaluated every ``step`` rounds of one computation."""
    with Single(budget, quiet=quiet) as progress:
        progress.tell(started(), evaluated(0, 0.1))
        for number in range(step, budget + step, step):
            done = events.RoundsDone((a_round(number - 1, byzantine=number % 9),), totals(number))
            progress.tell(done, evaluated(number, number / (2 * budget)))
        progress.tell(finished(budget))
        progress.ended(0, Outcome(progress.run, "finished", None))


def test_plain_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show(400)
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert [int(line.split("/")[0]) for line in lines] == [
        index * 400 // PLAIN_LINES for index in range(PLAIN_LINES + 1)
    ]
    assert all(line.split("/")[1].startswith("400: accuracy ") for line in lines)
    assert "accuracy 0.2500, 2 Byzantine" in lines[10]
    assert lines[-1].endswith(" samples/s")
    assert "\x1b" not in captured.err


def test_rounds_that_cost_more_than_a_twentieth(capsys: pytest.CaptureFixture[str]) -> None:
    show(10, step=7)
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == [
        "0/10",
        "7/10",
        "10/10",
    ]


def test_a_long_round_and_short_ones_behind_it(capsys: pytest.CaptureFixture[str]) -> None:
    with Single(400) as progress:
        progress.tell(*(evaluated(spent, 0.5) for spent in (0, 200, 201, 202, 219, 220, 221, 400)))
    assert [line.split("/")[0] for line in capsys.readouterr().err.splitlines()] == [
        "0",
        "200",
        "220",
        "400",
    ]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Rich's clock."""
    now = [1000.0]
    monkeypatch.setattr("rich.console.monotonic", lambda: now[0])
    return now


def test_a_budget_spent_before_the_first_round_does_not_count(
    capsys: pytest.CaptureFixture[str], clock: list[float]
) -> None:
    """Progress of safeguard's noise measurement: 10 of 100 at once, then a second for each."""
    with Single(100) as progress:
        progress.tell(started(), dataclasses.replace(evaluated(0, 0.1), budget=10))
        for spent in (20, 50, 100):
            clock[0] = 1000.0 + spent - 10
            progress.tell(evaluated(spent, 0.5))
    captured = capsys.readouterr().err
    assert re.findall(r"[\d,]+ samples/s.*", captured) == [
        "0 samples/s",
        *(f"1 samples/s{left}" for left in (", about 1 min 20 s to go", ", about 50 s to go", "")),
    ]


def test_a_resumed_run_counts_from_its_checkpoint(
    capsys: pytest.CaptureFixture[str], clock: list[float]
) -> None:
    with Single(100) as progress:
        progress.tell(dataclasses.replace(started(), resumed=totals(80)))
        clock[0] += 10
        progress.tell(evaluated(90, 0.5))
    assert "1 samples/s, about 10 s to go" in capsys.readouterr().err


def test_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    show(40, quiet=True)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_live_line_and_data_stay_clean(
    dynabro: Dynabro, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refreshed(RunsProgress):
        def event(self, slot: int, run: Run, event: events.Event) -> None:
            super().event(slot, run, event)
            self._live.refresh()  # the run may end before the display is due again

    monkeypatch.setenv("FORCE_COLOR", "1")  # standard error is taken for a terminal
    monkeypatch.setattr("dynabro_cli.runs.screen.progress.RunsProgress", Refreshed)
    outcome = dynabro(*QUADRATIC)
    assert outcome.code == 0
    assert "\x1b[" in outcome.err
    assert "gap " in outcome.err
    assert "0/20:" not in outcome.err
    assert "\x1b" not in outcome.out
    assert len(outcome.out.splitlines()) == 3


def test_the_terminal_is_given_back_after_an_error(
    dynabro: Dynabro, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("bang")

    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(setup, "simulate_run", fail)
    outcome = dynabro(*QUADRATIC)
    assert outcome.code == 70
    # the cursor is shown again
    assert outcome.err.rindex("\x1b[?25h") > outcome.err.rindex("\x1b[?25l")
    assert "dynabro: the run failed (ValueError: bang)" in outcome.err.splitlines()[-1]
