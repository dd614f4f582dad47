"""Checks of attacks and switching strategies."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from dynabro_cli.components.api import make_attack, make_switching
from dynabro_cli.components.attacks._api import ON_DATA, Attack, Defence, State, honest_mean
from dynabro_cli.core.errors import first_line
from dynabro_cli.testing._common import check_run, component, require, same

M = 9
TICKS = 40


def check_attack(text: str, *, plugin: str | Path | None = None, beta: float | None = None) -> None:
    """Check an attack.

    It is defined for any number of Byzantine workers from 0 to m, and leaves its input, the honest
    rows and its state unchanged. It is finite if it declares so, reads Byzantine workers' own
    vectors only if it declares so, and draws only from the seed. In a run, its numbers are
    reproducible.

    Args:
        text: Such as ``my-attack:scale=0.5``.
        plugin: The file that defines it.
        beta: The momentum parameter of the method under attack, if it needs one.

    Raises:
        AssertionError: A promise is broken; the message says which.
        SpecError: The attack does not exist, or cannot be built.
    """
    component("attacks", text, plugin)
    for workers in (1, 2, M):
        _check_numbers(text, make_attack(text, workers=workers, beta=beta)._attack, workers)
    attack = make_attack(text, workers=M, beta=beta)._attack
    _check_reading(text, attack)
    _check_labels(text, attack)
    method = "sgd" if beta is None else f"momentum:beta={beta}"
    where = {"task": "digits", "model": "logistic"} if attack.labels is not None else {}
    check_run(text, attack=text, method=method, **where)


def _vectors(workers: int, seed: int = 0) -> Tensor:
    return torch.randn(workers, 6, generator=torch.Generator().manual_seed(seed))


def _sent(attack: Attack, vectors: Tensor, byzantine: Tensor, state: State) -> Tensor:
    seen = (
        (Defence(honest_mean(vectors, byzantine), lambda messages: messages.median(0).values),)
        if attack.sees_defence
        else ()
    )
    messages: Tensor = attack.messages(vectors, byzantine, state, *seen)
    return messages


def _next(attack: Attack, vectors: Tensor, byzantine: Tensor, state: State) -> State:
    if attack.observe is not None:
        state = attack.observe(vectors, byzantine, state)
    state = attack.advance(byzantine, state)
    return state if attack.follow is None else attack.follow(honest_mean(vectors, byzantine), state)


def _check_numbers(text: str, attack: Attack, workers: int) -> None:
    state = dict(attack.initial)
    for count in (*range(workers + 1), 0):
        vectors, byzantine = (
            _vectors(workers, count),
            torch.randperm(workers, generator=torch.Generator().manual_seed(count)) < count,
        )
        before, kept = vectors.clone(), {name: value.clone() for name, value in state.items()}
        where = f"{text} with {count} of {workers} workers Byzantine"
        try:
            messages = _sent(attack, vectors, byzantine, state)
        except Exception as error:
            raise AssertionError(
                f"{where}: it raises {type(error).__name__}: {first_line(error)}"
            ) from error
        require(same(vectors, before), f"{where}: it changes its input; clone it")
        require(
            messages.shape == vectors.shape and messages.dtype == vectors.dtype,
            f"{where}: messages must have the vectors' shape and type",
        )
        require(
            same(messages[~byzantine], vectors[~byzantine]),
            f"{where}: the honest rows must not change",
        )
        require(
            not attack.finite or messages.isfinite().all(),
            f"{where}: it sends NaN or Inf; say finite=False",
        )
        require(
            same(_sent(attack, vectors, byzantine, state), messages),
            f"{where}: called again, it sends other messages",
        )
        following = _next(attack, vectors, byzantine, state)
        require(
            state.keys() == kept.keys() and all(same(state[name], kept[name]) for name in kept),
            f"{where}: it changes its state in place; return a new one",
        )
        state = following
        rows = workers > 2 and any(
            value.ndim and value.shape[0] == workers for value in state.values()
        )
        require(
            attack.by_number or not rows,
            f"{text}: its state has a row for each worker; say by_number=True",
        )


def _check_reading(text: str, attack: Attack) -> None:
    byzantine, base = torch.arange(M) < 4, _vectors(M)
    others = torch.where(byzantine[:, None], base - 9, base)
    first, second = (
        _sent(attack, vectors, byzantine, dict(attack.initial)) for vectors in (base, others)
    )
    require(
        attack.reads_own or same(first, second),
        f"{text}: it reads Byzantine workers' own vectors, which are not computed then; say "
        "reads_own=True",
    )


def _check_labels(text: str, attack: Attack) -> None:
    require(attack.entries, f"{text}: entries must name the places where it acts")
    if attack.labels is None:
        require(ON_DATA not in attack.entries, f"{text}: an attack on data must change labels")
        return
    labels, byzantine = torch.arange(45).view(M, 5) % 10, torch.arange(M) % 2 == 0
    before, changed = labels.clone(), attack.labels(labels, byzantine, 10)
    require(torch.equal(labels, before), f"{text}: it changes the labels in place")
    require(
        torch.equal(changed[~byzantine], labels[~byzantine]),
        f"{text}: labels of honest workers must not change",
    )
    require(
        ((changed >= 0) & (changed < 10)).all(), f"{text}: its labels must be numbers of classes"
    )


def check_switching(
    text: str, *, plugin: str | Path | None = None, workers: int = M, byzantine: int = 3
) -> None:
    """Check a switching strategy: its masks depend only on the seed and the tick, in any order. A
    run is reproducible.

    Args:
        text: Such as ``my-switching:K=5``.
        plugin: The file that defines it.
        workers: m.
        byzantine: f.

    Raises:
        AssertionError: A promise is broken; the message says which.
        SpecError: The strategy does not exist, or not for m and f.
    """
    component("switching", text, plugin)

    def schedule(order: list[int]) -> dict[int, Tensor]:
        strategy = make_switching(text, workers=workers, byzantine=byzantine, seed=3)
        masks = {}
        for tick in order:
            mask = strategy.mask(tick)
            require(
                mask.shape == (workers,) and mask.dtype == torch.bool,
                f"{text}: a mask must be bool [{workers}]",
            )
            masks[tick] = mask.clone()
            mask.logical_not_()
            require(
                torch.equal(strategy.mask(tick), masks[tick]),
                f"{text}: a mask must belong to the caller; clone it",
            )
        return masks

    torch.manual_seed(0)
    forwards = schedule(list(range(TICKS)))
    torch.manual_seed(1)
    backwards = schedule(list(reversed(range(TICKS))))
    same_masks = all(torch.equal(forwards[tick], backwards[tick]) for tick in forwards)
    require(
        same_masks,
        f"{text}: masks depend on the order of calls, or on a global generator; draw from seed "
        "and tick",
    )
    strategy = make_switching(text, workers=workers, byzantine=byzantine, seed=3)
    counts = {int(mask.sum()) for mask in forwards.values()}
    constant = strategy.always is None or counts == {strategy.always}
    require(constant, f"{text}: always={strategy.always}, but masks have {counts}")
    check_run(text, switching=text, workers=workers, byzantine=byzantine)
