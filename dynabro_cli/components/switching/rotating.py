"""The switching strategy of Appendix E."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dynabro_cli.components.switching._api import REGISTRY, Array, Mask, Switching, SwitchingSetting
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.lazy import np
from dynabro_cli.core.registration import parameter


@dataclass(frozen=True)
class Parameters:
    period: int | None = parameter(
        None,
        minimum=1,
        auto=lambda _, setting: None if setting.beta is None else turn_length(setting.beta),
        help="ticks of a turn; auto: floor(1/(3 (1 - beta))) of the method",
    )


@REGISTRY.register("rotating", Parameters, reference="DynaBRO (ICML 2024), Appendix E")
def rotating(parameters: Parameters, setting: SwitchingSetting) -> Switching:
    """Rotating: three groups of workers take turns at being Byzantine.

    Worker i belongs to group floor(3i/m); group g is Byzantine at tick t if floor(t/period) mod 3 =
    g. The period is floor(1/(3 alpha)), alpha = 1 - beta: 3, 33 and 66 ticks for beta = 0.9, 0.99
    and 0.995.

    Raises SpecError if there are fewer than three workers or exactly four, if the declared number
    of Byzantine workers is not the size of the largest group, or if neither the method has a beta
    nor period= is given.
    """
    m = setting.workers
    groups = [3 * worker // m for worker in range(m)]
    largest = max(groups.count(group) for group in set(groups))
    problems = []
    if m < 3:
        problems.append(
            f"switching 'rotating' needs three groups of workers, but workers={m}. Try: 3 "
            "workers or more"
        )
    elif 2 * largest >= m:
        problems.append(
            f"switching 'rotating' makes {largest} of {m} workers Byzantine, not under half. "
            "Try: 3, 5 or more workers"
        )
    elif setting.byzantine != largest:
        problems.append(
            f"switching 'rotating' makes a third of the workers Byzantine, {largest} of {m}, "
            f"but byzantine={setting.byzantine}. Try: byzantine={largest}"
        )
    if parameters.period is None and setting.beta is None:
        problems.append(
            "switching 'rotating' takes its period from the method's beta, and the method has "
            "none. Try: 'rotating:period=...'"
        )
    if problems:
        raise SpecError(problems)
    period = parameters.period or turn_length(setting.beta or 0.0)

    def mask(t: int) -> Array:
        return np.array([group == t // period % 3 for group in groups])

    return Switching(Mask(mask), largest if m % 3 == 0 else None)


def turn_length(beta: float) -> int:
    """Return floor(1/(3 (1 - beta))) rounds, at least one; exact for decimal betas such as 0.9."""
    return max(1, math.floor(1 / (3 * (1 - beta)) + 1e-9))
