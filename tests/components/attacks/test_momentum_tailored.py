"""The dynamic attack of Appendix E, and its lemma, in numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dynabro_cli.components.api import make_attack, make_switching
from dynabro_cli.core.errors import SpecError
from tests.tables import each_row

STRENGTH = 2.0
BOUND = (5 / 6) ** 4


def simulate(beta: float, rounds: int) -> tuple[Tensor, Tensor]:
    """The bias of three workers' momenta in units of v, and who is Byzantine: [rounds, 3] each.

    Honest gradients are zero, so that all of m~_t = beta m~_{t-1} + (1 - beta) g~_t is bias.
    """
    attack = make_attack(f"momentum-tailored:lambda={STRENGTH}", workers=3, beta=beta)
    switching = make_switching("rotating", workers=3, byzantine=1, beta=beta)
    momentum = torch.zeros(3, 2, dtype=torch.float64)
    biases, masks = [], []
    for t in range(rounds):
        masks.append(switching.mask(t))
        momentum = beta * momentum + (1 - beta) * attack(torch.zeros_like(momentum), masks[-1])
        assert torch.equal(momentum[:, 0], momentum[:, 1])  # v = lambda (1, ..., 1)
        biases.append(momentum[:, 0] / STRENGTH)
    return torch.stack(biases), torch.stack(masks)


def test_golden() -> None:
    # alpha = 1/2, v = 3: a first turn starts at theta = 0, so v_t = v/alpha = 6; in its next round
    # theta = 1, and v_t = v = 3; two honest rounds later theta = 1/4, and v_t = 3 (1 - 1/8)/(1/2) =
    # 5.25
    attack = make_attack("momentum-tailored:lambda=3,beta=0.5", workers=2)
    own, first, second = (
        torch.tensor([[1.0], [-1.0]]),
        torch.tensor([True, False]),
        torch.tensor([False, True]),
    )
    sent = [attack(own, mask).flatten().tolist() for mask in (first, first, second, second, first)]
    assert sent == [[7, -1], [4, -1], [1, 5], [1, 2], [6.25, -1]]


@each_row("steps", [6, 12, 30, 150, 300])
def test_lemma_where_thirds_divide_evenly(steps: int) -> None:
    """theta is in [(5/6)^4, 1] after the first epoch of 1/alpha rounds, for alpha = 1/steps <= 1/6
    and 1/(3 alpha) whole.
    """
    biases, masks = simulate(1 - 1 / steps, 4 * steps)
    later = biases[steps:]
    assert float(later.min()) >= BOUND - 1e-9
    assert float(later.max()) <= 1 + 1e-9
    torch.testing.assert_close(
        biases[masks], torch.ones(4 * steps, dtype=torch.float64), rtol=0, atol=1e-9
    )
    # the smallest theta is that at the end of the two thirds of an epoch in which a worker is
    # honest
    assert float(later.min()) == pytest.approx((1 - 1 / steps) ** (2 * steps // 3), abs=1e-9)


@pytest.mark.parametrize(
    ("beta", "turn", "smallest"), [(0.9, 3, 0.5314), (0.99, 33, 0.5151), (0.995, 66, 0.5160)]
)
def test_lemma_where_thirds_do_not_divide_evenly(beta: float, turn: int, smallest: float) -> None:
    """The betas of the paper's experiment: the lemma holds there too, although 1/(3 alpha) is not
    whole.

    Turns are rounded down, so a worker is honest for 2 floor(1/(3 alpha)) rounds, not for 2/(3
    alpha), and theta falls to beta^6 = 0.5314, beta^66 = 0.5151 and beta^132 = 0.5160, above
    (5/6)^4 = 0.4823.
    """
    biases, masks = simulate(beta, 12 * turn)
    later = biases[round(1 / (1 - beta)) :]
    assert float(later.min()) == pytest.approx(beta ** (2 * turn), abs=1e-9)
    assert float(later.min()) == pytest.approx(smallest, abs=5e-5)
    assert float(later.min()) >= BOUND
    torch.testing.assert_close(
        biases[masks], torch.ones(12 * turn, dtype=torch.float64), rtol=0, atol=1e-9
    )


def test_serves_any_switching() -> None:
    """Under random identities, and several Byzantine workers at once, the bias is v in every
    Byzantine round.
    """
    beta, generator = 0.8, torch.Generator().manual_seed(0)
    attack = make_attack(f"momentum-tailored:lambda={STRENGTH}", workers=5, beta=beta)
    momentum = torch.zeros(5, 1, dtype=torch.float64)
    for _ in range(100):
        mask = torch.rand(5, generator=generator) < 0.4
        momentum = beta * momentum + (1 - beta) * attack(torch.zeros_like(momentum), mask)
        torch.testing.assert_close(
            momentum[mask] / STRENGTH, torch.ones(int(mask.sum()), 1, dtype=torch.float64)
        )


def test_beta_of_its_own_goes_before_the_methods() -> None:
    # alpha = 1/2 gives v/alpha = 2, alpha = 1/4 gives 4, and without momentum the attack is shift
    own, mask = torch.zeros(1, 1), torch.tensor([True])
    sent = {
        (text, beta): float(
            make_attack(f"momentum-tailored:lambda=1{text}", workers=1, beta=beta)(own, mask)
        )
        for text, beta in [("", 0.75), (",beta=0.5", 0.75), (",beta=0.5", None), ("", 0.0)]
    }
    assert list(sent.values()) == [4.0, 2.0, 2.0, 1.0]


def test_needs_a_beta() -> None:
    with pytest.raises(SpecError, match=r"the method has none. Try: the method momentum:beta="):
        make_attack("momentum-tailored:lambda=1", workers=3)
    with pytest.raises(
        SpecError, match="beta=1 is not legal; beta must be a number >= 0 and < 1 or auto"
    ):
        make_attack("momentum-tailored:lambda=1,beta=1", workers=3)


def test_the_printed_schedule() -> None:
    """alpha = 1/6, so q = 2, by hand: v/alpha = 6 at t = 3 and 5; (1 - (5/6)^4)/alpha = 3.1065 at t
    = 7, 13, ..., else 1.
    """
    attack = make_attack("momentum-tailored:lambda=1,schedule=printed", workers=1, beta=5 / 6)
    own, mask = torch.zeros(1, 2, dtype=torch.float64), torch.tensor([True])
    sent = [attack(own, mask)[0].tolist() for _ in range(14)]
    boost = 6 * (1 - (5 / 6) ** 4)
    assert boost == pytest.approx(3.1065, abs=5e-5)
    expected = [1, 1, 6, 1, 6, 1, boost, 1, 1, 1, 1, 1, boost, 1]
    assert [size for size, _ in sent] == pytest.approx(expected, rel=1e-9)
    assert all(one == other for one, other in sent)


def test_the_printed_schedule_breaks_the_lemma() -> None:
    """The second and third worker are not boosted after the first epoch at beta = 0.9: their bias
    falls below (5/6)^4.
    """
    attack = make_attack("momentum-tailored:lambda=1,schedule=printed", workers=3, beta=0.9)
    switching = make_switching("rotating", workers=3, byzantine=1, beta=0.9)
    momentum = torch.zeros(3, 1, dtype=torch.float64)
    smallest = []
    for t in range(90):
        momentum = 0.9 * momentum + 0.1 * attack(torch.zeros_like(momentum), switching.mask(t))
        smallest.append(float(momentum.min()))
    # without a boost a turn ends at b = (1 - 0.9^3)/(1 - 0.9^9) = 0.4424, and six honest rounds
    # later it is 0.9^6 b
    assert min(smallest[45:]) == pytest.approx(0.9**6 * (1 - 0.9**3) / (1 - 0.9**9), rel=1e-3)
    assert min(smallest[45:]) < BOUND / 2
