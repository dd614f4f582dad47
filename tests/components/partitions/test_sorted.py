"""The training set cut in the order of its labels."""

from __future__ import annotations

from dynabro_cli.core.streams import Streams
from tests.components.partitions.scripted import Scripted, split

LABELS = [2, 0, 1, 0, 2, 1, 0]


def test_golden() -> None:
    # label 0 at places 1, 3, 6, label 1 at 2, 5, label 2 at 0, 4; seven samples among three workers
    # are 3, 2 and 2
    assert split("sorted", LABELS, 3, Scripted()) == [[1, 3, 6], [2, 5], [0, 4]]
    assert split("sorted", LABELS, 2, Scripted()) == [[1, 3, 6, 2], [5, 0, 4]]


def test_who_has_which_samples_of_a_label_is_drawn() -> None:
    labels = [0] * 50 + [1] * 50
    parts = [split("sorted", labels, 4, Streams(seed)) for seed in (0, 1)]
    assert [max(part) < 50 for part in parts[0]] == [True, True, False, False]
    assert sorted(parts[0][0]) != list(range(25))
    assert sorted(parts[0][0]) != sorted(parts[1][0])
