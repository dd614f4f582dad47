"""Inputs of a search for a rule's worst case: hand-made and random starting points, and random
moves.

The first f rows are Byzantine, the last h = m - f are the honest set S.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]
Vector = np.ndarray[tuple[int], np.dtype[np.float64]]

FAR = 1e4
MOST_CLUSTERS = 16
AROUND = (0.01, 0.1, 0.5, 0.75, 1.0, 2.0, 10.0, FAR)


def made_by_hand(m: int, f: int, d: int, generator: np.random.Generator) -> list[Matrix]:
    """Yield honest vectors (equal, in two clusters, or normal), each with several kinds of
    Byzantine vectors.
    """
    lines = [*_equal(m, f), *_clusters(m, f)]
    embedded = [np.outer(line, np.eye(1, d)[0]) for line in lines]
    return embedded + list(_normal(m, f, d, generator))


def random_start(m: int, f: int, d: int, generator: np.random.Generator) -> Matrix:
    """Return normal vectors around a random centre, with Byzantine vectors at a random distance:
    [m, d].
    """
    scale, reach = 10 ** generator.uniform(-1, 1), 10 ** generator.uniform(-1, 2)
    messages: Matrix = scale * generator.standard_normal((m, d))
    messages[:f] = (
        reach * scale * (generator.standard_normal(d) + 0.1 * generator.standard_normal((f, d)))
    )
    messages += scale * generator.choice([0.0, 10.0]) * generator.standard_normal(d)
    return messages


def _equal(m: int, f: int) -> Iterator[Vector]:
    """Yield equal honest vectors, for which any error is unbounded, at several places: a rule may
    prefer the origin.
    """
    for place in (0.0, 0.01, 1.0, 100.0):
        for distance in AROUND:
            for sign in (1, -1) if f else ():
                yield np.r_[np.full(f, place + sign * distance), np.full(m - f, place)]


def _clusters(m: int, f: int) -> Iterator[Vector]:
    """Yield p honest vectors at 1 and h - p at 0; Byzantine vectors join one, or are between,
    beyond, or far away.
    """
    h = m - f
    sizes = (
        np.unique(np.linspace(1, h - 1, min(h - 1, MOST_CLUSTERS)).astype(int))
        if h > 1
        else np.array([], int)
    )
    for p in sizes:
        honest = np.r_[np.ones(p), np.zeros(h - p)]
        for byzantine in (
            ([1], [0.5], [2], [-1], [FAR], [-FAR], [FAR, -FAR], [1, FAR]) if f else ([],)
        ):
            yield np.r_[np.resize(byzantine, f), honest]


def _normal(m: int, f: int, d: int, generator: np.random.Generator) -> Iterator[Matrix]:
    """Yield normal honest vectors, with Byzantine vectors of ALIE at several z, copies of an
    extreme vector, or far away.
    """
    honest = generator.standard_normal((m - f, d))
    mean, deviation = honest.mean(0), honest.std(0)
    extreme = honest[np.abs(honest[:, 0] - mean[0]).argmax()]
    shifts = [mean - z * deviation for z in (0.5, 1.0, 1.5, 2.0, 4.0, FAR)]
    for byzantine in [*shifts, extreme, 2 * extreme - mean] if f else [mean]:
        yield np.concatenate([np.tile(byzantine, (f, 1)), honest])


def move(messages: Matrix, byzantine: int, generator: np.random.Generator) -> Matrix:
    """Apply one of several moves: all rows, one row, all Byzantine rows together, or one row
    towards another.

    Worst cases consist of clusters, which single rows must be able to join and leave.

    Args:
        messages: [m, d]; not modified.
        byzantine: f, the number of Byzantine rows, which come first.
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
        moved[:byzantine] = moved[row] + size * generator.choice(
            [0.0, 1.0]
        ) * generator.standard_normal(d)
    return moved
