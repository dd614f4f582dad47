"""The contract of switching strategies, and their registry.

A strategy is a factory ``(parameters, SwitchingSetting) -> Switching``. Its schedule depends only
on the seed and the tick: two methods with the same seed face the same identities at the same ticks,
and any tick can be computed again. Three kinds depend on more: a strategy that uses the round's
level has ``in_round``, a strategy that uses the place within the round has ``within``, and a
strategy that follows the run has ``follow``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.lazy import np, torch
from dynabro_cli.core.registration import Registry
from dynabro_cli.core.streams import Streams

if TYPE_CHECKING:
    from torch import Tensor

State: TypeAlias = "dict[str, Tensor]"
Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True)
class SwitchingSetting:
    """Setting of a strategy.

    Attributes:
        workers: The number m of workers.
        byzantine: The declared number f of Byzantine workers.
        seed: The run's seed.
        beta: The method's momentum parameter, if it has one.
        jmax: The largest MLMC level at which the method has a correction; None without MLMC.
    """

    workers: int
    byzantine: int
    seed: int
    beta: float | None = None
    jmax: int | None = None


class Follow(NamedTuple):
    """Rules for a strategy that follows the run. Its state is in the run's checkpoints.

    Attributes:
        initial: The state before the first round; ``Late``, so that building a strategy loads no
            torch.
        mask: Maps the state to the mask [m] of the next round.
        learn: Maps the state and the acceptance ratio of the round's Byzantine messages (None if
            none was sent; see ``simulation.round.acceptance``) to the next state. It is called at
            the end of every round.
    """

    initial: Mapping[str, Tensor]
    mask: Callable[[State], Tensor]
    learn: Callable[[State, float | None], State]


class Switching(NamedTuple):
    """A strategy in its setting.

    Attributes:
        mask: ``mask(t)`` is the bool mask [m] of the Byzantine workers at tick t = 0, 1, ...
        always: The number of Byzantine workers, if it is the same at every tick.
        in_round: ``in_round(t, level)`` replaces ``mask(t)`` if the mask depends on the round's
            level. ``level`` is J if the round has an MLMC correction, 0 if not, and None if the
            method has no levels. ``mask`` is then the mask of the highest level.
        within: ``within(t, k, n)`` replaces ``mask`` if the clock counts computations: the mask of
            round t at its computation k of 0, ..., n - 1.
        follow: The rules of a strategy that follows the run; ``mask`` then applies until the
            strategy has learnt something.
        kept: True if the run stores each change of the Byzantine set, because the seed does not
            determine the set.
    """

    mask: Callable[[int], Tensor]
    always: int | None = None
    in_round: Callable[[int, int | None], Tensor] | None = None
    within: Callable[[int, int, int], Tensor] | None = None
    follow: Follow | None = None
    kept: bool = False


@dataclass(frozen=True)
class Mask:
    """A function of a tick that returns masks as tensors.

    Attributes:
        array: The same function with NumPy's arrays: masks of stored runs are read without torch.
    """

    array: Callable[..., Array]

    def __call__(self, *place: int | None) -> Tensor:
        """Return a mask [m] that the caller may change."""
        return torch.from_numpy(self.array(*place).copy())


REGISTRY: Registry[Callable[..., Switching]] = Registry("switching strategy", __package__)


def uniform_subset(setting: SwitchingSetting, counter: int) -> Tensor:
    """Draw ``byzantine`` of the workers uniformly, as a mask [m]; a pure function of the seed and
    ``counter``.

    Raises:
        SpecError: Unless 0 <= byzantine <= workers.
    """
    return torch.from_numpy(subset(setting, counter))


def subset(setting: SwitchingSetting, counter: int) -> Array:
    """Return the mask of ``uniform_subset`` as an array."""
    check_count(setting)
    generator = Streams(setting.seed).generator("identities", counter)
    mask = np.zeros(setting.workers, dtype=bool)
    mask[generator.choice(setting.workers, setting.byzantine, replace=False)] = True
    return mask


def check_count(setting: SwitchingSetting) -> None:
    """Raise SpecError unless 0 <= byzantine <= workers."""
    if not 0 <= setting.byzantine <= setting.workers:
        raise SpecError(
            f"byzantine={setting.byzantine} of workers={setting.workers} is not legal. Try: a "
            "number of workers"
        )
