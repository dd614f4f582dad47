"""Count how often paired tests separate equal methods: ``python -m benchmarks separation``.

Accuracies of two equal methods are drawn, in steps of 1/360 as on digits, and compared as in the
leaderboard. A test at 5% may separate 5% of them, within two standard errors of the simulation.
"""

from __future__ import annotations

import math

import numpy as np

from dynabro_cli.answers.analysis.paired_tests import LEVEL, groups

STEPS = 360
SEEDS = range(2, 11)


def separated(seeds: int, std: float, draws: int, *, methods: int = 2) -> float:
    """Return the share of draws in which any two of some equal methods are separated."""
    random = np.random.default_rng(seeds)
    values = np.round(STEPS * random.normal(0.9, std, (draws, methods, seeds))) / STEPS
    return (
        sum(len(set(groups([dict(enumerate(row)) for row in rows]).letters)) > 1 for rows in values)
        / draws
    )


def measure(draws: int) -> str:
    """Return a line for each number of seeds and spread, and the largest share.

    Raises:
        SystemExit: The largest share is above 5%, beyond the error.
    """
    error = 2 * math.sqrt(LEVEL * (1 - LEVEL) / draws)
    lines, worst = [f"{'seeds':>5} {'std':>6} {'methods':>7} {'separated':>9}"], 0.0
    for seeds in SEEDS:
        for std in (0.001, 0.002, 0.004, 0.02):
            for methods in (2, 4):
                share = separated(seeds, std, draws, methods=methods)
                worst = max(worst, share)
                lines.append(f"{seeds:>5} {std:>6} {methods:>7} {share:>9.4f}")
    lines.append(f"largest: {worst:.4f}; allowed: {LEVEL:.2f}, and {error:.4f} for the simulation")
    if worst > LEVEL + error:
        raise SystemExit("\n".join(lines))
    return "\n".join(lines)
