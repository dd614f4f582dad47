"""Round-robin switching."""

from __future__ import annotations

from dataclasses import dataclass

from dynabro_cli.components.switching._api import (
    REGISTRY,
    Array,
    Mask,
    Switching,
    SwitchingSetting,
    check_count,
)
from dynabro_cli.core.lazy import np
from dynabro_cli.core.registration import parameter


@dataclass(frozen=True)
class Parameters:
    K: int = parameter(minimum=1, help="ticks of a turn")


@REGISTRY.register(
    "round-robin",
    Parameters,
    reference="dynabro's own; compare Periodic(K) of DynaBRO (ICML 2024), Section 6",
)
def round_robin(parameters: Parameters, setting: SwitchingSetting) -> Switching:
    """Round-robin: sets of f consecutive workers take turns of K ticks, f the declared number of
    Byzantine workers.

    In turn n = floor(t/K) the workers n f + 1, ..., n f + f are Byzantine, counted cyclically:
    worker 1 follows worker m. Every worker is Byzantine in f of any m turns, and nothing is random.
    Unlike with periodic, no worker stays Byzantine from one turn to the next if 2f <= m.
    """
    m, f = setting.workers, setting.byzantine
    check_count(setting)

    def mask(t: int) -> Array:
        first = t // parameters.K * f
        return (np.arange(m) - first) % m < f

    return Switching(Mask(mask), f)
