"""Draws of a user's functions from the process's generators: the seed determines them."""

from __future__ import annotations

import itertools
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dynabro_cli import sweep
from dynabro_cli.core.events import Checkpointed, Evaluated, Event, Started
from dynabro_cli.core.registration.plugins import load_plugin
from dynabro_cli.experiment.resolve import Run, resolve
from dynabro_cli.experiment.schedule import identities
from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.gradients.generators import Draws
from dynabro_cli.simulation.setup import simulate_run
from tests.own import fresh

PLUGIN = '''"""Parts that draw from the generators of Python, NumPy and torch."""

import dataclasses
import random

import numpy as np
import torch

from dynabro_cli.components.aggregators._api import REGISTRY as AGGREGATORS, Aggregator
from dynabro_cli.components.attacks._api import REGISTRY as ATTACKS, Attack, replace
from dynabro_cli.core.lazy import Late
from dynabro_cli.components.methods import _api as methods
from dynabro_cli.plugins import (aggregator, attack, partition, pre_aggregator, switching, task)
from dynabro_cli.components.switching._api import REGISTRY as SWITCHING, Follow, Switching


@attack("numpy-noise")
def numpy_noise(vectors, byzantine):
    """Noise."""
    return torch.tensor(np.random.normal(size=vectors.shape[1]), dtype=vectors.dtype)


@attack("torch-noise")
def torch_noise(vectors, byzantine):
    """Noise."""
    noise = torch.randn(vectors.shape[1]) * torch.rand(1)
    return noise.to(vectors.dtype) + 0.1 * torch.empty_like(noise).uniform_()


@attack("python-noise")
def python_noise(vectors, byzantine):
    """A random share of the mean."""
    return vectors.mean(0) * random.gauss(0, 1)


@partition("numpy-split")
def numpy_split(labels, *, m: int):
    """Equal parts."""
    return np.array_split(np.random.permutation(len(labels)), m)


@aggregator("random-mean")
def random_mean(messages, *, f: int):
    """Mean of some messages."""
    return messages[torch.randperm(len(messages))[: len(messages) - f]].mean(0)


@pre_aggregator("drop")
def drop(messages):
    """Some messages."""
    return messages * (torch.rand(len(messages), 1) < 0.8)


@switching("numpy-subset")
def numpy_subset(tick, *, m: int, f: int):
    """A subset."""
    mask = torch.zeros(m, dtype=torch.bool)
    mask[np.random.choice(m, f, replace=False)] = True
    return mask


@task("numpy-data")
def numpy_data():
    """Noise with means."""
    labels = np.arange(300) % 3
    return np.random.normal(size=(300, 5)) + np.random.normal(size=(3, 5))[labels], labels


class Flipped(torch.utils.data.Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, place):
        image = torch.arange(9.0).reshape(1, 3, 3) * (1 + place % 2)
        return image.flip(-1) if torch.rand(()) < 0.5 else image, place % 2


@task("flipped")
def flipped():
    """Pictures with a random flip."""
    return Flipped()


@ATTACKS.register("drawn-direction", reference="nobody")
def drawn_direction(parameters, setting):
    """A direction that is drawn before the first round, and turned by chance."""
    scale = random.random()  # also while the attack is built

    def messages(vectors, byzantine, state):
        sent = scale * state["direction"][: vectors.shape[1]].to(vectors.dtype)
        return replace(vectors, byzantine, sent)

    def advance(byzantine, state):
        return {"direction": state["direction"] + torch.randn(4096)}

    return Attack(Late(lambda: {"direction": torch.randn(4096)}), messages, advance)


@AGGREGATORS.register("moving-noise", reference="nobody")
def moving_noise(parameters, setting):
    """A mean with noise that has a memory."""

    def aggregate(messages, state, batches):
        before = state.get("noise", torch.zeros_like(messages[0]))
        noise = 0.9 * before + torch.randn_like(messages[0])
        return messages.mean(0) + 0.1 * noise, {"noise": noise}

    return Aggregator(aggregate, None)


@SWITCHING.register("drawn-follower", reference="nobody")
def drawn_follower(parameters, setting):
    """A strategy that draws when it has learnt."""

    def mask(state):
        return torch.arange(setting.workers) == int(state["worker"])

    def learn(state, acceptance):
        return {"worker": torch.tensor(np.random.randint(setting.workers))}

    first = Late(lambda: {"worker": torch.tensor(0)})
    return Switching(lambda tick: mask(first), follow=Follow(first, mask, learn), kept=True)


@methods.REGISTRY.register("noisy-steps", reference="nobody")
def noisy_steps(parameters, setting):
    """SGD with noise at the workers and at the server."""

    def send(gradients, state):
        return gradients + 0.01 * torch.randn_like(gradients), state

    def settle(aggregate, state):
        return aggregate + 0.01 * torch.randn_like(aggregate), state

    return methods.MeansMethod(send=send, settle=settle)
'''
CASES: dict[str, dict[str, Any]] = {
    "attack, NumPy": {"attack": "numpy-noise"},
    "attack, torch": {"attack": "torch-noise"},
    "attack, Python": {"attack": "python-noise"},
    "two attacks": {"attack": "mixed:parts=numpy-noise/python-noise", "byzantine": 2},
    "a drawn state": {"attack": "drawn-direction"},
    "partition": {"data": "numpy-split"},
    "rule": {"aggregator": "random-mean"},
    "stage and rule": {"aggregator": "random-mean", "pre_aggregators": "drop"},
    "rule with a state": {"aggregator": "moving-noise"},
    "strategy": {"switching": "numpy-subset"},
    "strategy that follows": {"switching": "drawn-follower"},
    "method": {"method": "noisy-steps"},
    "task": {"task": "numpy-data"},
    "data set": {"task": "flipped"},
    "levels": {
        "method": "dynabro",
        "attack": "torch-noise",
        "aggregator": "moving-noise",
        "switching": "numpy-subset",
        "clock": "computation",
    },
    "an attack that sees the rule": {"attack": "optimal-ipm", "aggregator": "random-mean"},
}
TOGETHER = {name: case for name, case in CASES.items() if "NumPy" not in name}


@pytest.fixture(autouse=True)
def _plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "drawing.py").write_text(PLUGIN)
    with fresh():
        load_plugin(tmp_path / "drawing.py")
        yield


def spec(case: str, **fields: Any) -> RunSpec:
    usual = {"task": "digits", "model": "logistic", "method": "sgd", "learning_rate": 0.1}
    size = {"budget": 24, "workers": 5, "byzantine": 1, "batch_size": 4, "eval_every": 6, "seed": 3}
    return RunSpec(**{**usual, **size, **CASES[case], **fields})


def made(spec: RunSpec, resume: bytes | None = None, compiled: str = "off") -> list[Event]:
    return simulated(resolve(spec), resume, compiled)


def simulated(run: Run, resume: bytes | None = None, compiled: str = "off") -> list[Event]:
    asked = itertools.count(1)
    return list(
        simulate_run(
            run,
            device="cpu",
            compile=compiled,
            resume=resume,
            wanted=lambda: next(asked) == 2,
        )
    )


def losses(events: list[Event]) -> list[float | None]:
    return [event.test_loss for event in events if isinstance(event, Evaluated)]


def disturb(seed: int) -> tuple[object, ...]:
    """Leave the generators as another program may have left them."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    return states()


def states() -> tuple[object, ...]:
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


@pytest.mark.parametrize("case", CASES)
def test_a_run_is_determined_by_its_seed_and_leaves_the_generators(case: str) -> None:
    run = resolve(spec(case))  # builds the parts, too, to check them
    before = disturb(1)
    first = simulated(run)
    assert states() == before
    disturb(2)
    assert losses(made(spec(case))) == losses(first)
    assert losses(made(spec(case, seed=4))) != losses(first)
    (checkpoint,) = [event for event in first if isinstance(event, Checkpointed)]
    disturb(5)
    resumed = losses(made(spec(case), checkpoint.data))
    assert resumed == losses(first)[-len(resumed) :]


@pytest.mark.thorough
def test_processes_and_this_process_draw_the_same(tmp_path: Path) -> None:
    grid = [
        {**CASES[name], "seed": 3} for name in ("rule", "strategy", "data set", "a drawn state")
    ]
    base = {"task": "digits", "model": "logistic", "method": "sgd", "learning_rate": 0.1}
    size = {"budget": 12, "workers": 5, "byzantine": 1, "batch_size": 4}
    text = {"name": "drawn", "base": base | size, "grid": {"part": grid}}
    numbers = []
    for jobs in (0, 2):
        disturb(jobs)
        file = tmp_path / f"{jobs}.db"
        sweep(text, file, jobs=jobs, quiet=True)
        with sqlite3.connect(file) as connection:
            query = (
                "SELECT run_key, final_loss FROM runs WHERE status = 'finished' ORDER BY run_key"
            )
            numbers.append(connection.execute(query).fetchall())
    assert len(numbers[0]) == len(grid)
    assert numbers[0] == numbers[1]


def test_a_drawn_schedule_is_drawn_again_for_other_methods_and_for_figures() -> None:
    drawn = []
    for method in ("sgd", "momentum"):
        started = made(spec("strategy", method=method, byzantine=2))
        rounds = [round_ for event in started for round_ in getattr(event, "rounds", ())]
        drawn.append([round_.switched for round_ in rounds])
    assert drawn[0] == drawn[1]
    columns = {"method": "sgd", "switching": "numpy-subset", "clock": "round", "workers": 5}
    run = columns | {"byzantine": 2, "budget": 24, "seed": 3}
    masks = identities(run, 24)
    assert [False, *(masks[1:] != masks[:-1]).any(1).tolist()] == drawn[0]
    assert any(drawn[0])


def test_all_seeds_have_the_same_data_and_a_note_says_that_they_are_read_once() -> None:
    notes, digests = set(), set()
    for seed in (1, 2):
        (started,) = [e for e in made(spec("data set", seed=seed)) if isinstance(e, Started)]
        notes.update(started.notes)
        digests.add(str(started.record["code_digests"]))
    assert len(digests) == 1
    (note,) = notes
    assert note.startswith("task=flipped: its data draw random numbers, and are read once")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "case",
    ["attack, torch", "stage and rule", "rule with a state", "strategy", "method", "levels"],
)
def test_compiled_functions_draw_the_same(case: str) -> None:
    events = made(spec(case), compiled="on")
    assert losses(events) == pytest.approx(losses(made(spec(case))), rel=1e-5)


def test_shipped_parts_are_called_as_they_are() -> None:
    def function() -> None: ...

    assert Draws()("attack", function) is function
