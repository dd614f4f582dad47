"""Progress on standard error."""

from __future__ import annotations

import pytest

from dynabro_cli import events
from dynabro_cli.cli.progress import PLAIN_LINES, RunProgress
from tests.cli.conftest import Dynabro
from tests.store.made import a_round, evaluated, finished, started, totals

pytestmark = pytest.mark.usefixtures("folder")

QUADRATIC = ("run", "--task", "quadratic", "--method", "sgd", "--budget", "20")


def show(budget: int, *, quiet: bool = False, step: int = 1) -> None:
    """Show a run that is evaluated every ``step`` rounds of one computation."""
    with RunProgress(budget, samples=272, quiet=quiet) as progress:
        progress(started())
        progress(evaluated(0, 0.1))
        for number in range(step, budget + step, step):
            progress(events.RoundsDone((a_round(number - 1, byzantine=number % 9),), totals(number)))
            progress(evaluated(number, number / (2 * budget)))
        progress(finished(budget))


def test_plain_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show(400)
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert [int(line.split("/")[0]) for line in lines] == [index * 400 // PLAIN_LINES for index in range(PLAIN_LINES + 1)]
    assert all(line.split("/")[1].startswith("400: accuracy ") for line in lines)
    assert "accuracy 0.2500, 2 Byzantine" in lines[10]
    assert lines[-1].endswith(", 0 s to go")
    assert "\x1b" not in captured.err


def test_rounds_that_cost_more_than_a_twentieth(capsys: pytest.CaptureFixture[str]) -> None:
    show(10, step=7)
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == ["0/10", "7/10", "14/10"]


def test_a_long_round_and_short_ones_behind_it(capsys: pytest.CaptureFixture[str]) -> None:
    with RunProgress(400, samples=272, quiet=False) as progress:
        for spent in (0, 200, 201, 202, 219, 220, 221, 400):
            progress(evaluated(spent, 0.5))
    assert [line.split("/")[0] for line in capsys.readouterr().err.splitlines()] == ["0", "200", "220", "400"]


def test_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    show(40, quiet=True)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_live_line_and_data_stay_clean(dynabro: Dynabro, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # standard error is taken for a terminal
    outcome = dynabro(*QUADRATIC)
    assert outcome.code == 0
    assert "\x1b[" in outcome.err
    assert "gap " in outcome.err
    assert "0/20:" not in outcome.err
    assert "\x1b" not in outcome.out
    assert len(outcome.out.splitlines()) == 3


def test_the_terminal_is_given_back_after_an_error(dynabro: Dynabro, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("bang")

    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(RunProgress, "__call__", fail)
    outcome = dynabro(*QUADRATIC)
    assert outcome.code == 70
    assert outcome.err.rindex("\x1b[?25h") > outcome.err.rindex("\x1b[?25l")  # the cursor is shown again
    assert "dynabro: the run failed (ValueError: bang)" in outcome.err.splitlines()[-1]
