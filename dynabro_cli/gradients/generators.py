"""The process's random generators, from which code that is not dynabro's may draw: torch's, NumPy's
and Python's.
"""

from __future__ import annotations

import contextlib
import pickle
import random
from collections.abc import Iterator

import numpy as np
import torch


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
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


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
