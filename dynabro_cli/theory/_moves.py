"""Random moves of an input: worst cases consist of clusters, which single rows must be able to join and leave."""

from __future__ import annotations

import numpy as np

from dynabro_cli.theory._starts import Matrix


def move(messages: Matrix, byzantine: int, generator: np.random.Generator) -> Matrix:
    """Apply one of several moves: all rows, one row, all Byzantine rows together, or one row towards another.

    Args:
        messages: [m, d]; not modified.
        byzantine: f, the number of the first rows that are Byzantine.
        generator: The source of randomness.
    """
    moved = messages.copy()
    m, d = moved.shape
    center = moved[byzantine:].mean(0)
    spread = float(np.abs(moved[byzantine:] - center).max())
    size = (spread or float(np.abs(moved - center).max()) or 1.0) * 10 ** generator.uniform(-4, 0.5)
    kind = generator.integers(7 if byzantine else 4)
    row, other = generator.integers(m, size=2)
    if kind == 0:
        moved += size * generator.standard_normal((m, d))
    elif kind == 1:
        moved[row] += size * generator.standard_normal(d)
    elif kind == 2:
        moved[row] = moved[other]
    elif kind == 3:
        moved[row] += generator.uniform(-0.5, 1.5) * (moved[other] - moved[row])
    elif kind == 4:
        moved[:byzantine] += size * generator.standard_normal(d)
    elif kind == 5:
        moved[:byzantine] = center + 10 ** generator.uniform(-1, 1) * (moved[:byzantine] - center)
    else:
        moved[:byzantine] = moved[row] + size * generator.choice([0.0, 1.0]) * generator.standard_normal(d)
    return moved
