"""Ctrl-C, SIGTERM and the like that wait until nothing is half done, and that do not wait for
ever.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from dynabro_cli.core.errors import InterruptedRunError, PreemptedError
from dynabro_cli.runs.executors import interruptions as interruptions_
from dynabro_cli.runs.executors.interruptions import (
    USUAL,
    Interrupted,
    Interruptions,
    handle_signal,
)

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")


@pytest.fixture(autouse=True)
def _usual_handlers() -> Iterator[None]:
    """A test run in the background may have Ctrl-C ignored."""
    before = {number: signal.signal(number, handler) for number, handler in USUAL.items()}
    yield
    left = {number: signal.signal(number, handler) for number, handler in before.items()}
    assert left == USUAL  # put back by everything here


@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal_interrupts_what_may_be_interrupted(name: str) -> None:
    number = signal.Signals[name]
    with Interruptions() as interruptions:
        interruptions.check()
        with pytest.raises(Interrupted), interruptions.allowed():
            signal.raise_signal(number)
        assert interruptions.signal == number
        kind = InterruptedRunError if name == "SIGINT" else PreemptedError
        assert type(interruptions.error("what became of it")) is kind


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_elsewhere_waits(number: signal.Signals) -> None:
    reached = []
    with Interruptions() as interruptions:
        signal.raise_signal(number)
        reached.append("after it")
        with pytest.raises(Interrupted):
            interruptions.check()
        with pytest.raises(Interrupted), interruptions.allowed():
            reached.append("allowed")
    assert reached == ["after it"]


def in_another_process(body: str) -> subprocess.CompletedProcess[str]:
    """Run ``body`` where a signal may end the process."""
    start = "import os, signal, time\nfrom dynabro_cli.runs.executors import interruptions\n"
    return subprocess.run(
        [sys.executable, "-c", start + body], capture_output=True, text=True, timeout=60
    )


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 75)])
def test_a_second_signal_ends_at_once(name: str, code: int) -> None:
    done = in_another_process(
        "with interruptions.Interruptions():\n"
        f"    signal.raise_signal(signal.{name})\n"
        "    print('after the first', flush=True)\n"
        "    time.sleep(2 * interruptions.ONE_SECONDS)\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "    print('after the second', flush=True)\n"
    )
    assert (done.returncode, done.stdout) == (code, "after the first\n")
    line = "ended at once; stored rows are intact; the same command resumes what it can"
    assert done.stderr == f"dynabro: {line}\n"


def test_a_signal_that_comes_twice_at_a_time_is_one() -> None:
    done = in_another_process(
        "with interruptions.Interruptions() as found:\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "    time.sleep(2 * interruptions.ONE_SECONDS)\n"
        "    print(found.signal == signal.SIGTERM)\n"
    )
    assert (done.returncode, done.stdout) == (0, "True\n")


def test_what_takes_too_long_after_a_signal_is_ended() -> None:
    done = in_another_process(
        "interruptions.HARD_SECONDS = 0.05\n"
        "with interruptions.Interruptions():\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "    time.sleep(50)\n"
    )
    assert done.returncode == 75


def test_what_ends_in_time_is_not_ended() -> None:
    done = in_another_process(
        "interruptions.HARD_SECONDS = 0.05\n"
        "with interruptions.Interruptions():\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "time.sleep(0.3)\n"
        "print('alive')\n"
    )
    assert (done.returncode, done.stdout) == (0, "alive\n")


@pytest.mark.parametrize("times", [1, 2])
def test_a_signal_that_was_handled_before_it_was_looked_at_ends_nothing(times: int) -> None:
    """The thread that looks at signals may come late on a busy machine."""
    done = in_another_process(
        "from types import SimpleNamespace\n"
        "import os\n"
        "def late(*which):\n"
        "    numbers = os.read(*which)\n"
        "    time.sleep(1)\n"
        "    return numbers\n"
        "interruptions.HARD_SECONDS = 0.05\n"
        "interruptions.os = SimpleNamespace(**vars(os) | {'read': late})\n"
        "interruptions.handle_signals()\n"
        "with interruptions.Interruptions():\n"
        f"    for _ in range({times}):\n"
        "        signal.raise_signal(signal.SIGTERM)\n"
        "time.sleep(2)\n"
        "print('alive')\n"
    )
    assert (done.returncode, done.stdout) == (0, "alive\n")


def test_signals_are_watched_by_one_thread() -> None:
    done = in_another_process(
        "import threading\n"
        "for _ in range(3):\n"
        "    interruptions.handle_signals()\n"
        "print(threading.active_count())\n"
    )
    assert done.stdout == "2\n"


def test_sigterm_before_anything_is_in_progress_is_an_error_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(interruptions_, "arrived", [])
    before = signal.signal(signal.SIGTERM, handle_signal)
    try:
        with pytest.raises(PreemptedError):
            signal.raise_signal(signal.SIGTERM)
        # even where somebody has dropped the error
        with pytest.raises(PreemptedError), Interruptions():
            pass
        interruptions_.arrived.clear()
        with Interruptions() as interruptions:
            signal.raise_signal(signal.SIGTERM)
            assert interruptions.signal == signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("name", SIGNALS)
def test_a_program_with_a_handler_of_its_own_keeps_it(name: str) -> None:
    got, number = [], signal.Signals[name]
    before = signal.signal(number, lambda *_: got.append("it"))
    try:
        with Interruptions() as interruptions:
            signal.raise_signal(number)
            signal.signal(number, signal.SIG_IGN)  # as under nohup
        with Interruptions() as interruptions, interruptions.allowed():
            signal.raise_signal(number)
    finally:
        signal.signal(number, before)
    assert got == ["it"]


def test_other_threads_change_nothing() -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with Interruptions() as interruptions, interruptions.allowed():
                interruptions.check()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert errors == []
