"""Named places at which a test kills or stops a process; otherwise they do nothing.

``DYNABRO_FAILPOINT=NAME[:N]=SIGNAL`` sends this process the signal when it reaches the place for
the Nth time (by default the first): ``after-commit:3=KILL``.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

_reached: Counter[str] = Counter()


def failpoint(name: str) -> None:
    """Reach the place ``name``."""
    planned = os.environ.get("DYNABRO_FAILPOINT")
    if planned is None:
        return
    _reached[name] += 1
    place, _, sent = planned.partition("=")
    place, _, number = place.partition(":")
    if place == name and _reached[name] == int(number or 1):
        os.kill(os.getpid(), signal.Signals[f"SIG{sent}"])
