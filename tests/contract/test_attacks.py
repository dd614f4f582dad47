"""What every attack promises: one table over the registry."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dynabro_cli.api import make_attack
from dynabro_cli.resolve import REGISTRIES

# What an attack cannot do without.
NEEDED = {"shift": "shift:lambda=2", "momentum-tailored": "momentum-tailored:lambda=2,beta=0.9"}

TEXTS = [NEEDED.get(name, name) for name in REGISTRIES["attacks"].entries()]

every_text = pytest.mark.parametrize("text", TEXTS)
every_m = pytest.mark.parametrize("m", [1, 2, 3, 4, 9])


def draw(m: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(m, 6, generator=torch.Generator().manual_seed(m)).to(dtype)


@every_text
@every_m
def test_defined_for_every_number_of_byzantine_workers(text: str, m: int) -> None:
    """From none to all: messages are finite, honest rows bit for bit as they were, and the input is left alone."""
    attack, own = make_attack(text, workers=m), draw(m)
    before = own.clone()
    for count in [*range(m + 1), 0]:  # one after the other, so that an attack with a memory meets them with one
        byzantine = torch.randperm(m, generator=torch.Generator().manual_seed(count)) < count
        messages = attack(own, byzantine)
        assert messages.shape == own.shape
        assert bool(messages.isfinite().all())
        assert torch.equal(messages[~byzantine], own[~byzantine])
        assert torch.equal(own, before)


@every_text
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_messages_have_the_precision_of_the_gradients(text: str, dtype: torch.dtype) -> None:
    own, byzantine = draw(9, dtype), torch.arange(9) < 4
    attack = make_attack(text, workers=9)
    for _ in range(3):
        assert attack(own, byzantine).dtype == dtype


@every_text
def test_no_randomness_of_its_own(text: str) -> None:
    own, byzantine = draw(9), torch.arange(9) % 2 == 0
    first, second = make_attack(text, workers=9), make_attack(text, workers=9)
    for _ in range(3):
        assert torch.equal(first(own, byzantine), second(own, byzantine))


@every_text
def test_state_is_data(text: str) -> None:
    """``messages`` may be called for every level of a round; only ``advance`` moves on, by returning a new state."""
    attack = make_attack(text, workers=9)._attack
    own, byzantine = draw(9), torch.arange(9) < 4
    state = attack.advance(~byzantine, attack.advance(byzantine, dict(attack.initial)))
    kept = {name: value.clone() for name, value in state.items()}
    first = attack.messages(own, byzantine, state)
    assert torch.equal(attack.messages(own, byzantine, state), first)
    attack.advance(byzantine, state)
    assert state.keys() == kept.keys()
    assert all(torch.equal(state[name], kept[name]) for name in kept)


@every_text
def test_own_vectors_of_byzantine_workers_matter_where_declared(text: str) -> None:
    """Gradients that an attack does not read are not computed; so it must say what it reads."""
    byzantine, own = torch.arange(9) < 4, draw(9)
    others = torch.where(byzantine[:, None], own + 1, own)
    sent, of_others = (make_attack(text, workers=9)(vectors, byzantine) for vectors in (own, others))
    assert torch.equal(sent, of_others) == (not make_attack(text, workers=9)._attack.reads_own)


@every_text
def test_it_can_be_compiled(text: str) -> None:
    """As one graph, which the server's function needs; traced here and not compiled, so that it is quick."""
    attack = make_attack(text, workers=9)._attack
    own, byzantine = draw(9), torch.arange(9) < 4
    state = attack.advance(byzantine, dict(attack.initial))
    torch.compiler.reset()
    traced = torch.compile(attack.messages, backend="eager", fullgraph=True)
    assert torch.equal(traced(own, byzantine, state), attack.messages(own, byzantine, state))


@every_text
def test_an_attack_with_a_row_for_each_worker_says_so(text: str) -> None:
    """It needs all workers to answer in every round."""
    attack = make_attack(text, workers=9)._attack
    state = attack.advance(torch.arange(9) < 4, dict(attack.initial))
    assert attack.by_number or not any(value.ndim and value.shape[0] == 9 for value in state.values())
