"""Settings from the environment: names, legal values and defaults."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from dynabro_cli.errors import SpecError, did_you_mean
from dynabro_cli.machine.failpoints import check_plan

PREFIX = "DYNABRO_"
WEEK = 7 * 24 * 3600.0


def _any_text(_: str) -> None:
    return


def _on_or_off(text: str) -> None:
    if text not in ("on", "off"):
        raise ValueError("it must be on or off")


@dataclass(frozen=True)
class Setting:
    """A variable of the environment.

    Attributes:
        meaning: A phrase.
        legal: The legal values, in words.
        check: Raises ValueError for any other value.
        default: The number if it is not set; None for a setting that is not a number.
    """

    meaning: str
    legal: str
    check: Callable[[str], object] = _any_text
    default: float | None = None


def _seconds(meaning: str, default: float, minimum: float) -> Setting:
    def check(text: str) -> float:
        value = float(text)
        if not minimum <= value <= WEEK:
            raise ValueError(text)
        return value

    return Setting(meaning, f"{minimum:g} to {WEEK:.0f} seconds", check, default)


SETTINGS = {
    "DYNABRO_DB": Setting("results database, as --db", "a file or an SQLAlchemy URL"),
    "DYNABRO_DATA": Setting("folder of data sets, as --data-dir", "a folder"),
    "DYNABRO_PLUGINS": Setting("plugins, as --plugin", "files and modules, separated by :"),
    "DYNABRO_STATE": Setting("folder of checkpoints and logs", "a folder"),
    "DYNABRO_GIT_DIFF": Setting(
        "store the changes of the checkout with each run", "on or off", _on_or_off
    ),
    "DYNABRO_BUSY_SECONDS": _seconds(
        "time that a writer waits for a locked database or its server", 60, 0.01
    ),
    "DYNABRO_LEASE_SECONDS": _seconds(
        "time without heartbeats until an owner is presumed dead", 120, 0.1
    ),
    "DYNABRO_FAILPOINT": Setting(
        "for tests: where this process sends itself a signal", "NAME[:N]=SIGNAL", check_plan
    ),
    "DYNABRO_TEST_POSTGRES": Setting(
        "for tests: the URL of a PostgreSQL server", "an SQLAlchemy URL"
    ),
}


def seconds_setting(name: str) -> float:
    """Return the number of seconds in the environment variable ``name``, or its default.

    Raises:
        SpecError: The value is not legal.
    """
    setting, text = SETTINGS[name], os.environ.get(name)
    if setting.default is None:
        raise TypeError(f"{name} is not a number of seconds")
    if text is None:
        return setting.default
    problem = _problem(name, text)
    if problem is not None:
        raise SpecError(problem)
    return float(text)


def check_settings() -> list[str]:
    """Check every variable of the environment that dynabro reads; return a line for each unknown
    name with dynabro's prefix.

    Raises:
        SpecError: With a line for each value that is not legal.
    """
    given = {name: text for name, text in os.environ.items() if name.startswith(PREFIX)}
    problems = [_problem(name, text) for name, text in given.items() if name in SETTINGS]
    found = [problem for problem in problems if problem is not None]
    if found:
        raise SpecError(found)
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
    try:
        setting.check(text)
    except (ValueError, OverflowError) as error:
        reason = f"it must be {setting.legal}" if setting.default is not None else str(error)
        return f"{name}={text!r}: {reason}. Try: unset {name}"
    return None
