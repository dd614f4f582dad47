"""Gaussian noise."""

from __future__ import annotations

import itertools
from statistics import NormalDist

import pytest
import torch
from scipy.stats import binomtest, kstest
from torch import Tensor

from dynabro_cli import RunSpec
from dynabro_cli.components.attacks._api import Attack, AttackSetting
from dynabro_cli.components.attacks._noise import noise_key, normal_noise
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.events import Checkpointed, Evaluated, Finished, RoundsDone
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.simulation.setup import simulate_run
from tests.tables import each_row

WORD = 2**32
DOUBLE = torch.float64


def made(text: str, m: int, seed: int = 0) -> Attack:
    attack: Attack = REGISTRIES["attacks"].parse(text).build(AttackSetting(m, seed=seed))
    return attack


def noise(m: int, d: int, tick: int = 0, seed: int = 0) -> Tensor:
    return normal_noise(noise_key(seed), torch.tensor(tick), torch.zeros(m, d, dtype=DOUBLE))


def mix(word: int) -> int:
    word ^= word >> 16
    word = word * 0x21F0AAAD % WORD
    word ^= word >> 15
    word = word * 0x735A2D97 % WORD
    return word ^ word >> 15


def one_by_one(key: int, tick: int, worker: int, coordinate: int) -> float:
    """The noise by its definition, in whole numbers without bounds."""
    low, high = key % WORD, key // WORD
    first = mix(mix((mix(tick % WORD) + low) % WORD) ^ worker)
    second = mix(mix((mix((tick ^ 0x9E3779B9) % WORD) + high) % WORD) ^ worker)
    return NormalDist().inv_cdf((mix(mix((coordinate + first) % WORD) ^ second) + 0.5) / WORD)


@pytest.mark.parametrize(("seed", "tick"), [(0, 0), (1, 7), (2**63 - 1, 2**40 + 3)])
def test_noise_is_the_slow_one(seed: int, tick: int) -> None:
    expected = [[one_by_one(noise_key(seed), tick, i, j) for j in range(50)] for i in range(4)]
    torch.testing.assert_close(
        noise(4, 50, tick, seed), torch.tensor(expected, dtype=DOUBLE), rtol=1e-9, atol=1e-9
    )


def test_noise_is_the_same_for_ever() -> None:
    """Stored runs were made with it."""
    expected = [
        [-3.2849209224318447, -0.014095607202981811, 0.2206813495636214, -0.23605140642773242]
    ]
    torch.testing.assert_close(
        noise(1, 4), torch.tensor(expected, dtype=DOUBLE), rtol=0, atol=1e-12
    )


def test_golden() -> None:
    # noise xi of two Byzantine workers of three; the honest worker's vector, (3, 4), is the honest
    # mean
    own, byzantine = (
        torch.tensor([[1.0, -2.0], [3.0, 4.0], [-5.0, 0.5]], dtype=DOUBLE),
        torch.tensor([True, False, True]),
    )
    xi = noise(3, 2)
    for around, centre in (
        ("zero", torch.zeros(3, 2, dtype=DOUBLE)),
        ("mean", own[1].expand(3, 2)),
        ("own", own),
    ):
        attack = made(f"gaussian:sigma=2,around={around}", 3)
        sent = attack.messages(own, byzantine, attack.initial)
        torch.testing.assert_close(sent[byzantine], (centre + 2 * xi)[byzantine])
        assert torch.equal(sent[1], own[1])
        assert attack.reads_own == (around == "own")


@each_row(("count", "around"), [(1, "zero"), (3, "own"), *((count, "mean") for count in (1, 4))])
def test_one_to_all(count: int, around: str) -> None:
    """A worker's noise does not depend on who else is Byzantine; where all are, their mean stands
    for the honest one.
    """
    own, byzantine = torch.arange(8, dtype=DOUBLE).view(4, 2), torch.arange(4) < count
    attack = made(f"gaussian:sigma=1,around={around}", 4)
    centre = {
        "zero": torch.zeros(4, 2, dtype=DOUBLE),
        "mean": own[count % 4 :].mean(0).expand(4, 2),
        "own": own,
    }[around]
    expected = torch.where(byzantine[:, None], centre + noise(4, 2), own)
    torch.testing.assert_close(attack.messages(own, byzantine, attack.initial), expected)


@pytest.mark.thorough
def test_standard_normal_in_every_direction() -> None:
    """Kolmogorov-Smirnov tests along workers, coordinates, ticks and seeds, wrong with probability
    1e-6 each.
    """
    n = 5_000
    samples = {
        "coordinates": noise(1, n).flatten(),
        "workers": noise(n, 1).flatten(),
        "both": noise(71, 71).flatten(),
        "ticks": torch.cat([noise(1, 10, tick).flatten() for tick in range(n // 10)]),
        "seeds": torch.cat([noise(1, 10, 0, seed).flatten() for seed in range(n // 10)]),
    }
    for name, sample in samples.items():
        assert kstest(sample.numpy(), "norm").pvalue > 1e-6, name
        # 32 bits: about one pair in 20,000 agrees by chance
        assert len(sample.unique()) > len(sample) - 10, name


def test_independent_of_its_neighbours() -> None:
    """Neighbours in worker, coordinate, tick and seed: signs agree half of the time, and so do
    signs of sizes.
    """
    n = 100_000
    base = noise(2, n)
    pairs = {
        "worker": (base[0], base[1]),
        "coordinate": (base[0, :-1], base[0, 1:]),
        "next tick": (base[0], noise(1, n, 1)[0]),
        "next seed": (base[0], noise(1, n, 0, 1)[0]),
        "tick and worker": (base[1], noise(2, n, 1)[0]),
        "shifted": (base[0, 1:], base[1, :-1]),
    }
    for name, (left, right) in pairs.items():
        for first, second in (
            (left, right),
            (left.abs() - 0.6745, right.abs() - 0.6745),
            (left, right.abs() - 0.6745),
        ):
            agree = int((first.sign() == second.sign()).sum())
            assert binomtest(agree, len(left), 0.5).pvalue > 1e-7, name


def test_two_methods_with_one_seed_face_the_same_noise_and_two_seeds_another() -> None:
    own, byzantine = (
        torch.randn(5, 3, generator=torch.Generator().manual_seed(0)),
        torch.arange(5) < 2,
    )

    def rounds(seed: int) -> list[Tensor]:
        attack, sent = made("gaussian", 5, seed), []
        state = attack.initial
        for _ in range(4):
            sent.append(attack.messages(own, byzantine, state)[:2])
            state = attack.advance(byzantine, state)
        return sent

    first = rounds(3)
    assert all(torch.equal(*pair) for pair in zip(first, rounds(3), strict=True))
    assert not any(torch.equal(*pair) for pair in zip(first, rounds(4), strict=True))
    assert not any(torch.equal(*pair) for pair in itertools.pairwise(first))


@pytest.mark.thorough
@pytest.mark.parametrize("around", ["zero", "own"])
@pytest.mark.parametrize("clock", ["round", "computation"])
def test_a_run_that_was_interrupted_is_the_run_that_was_not(around: str, clock: str) -> None:
    fields = {
        "task": "quadratic",
        "method": "dynabro:jmax=3",
        "workers": 5,
        "byzantine": 2,
        "budget": 60,
        "eval_every": 20,
    }
    run = resolve(
        RunSpec(
            **fields,
            attack=f"gaussian:sigma=2,around={around}",
            clock=clock,
            aggregator="mean",
            seed=5,
        )
    )
    clean = list(simulate_run(run))
    assert isinstance(clean[-1], Finished)
    asked = iter(range(1000))
    stopped = list(simulate_run(run, wanted=lambda: next(asked) == 4))
    (cut,) = [index for index, event in enumerate(stopped) if isinstance(event, Checkpointed)]
    again = list(simulate_run(run, resume=stopped[cut].data))

    def rows(events: list[object]) -> list[object]:
        kept = [event.rounds if isinstance(event, RoundsDone) else (event,) for event in events]
        return [row for group in kept for row in group if not isinstance(row, Checkpointed)][1:]

    assert rows(stopped[:cut]) + rows(again) == rows(clean)


def test_a_run_draws_by_its_seed() -> None:
    """If every worker is Byzantine and there is no other noise, nothing else depends on the
    seed.
    """
    fields = {
        "task": "quadratic:sigma=0",
        "method": "sgd",
        "workers": 5,
        "byzantine": 2,
        "budget": 3,
        "aggregator": "mean",
    }
    everyone = {"attack": "gaussian:sigma=2", "switching": "bernoulli:p=1,D=1,delta_max=1"}
    first, again, other = (
        [
            event.gap
            for event in simulate_run(resolve(RunSpec(**fields, **everyone, seed=seed)))
            if isinstance(event, Evaluated)
        ]
        for seed in (5, 5, 6)
    )
    assert first == again
    assert first[-1] != other[-1]


def test_legal_ranges() -> None:
    with pytest.raises(SpecError) as error:
        made("gaussian:sigma=0,around=here", 3)
    assert [line.split("; ")[1] for line in error.value.problems] == [
        "sigma must be a number > 0",
        "around must be zero or mean or own",
    ]
