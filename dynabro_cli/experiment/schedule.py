"""Byzantine workers and answering workers of a stored run, computed again from its seed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dynabro_cli.components.methods._api import NOISE_COMPUTATIONS, Method, MethodSetting
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.components.switching._api import Mask, SwitchingSetting
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.streams import Streams

if TYPE_CHECKING:
    from torch import Tensor


def identities(run: Mapping[str, Any], ticks: int) -> np.ndarray[Any, Any]:
    """Return the masks of the Byzantine workers at the first ticks of a run: bool, [ticks, m].

    Args:
        run: Columns of the table ``runs``: ``method``, ``switching``, ``clock``, ``workers``,
            ``byzantine``, ``budget`` and ``seed``.
        ticks: The number of ticks: rounds, or gradient computations if the run's clock counts
            these.

    Raises:
        SpecError: This version does not have a component, or the seed does not determine the
            schedule. The schedule is then in the table ``identities``.
    """
    workers, byzantine = int(run["workers"]), int(run["byzantine"])
    method = (
        REGISTRIES["methods"].parse(run["method"]).build(MethodSetting(workers, int(run["budget"])))
    )
    setting = SwitchingSetting(workers, byzantine, int(run["seed"]), method.beta, method.jmax)
    strategy = REGISTRIES["switching"].parse(run["switching"]).build(setting)
    if strategy.kept:
        raise SpecError(
            f"the schedule of switching {run['switching']!r} cannot be drawn again; it is "
            "stored with the run"
        )
    mask, within, in_round = strategy.mask, strategy.within, strategy.in_round
    places = itertools.islice(_places(method, run), ticks)
    if within is not None and run["clock"] != "round":
        return _stacked([array(within, *place) for place in places], workers)
    if in_round is not None:
        levels = [cost.bit_length() - 1 for _, _, cost in places]
        return _stacked(
            [array(in_round, tick, level) for tick, level in enumerate(levels)], workers
        )
    return _stacked([array(mask, tick) for tick in range(ticks)], workers)


def array(mask: Callable[..., Tensor], *place: int | None) -> np.ndarray[Any, Any]:
    """Return a mask as an array; torch is loaded only for a strategy without ``Mask``."""
    return mask.array(*place) if isinstance(mask, Mask) else mask(*place).numpy()


def _stacked(masks: list[np.ndarray[Any, Any]], workers: int) -> np.ndarray[Any, Any]:
    return np.stack(masks) if masks else np.zeros((0, workers), dtype=bool)


def _places(method: Method, run: Mapping[str, Any]) -> Iterator[tuple[int, int, int]]:
    """Return the place of each tick of a run: its round, the computation within it, and the round's
    number of computations.

    A round of 2^J computations has the level J, and a round of one computation has no correction.
    """
    streams, by_round = Streams(int(run["seed"])), run["clock"] == "round"
    if method.wants_noise and not by_round:
        yield from [(0, 0, 1)] * NOISE_COMPUTATIONS
    for number in itertools.count():
        cost = method.plan(streams.moved("level", number)).prefixes[-1]
        yield from ((number, computation, cost) for computation in range(1 if by_round else cost))
