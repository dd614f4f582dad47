"""The contract of switching strategies, and their registry.

A strategy is a factory ``(parameters, SwitchingSetting) -> Switching``. Its schedule depends on the seed and the tick
only: two methods with one seed face the same identities at the same ticks, and any tick can be asked for again. Two kinds
depend on more: a strategy that looks at the round's level has ``in_round``, and one that follows the run has ``follow``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from dynabro_cli.components import Registry
from dynabro_cli.errors import SpecError
from dynabro_cli.lazy import torch
from dynabro_cli.streams import Streams

if TYPE_CHECKING:
    from torch import Tensor

State: TypeAlias = "dict[str, Tensor]"


@dataclass(frozen=True)
class SwitchingSetting:
    """What a strategy knows of its run.

    Attributes:
        workers: Their number, m.
        byzantine: The declared number of Byzantine workers, f.
        seed: The run's.
        beta: The method's momentum parameter, where it has one.
        jmax: The largest MLMC level at which the method has a correction; None without MLMC.
    """

    workers: int
    byzantine: int
    seed: int
    beta: float | None = None
    jmax: int | None = None


class Follow(NamedTuple):
    """How a strategy follows the run. Its state is in the run's checkpoints.

    Attributes:
        initial: The state before the first round; ``Late``, so that building a strategy loads no torch.
        mask: Maps the state to the mask [m] of the round that begins.
        learn: Maps the state and the acceptance ratio of the round's Byzantine messages (None where none was sent; see
            ``simulation.acceptance``) to the next state; called at the end of every round.
    """

    initial: Mapping[str, Tensor]
    mask: Callable[[State], Tensor]
    learn: Callable[[State, float | None], State]


class Switching(NamedTuple):
    """A strategy in its setting.

    Attributes:
        mask: ``mask(t)`` is the bool mask [m] of the Byzantine workers at tick t = 0, 1, ...
        always: How many of them there are, where it is the same number at every tick.
        in_round: ``in_round(t, level)`` takes the place of ``mask(t)`` where the round's level counts: J of a round with an
            MLMC correction, 0 of one without, None where the method has no levels. ``mask`` is then that of the highest.
        follow: How the strategy follows the run, where it does; ``mask`` is then what it does until it has learnt something.
        kept: Whether the run stores who is Byzantine, at each change, as nobody can find it out again from the seed.
    """

    mask: Callable[[int], Tensor]
    always: int | None = None
    in_round: Callable[[int, int | None], Tensor] | None = None
    follow: Follow | None = None
    kept: bool = False


REGISTRY: Registry[Callable[..., Switching]] = Registry("switching strategy", "dynabro_cli.switching")


def uniform_subset(setting: SwitchingSetting, counter: int) -> Tensor:
    """Draw ``byzantine`` of the workers uniformly, as a mask [m]; a pure function of the seed and ``counter``.

    Raises:
        SpecError: Unless 0 <= byzantine <= workers.
    """
    check_count(setting)
    generator = Streams(setting.seed).generator("identities", counter)
    mask = np.zeros(setting.workers, dtype=bool)
    mask[generator.choice(setting.workers, setting.byzantine, replace=False)] = True
    return torch.from_numpy(mask)


def check_count(setting: SwitchingSetting) -> None:
    """Raise SpecError unless 0 <= byzantine <= workers."""
    if not 0 <= setting.byzantine <= setting.workers:
        raise SpecError(f"byzantine={setting.byzantine} of workers={setting.workers} is not legal; type a number of workers")
