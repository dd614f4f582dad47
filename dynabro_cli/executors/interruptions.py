"""Ctrl-C where nothing is half done."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any


class Interruptions:
    """While entered, Ctrl-C raises KeyboardInterrupt only within ``allowed`` and in ``check``; a second one does at once.

    So no transaction, and no start of a process, is broken off in its middle. Outside the main thread, where Python handles no
    signals, and where the program has a handler of its own, this changes nothing.
    """

    def __init__(self) -> None:
        self._pending = self._allowed = False
        self._before: Any = None

    def __enter__(self) -> Interruptions:
        here = threading.current_thread() is threading.main_thread()
        if here and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        now = self._allowed or self._pending
        self._pending = True
        if now:
            raise KeyboardInterrupt

    def check(self) -> None:
        """Raise KeyboardInterrupt where there has been a Ctrl-C."""
        if self._pending:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """Let Ctrl-C interrupt what is done within."""
        self._allowed = True
        try:
            self.check()
            yield
        finally:
            self._allowed = False
