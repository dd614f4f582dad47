"""Ctrl-C that waits until nothing is half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from dynabro_cli.executors.interruptions import Interruptions


@pytest.fixture(autouse=True)
def _handler_of_python() -> Iterator[None]:
    """A test run in the background may have Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler  # put back by everything here


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def test_ctrl_c_interrupts_what_may_be_interrupted() -> None:
    with Interruptions() as interruptions:
        interruptions.check()
        with pytest.raises(KeyboardInterrupt), interruptions.allowed():
            ctrl_c()


def test_ctrl_c_elsewhere_waits() -> None:
    reached = []
    with Interruptions() as interruptions:
        ctrl_c()
        reached.append("after it")
        with pytest.raises(KeyboardInterrupt):
            interruptions.check()
        with pytest.raises(KeyboardInterrupt), interruptions.allowed():
            reached.append("allowed")
    assert reached == ["after it"]


def test_a_second_ctrl_c_does_not_wait() -> None:
    with Interruptions():
        ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            ctrl_c()


def test_a_second_ctrl_c_does_not_wait_for_what_the_first_one_ends() -> None:
    with Interruptions() as interruptions:
        with pytest.raises(KeyboardInterrupt), interruptions.allowed():
            ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            ctrl_c()


def test_a_program_with_a_handler_of_its_own_keeps_it() -> None:
    got = []
    before = signal.signal(signal.SIGINT, lambda *_: got.append("it"))
    try:
        with Interruptions():
            ctrl_c()
    finally:
        signal.signal(signal.SIGINT, before)
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
