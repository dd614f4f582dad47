"""Remaining time of work in progress, from the speed that was seen lately."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from rich.progress import ProgressColumn, Task
from rich.text import Text

from dynabro_cli.cli.output import duration


class Pace:
    """Estimate remaining time from the work of the later half of the time so far.

    The work of a run is not equally slow from beginning to end: kernels are compiled in the first rounds, and methods that
    measure the noise spend a part of their budget at once before the first round. Work that took no time is skipped.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()  # moments of the later half, and one before it, with their work
        self._began = self._now = 0.0
        self._done = self._skipped = 0.0

    def begin(self, skipped: float = 0.0) -> None:
        """Start the clock, unless it runs; ``skipped`` is work that was done before or took no time."""
        self._skipped += skipped
        if not self._samples:
            self._began = self._now = time.monotonic()
            self._samples.append((self._began, 0.0))

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began if self._samples else 0.0

    def note(self, done: float) -> None:
        """Note how much work is done in all, skipped work included."""
        if not self._samples:
            return
        self._now, self._done = time.monotonic(), done - self._skipped
        if self._now > self._samples[-1][0]:
            self._samples.append((self._now, self._done))
        while len(self._samples) > 1 and self._samples[1][0] < (self._began + self._now) / 2:
            self._samples.popleft()

    def to_go(self, left: float) -> float | None:
        """Return the seconds that ``left`` work takes from now on; None if this is not known yet."""
        if left <= 0:
            return 0.0
        if not self._samples:
            return None
        then, before = self._samples[0]
        if self._now <= then or self._done <= before:
            return None
        unit = (self._now - then) / (self._done - before)
        return max(0.0, left * unit - (time.monotonic() - self._now))


class ToGo(ProgressColumn):
    """Remaining time of a bar.

    Args:
        seconds: Returns it; None if it is not known yet.
    """

    max_refresh = 0.5

    def __init__(self, seconds: Callable[[], float | None]) -> None:
        super().__init__()
        self._seconds = seconds

    def render(self, task: Task) -> Text:
        """Return the time in words."""
        seconds = self._seconds()
        return Text("" if seconds is None else f"{in_words(seconds)} to go", no_wrap=True)


def in_words(seconds: float) -> str:
    """Return a remaining time in whole seconds, or in two units."""
    return duration(seconds) if seconds >= 10 else f"{seconds:.0f} s"
