"""Settings from the environment: names, legal values and defaults."""

from __future__ import annotations

import os
from typing import NamedTuple

from dynabro_cli.core.errors import SpecError, did_you_mean

PREFIX = "DYNABRO_"
WEEK = 7 * 24 * 3600


class Setting(NamedTuple):
    """A variable of the environment.

    Attributes:
        legal: The legal values, in words.
        default: The number of seconds if it is not set; None for a setting that is not a number.
        minimum: The smallest legal number of seconds.
    """

    legal: str
    default: float | None = None
    minimum: float = 0


def _seconds(default: float, minimum: float) -> Setting:
    return Setting(f"{minimum:g} to {WEEK} seconds", default, minimum)


GIT_DIFF = "DYNABRO_GIT_DIFF"
SETTINGS = {
    "DYNABRO_DB": Setting("a file or an SQLAlchemy URL"),
    "DYNABRO_DATA": Setting("a folder"),
    "DYNABRO_PLUGINS": Setting("files and modules, separated by :"),
    "DYNABRO_STATE": Setting("a folder"),
    GIT_DIFF: Setting("on or off"),
    "DYNABRO_BUSY_SECONDS": _seconds(60, 0.01),
    "DYNABRO_LEASE_SECONDS": _seconds(120, 0.1),
    # for tests
    "DYNABRO_FAILPOINT": Setting("NAME[:N]=SIGNAL"),
    "DYNABRO_TEST_POSTGRES": Setting("an SQLAlchemy URL"),
}
"""The page ``docs/settings.md`` says what they mean."""


def seconds_setting(name: str) -> float:
    """Return the number of seconds in the environment variable ``name``, or its default.

    Raises:
        SpecError: The value is not legal.
    """
    text = os.environ.get(name)
    problem = None if text is None else _problem(name, text)
    if problem is not None:
        raise SpecError(problem)
    return float(SETTINGS[name].default or 0 if text is None else text)


def check_settings() -> list[str]:
    """Check every variable of the environment that dynabro reads; return a line for each unknown
    name with dynabro's prefix.

    Raises:
        SpecError: With a line for each value that is not legal.
    """
    given = {name: text for name, text in os.environ.items() if name.startswith(PREFIX)}
    problems = [_problem(name, text) for name, text in given.items() if name in SETTINGS]
    if any(problems):
        raise SpecError([problem for problem in problems if problem])
    legal = ", ".join(SETTINGS)
    return [
        f"{name!r} in the environment is not a setting{did_you_mean(name, SETTINGS)}; legal: "
        f"{legal}"
        for name in given
        if name not in SETTINGS
    ]


def _problem(name: str, text: str) -> str | None:
    """Return the problem of a setting's value in one line; None if it is legal."""
    setting = SETTINGS[name]
    legal = name != GIT_DIFF or text in ("on", "off")
    if setting.default is not None:
        try:
            legal = setting.minimum <= float(text) <= WEEK
        except ValueError:
            legal = False
    return None if legal else f"{name}={text!r}: it must be {setting.legal}. Try: unset {name}"
