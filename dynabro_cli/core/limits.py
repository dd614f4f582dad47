"""Limits of what is stored: writers refuse more, and readers accept as much."""

from __future__ import annotations

import re

LARGEST = 2**31 - 1
"""Largest value of a column that is an integer of 32 bits, in every database."""
LARGEST_BUDGET = 2_000_000_000
"""Largest budget: the last round may spend more than the rest of the budget."""
MOST_WORKERS = 1_000_000
"""Largest number of workers: masks, numbers and tables of this length can be made at once."""
MOST_RUNS = 100_000
"""Most points of a sweep."""
MOST_SEEDS = 10_000
"""Most seeds in one range."""
MOST_CHARACTERS = 1_000_000
"""Most characters of the YAML of a sweep or a search."""
MOST_TAGS = 10_000
"""Most tags of a run."""
MOST_NOTE = 4000
"""Most characters of a note."""
MOST_DIFF = 1_000_000
"""Most bytes of the changes of a checkout."""
LARGEST_INPUT = 100_000
"""Most bytes of an input that ``verify kappa`` stores."""
LARGEST_TEXT = 10_000_000
"""Most bytes of any text: the largest is the list of a million Byzantine workers in ``identities``,
of 7.9 million bytes.
"""
DIGEST_DIGITS = 12
"""Hexadecimal digits of a digest: 48 bits tell the versions of a file apart, and a stored run has
some eight digests.
"""
MOST_NAME = 200
"""Most letters of a sweep's name: file systems take 255, and NAME.runs.csv has the most others."""
SWEEP_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MOST_NAME - 1}}}")
"""Names of sweeps and searches, which are names of files and folders, too."""

CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters and broken bytes, which are not printed."""
