"""Times and sizes as people read them."""

from __future__ import annotations

import pytest

from dynabro_cli.cli.output import duration, size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (6.24, "6.2 s"),
        (40.4, "40 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
        (86400, "1 d"),
        (200_000, "2 d 7 h"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 bytes"), (999, "999 bytes"), (55_000, "55 kB"), (1_234_567, "1.2 MB"), (25e9, "25 GB")]
)
def test_size(number: float, text: str) -> None:
    assert size(number) == text
