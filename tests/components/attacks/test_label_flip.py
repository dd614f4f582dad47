"""Label flipping; what it does in a run is in ``tests/simulation/test_data_attacks.py``."""

from __future__ import annotations

import pytest
import torch

from dynabro_cli import RunSpec
from dynabro_cli.components.api import make_attack
from dynabro_cli.core.errors import SpecError
from dynabro_cli.experiment.resolve import resolve


def test_golden() -> None:
    # of ten classes 0 becomes 9, 3 becomes 6; of three 0 becomes 2, and 1 stays
    attack, byzantine = make_attack("label-flip", workers=3), torch.tensor([True, False, True])
    labels = torch.tensor([[0, 3], [9, 9], [5, 9]])
    assert attack.labels(labels, byzantine, 10).tolist() == [[9, 6], [9, 9], [4, 0]]
    assert attack.labels(torch.tensor([[0], [0], [1]]), byzantine, 3).tolist() == [[2], [0], [1]]


@pytest.mark.parametrize("count", [1, 4])
def test_one_to_all(count: int) -> None:
    labels, byzantine = torch.arange(4)[:, None], torch.arange(4) < count
    flipped = make_attack("label-flip", workers=4).labels(labels, byzantine, 10).flatten().tolist()
    assert flipped == [9 - worker if worker < count else worker for worker in range(4)]


def test_gradients_are_left_alone() -> None:
    own = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(
        make_attack("label-flip", workers=3)(own, torch.tensor([True, False, True])), own
    )


def test_it_acts_on_data_if_nothing_else_is_said() -> None:
    run = resolve(RunSpec(attack="label-flip"))
    assert run.spec.attack_entry == "data"
    assert run.key == resolve(RunSpec(attack="label-flip", attack_entry="data")).key
    assert resolve(RunSpec(attack="sf")).spec.attack_entry == "gradient"


@pytest.mark.parametrize("entry", ["gradient", "message", "state"])
def test_it_acts_on_nothing_else(entry: str) -> None:
    with pytest.raises(SpecError) as error:
        resolve(RunSpec(attack="label-flip", attack_entry=entry))
    assert error.value.problems == [
        (
            f"attack 'label-flip' acts on data, and attack_entry={entry}. Try: no --attack-entry, "
            "or --attack-entry data"
        )
    ]


def test_other_attacks_do_not_act_on_data() -> None:
    with pytest.raises(SpecError) as error:
        resolve(RunSpec(attack="sf", attack_entry="data"))
    (line,) = error.value.problems
    assert line.startswith(
        "attack 'sf' acts on gradients or single gradient computations or messages or states, "
        "and attack_entry=data. Try: no --attack-entry"
    )
    assert line.endswith("or --attack-entry gradient")


def test_an_objective_has_no_labels() -> None:
    with pytest.raises(SpecError) as error:
        resolve(RunSpec(task="quadratic", attack="label-flip"))
    assert error.value.problems == [
        (
            "attack 'label-flip' changes labels, and task 'quadratic' has none. Try: another "
            "--attack or --task"
        )
    ]
