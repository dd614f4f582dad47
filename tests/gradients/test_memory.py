"""Free memory of a device, and transfers of tensors to it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dynabro_cli.gradients import memory
from dynabro_cli.gradients.memory import Ahead

CPU = torch.device("cpu")


@pytest.mark.parametrize(("known", "expected"), [(500, 500), (0, 0), (None, 2 << 30)])
def test_what_is_free_on_the_cpu(
    known: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_host_memory", lambda: known)
    assert memory.free_memory(CPU) == expected


def test_sending_to_the_cpu_copies_nothing() -> None:
    tensor = torch.arange(3)
    assert memory.send(tensor, CPU) is tensor


def test_arrays_of_later_rounds_are_sent_together_and_are_those_of_their_round() -> None:
    drawn = []

    def draw(round_: int) -> np.ndarray:
        drawn.append(round_)
        return np.array([round_, -round_])

    ahead = Ahead(torch.device("cpu"), rounds=4)
    order = [0, 1, 2, 3, 4, 5, 9, 2]  # a run that is resumed begins in the middle
    assert [ahead.of("data", round_, draw).tolist() for round_ in order] == [
        [round_, -round_] for round_ in order
    ]
    assert drawn == [*range(4), *range(4, 8), *range(8, 12), *range(4)]
    # each name has separate arrays
    assert ahead.of("augment", 2, lambda round_: np.array([7 * round_])).tolist() == [14]
