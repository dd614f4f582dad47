"""A share dealt at random, the rest sorted by label."""

from __future__ import annotations

import pytest

from dynabro_cli.components.partitions._api import REGISTRY
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.streams import Streams
from tests.components.partitions.scripted import Scripted, split
from tests.tables import each_row

LABELS = [0, 1, 0, 1, 1, 0, 1, 0]


def test_golden() -> None:
    # places 0 to 3 are dealt as they come; of 4 to 7 the labels are 1, 0, 1, 0, so that sorted they
    # are 5, 7, 4, 6
    assert split("gamma:similarity=0.5", LABELS, 2, Scripted()) == [[0, 1, 5, 7], [2, 3, 4, 6]]
    # round(0.25 * 8) = 2: place 0 to one and 1 to the other; of 2 to 7 the zeros are 2, 5, 7 and
    # the ones 3, 4, 6
    assert split("gamma:similarity=0.25", LABELS, 2, Scripted()) == [[0, 2, 5, 7], [1, 3, 4, 6]]
    assert split("gamma:similarity=1", LABELS, 2, Scripted()) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_the_share_of_labels_of_ones_own_falls_with_similarity() -> None:
    labels = sorted(list(range(10)) * 100)
    shares = []
    for similarity in (0.1, 0.5, 0.9):
        parts = split(f"gamma:similarity={similarity}", labels, 10, Streams(0))
        shares.append(
            sum(labels[place] == worker for worker, part in enumerate(parts) for place in part)
            / 1000
        )
    # gamma / 10 of the samples agree by chance, and the 1 - gamma sorted ones nearly always
    assert shares == pytest.approx([0.91, 0.55, 0.19], abs=0.05)


@each_row("similarity", ["0", "-0.5", "1.1", "nan"])
def test_illegal_similarities(similarity: str) -> None:
    with pytest.raises(SpecError, match="similarity must be a number > 0 and <= 1"):
        REGISTRY.parse(f"gamma:similarity={similarity}")
