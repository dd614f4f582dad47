"""The process's random generators, from which code that is not dynabro's may draw: torch's, NumPy's
and Python's.
"""

from __future__ import annotations

import contextlib
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch

from dynabro_cli.core.streams import Name, Streams

R = TypeVar("R")
CPU = torch.device("cpu")


@contextlib.contextmanager
def generators_kept(device: torch.device) -> Iterator[None]:
    """Give the generators back the states that they have now, at the end."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[device] if _has_generator(device) else []):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def seed_generators(seed: int) -> None:
    """Seed all of the generators."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.manual_seed(seed)
    else:  # in a hundredth of the time, which counts in each round
        torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextlib.contextmanager
def seeded(seed: int, device: torch.device = CPU) -> Iterator[None]:
    """Seed all generators for the context; they have their states back at its end."""
    with generators_kept(device):
        seed_generators(seed)
        yield


class Draws:
    """Seeds of the generators for the calls of a user's functions, by kind, round and computation.

    Calls that repeat in a round, such as the probe's, draw the same numbers again.

    Attributes:
        streams: The run's random streams; None if dynabro ships all parts, which are then called as
            they are.
        round: The current round.
        computation: The current computation or prefix of the round.

    Args:
        streams: See above.
        device: The device of the run.
    """

    def __init__(self, streams: Streams | None = None, device: torch.device = CPU) -> None:
        self.streams, self._device = streams, device
        self.round = self.computation = 0
        # the kind of the function that is being called
        self._kind: Name | None = None

    def __call__(self, kind: Name, function: Callable[..., R]) -> Callable[..., R]:
        """Return the function with seeded generators.

        Within a call of the same kind the generators are not seeded again: a compiled function
        cannot seed them, and has to draw the same numbers.
        """
        streams = self.streams
        if streams is None:
            return function

        def call(*arguments: Any) -> R:
            if torch.compiler.is_compiling() or kind == self._kind:
                return function(*arguments)
            outer, self._kind = self._kind, kind
            try:
                with seeded(streams.integer(kind, self.round, self.computation), self._device):
                    return function(*arguments)
            finally:
                self._kind = outer

        return call


def generator_states(device: torch.device) -> tuple[object, ...]:
    """Return the states, equal only if nothing was drawn in between."""
    on_device = (
        torch.cuda.get_rng_state(device).numpy().tobytes() if _has_generator(device) else b""
    )
    numpy = pickle.dumps(np.random.get_state())
    return torch.get_rng_state().numpy().tobytes(), on_device, numpy, random.getstate()


def _has_generator(device: torch.device) -> bool:
    """Return True for a GPU in use; asking for its generator would start it."""
    return device.type == "cuda" and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
