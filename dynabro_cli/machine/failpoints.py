"""Named places at which a test kills or stops a process; otherwise they do nothing.

``DYNABRO_FAILPOINT=NAME[:N]=SIGNAL`` sends this process the signal when it reaches the place for
the Nth time (by default the first): ``after-commit:3=KILL``.
"""

from __future__ import annotations

import functools
import os
import re
import signal
from collections import Counter

from dynabro_cli.errors import did_you_mean

NAMES = (
    *("before-claim", "claim", "after-claim"),
    *("before-commit", "mid-batch", "after-commit", "before-finish"),
    *("checkpoint-write", "before-rename", "after-rename"),
    "after-model",
    *("before-copy", "mid-merge", "after-merge", "mid-thin", "mid-remove", "after-remove"),
)
"""Names of all places."""

_reached: Counter[str] = Counter()


def failpoint(name: str) -> None:
    """Reach the place ``name``, one of ``NAMES``."""
    planned = os.environ.get("DYNABRO_FAILPOINT")
    if planned is not None:
        place, number, sent = check_plan(planned)
        _reached[name] += 1
        if place == name and _reached[name] == number:
            os.kill(os.getpid(), sent)


@functools.cache
def check_plan(text: str) -> tuple[str, int, signal.Signals]:
    """Read ``NAME[:N]=SIGNAL``: a place, a count, and a signal.

    Raises:
        ValueError: The text does not have this form, or the place or signal does not exist.
    """
    match = re.fullmatch(r"([^:=]*)(?::([1-9][0-9]{0,8}))?=(.*)", text)
    if match is None:
        raise ValueError("it must be NAME=SIGNAL or NAME:N=SIGNAL, such as after-commit:3=KILL")
    place, number, name = match[1], int(match[2] or 1), match[3]
    signals = {known.name.removeprefix("SIG"): known for known in signal.Signals}
    if place not in NAMES:
        raise ValueError(
            f"unknown failpoint {place!r}{did_you_mean(place, NAMES)}; legal: {', '.join(NAMES)}"
        )
    if name not in signals:
        raise ValueError(
            f"unknown signal {name!r}{did_you_mean(name, signals)}; legal: {', '.join(signals)}"
        )
    return place, number, signals[name]
