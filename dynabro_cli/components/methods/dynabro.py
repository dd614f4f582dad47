"""DynaBRO, the paper's method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.methods._api import REGISTRY, MeansMethod, Measured, MethodSetting, Plan
from dynabro_cli.components.methods._levels import expected_cost, planned, universal_coefficient
from dynabro_cli.components.methods._spread import accepts, clipped, spread_of
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.lazy import np, torch
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.vectors.lengths import length

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["expected_cost", "planned", "universal_coefficient"]

FILTERS = ("none", "option1", "option2", "adaptive")


@dataclass(frozen=True)
class Parameters:
    jmax: int | None = parameter(
        7,
        minimum=0,
        maximum=20,
        auto=lambda _, setting: planned(setting.budget, None)[1],
        help="largest level with a correction; auto: the largest j with 2^j <= T(j), the "
        "expected number of rounds at jmax=j",
    )
    filter: str = parameter(
        "none",
        choices=FILTERS,
        help="fail-safe filter: none, for any robust rule (option1), for MFM (option2), or "
        "adaptive",
    )
    noise_bound: float | None = parameter(
        None,
        above=0,
        help="V, the largest noise of a gradient; auto: measured at the start, with 10 gradient "
        "computations of each worker",
    )
    tau: float = parameter(2.0, above=0, later=True, help="factor of the limit of filter=adaptive")
    clip: float | None = parameter(
        None,
        above=0,
        later=True,
        help="longest correction, in units of the round's spread rho; auto: any length",
    )


@REGISTRY.register(
    "dynabro", Parameters, reference="DynaBRO (ICML 2024), Algorithms 1 and 2, equation (2)"
)
def dynabro(parameters: Parameters, setting: MethodSetting) -> MeansMethod:
    """DynaBRO: a multi-level Monte Carlo (MLMC) gradient, made of robust aggregates within one
    round.

    J ~ Geom(1/2); with a_j the aggregate of the workers' means over their first 2^j mini-batches,
    g_t = a_0 + 2^J (a_J - a_{J-1}) if J <= jmax, else a_0. A round of level J <= jmax costs 2^J
    mini-batches per worker, any other round 1. Levels are nested prefixes, so nothing is computed
    twice.

    filter=none is Algorithm 1, which the paper's figures use. filter=option1 and option2 are
    Algorithm 2: the correction counts only if |a_J - a_{J-1}| <= (1 + sqrt 2) c_E C V/sqrt(2^J), C
    = sqrt(8 log(16 m^2 T)), T the expected number of rounds in the budget. c_E = sqrt(2 kappa +
    1/m) with kappa of the aggregation chain (option1), or 6 sqrt 2 with the aggregator MFM at T^j =
    2 C V/sqrt(2^j) (option2).

    filter=adaptive uses a scale from the same round instead of C V: the correction counts only if
    |a_J - a_{J-1}| <= tau rho/2^(J/2), rho the (floor(m/2) + 1)-th smallest distance |g_i - a_0| of
    the messages of level 0. clip=c shortens a longer correction 2^J (a_J - a_{J-1}) to the length c
    rho, with any filter.

    Raises SpecError if option1 is used with an aggregator without a proved kappa.

    Differs from the paper: filter=adaptive and clip are not the paper's. With a constant rho that
    bounds the noise, adaptive would be the paper's filter with tau rho in place of (1 + sqrt 2) c_E
    C V. But rho is random and Byzantine workers influence it, so the paper's proof does not cover
    it. An honest minority of level-0 messages may be far away, and rho is 0 if more than half of
    the messages agree. A clipped correction has a bias that the theorems do not bound.
    docs/theory.md says what is known.
    """
    rounds, jmax = planned(setting.budget, parameters.jmax)
    m = setting.workers
    filtered = parameters.filter in ("option1", "option2")
    measured = parameters.filter == "adaptive" or parameters.clip is not None

    def plan(generator: np.random.Generator) -> Plan:
        level = int(generator.geometric(0.5))
        return Plan(level, (1, 2 ** (level - 1), 2**level) if level <= jmax else (1,))

    def at(coefficient: float, noise: float | None) -> MeansMethod:
        scale = universal_coefficient(m, rounds) * (math.inf if noise is None else noise)  # C V

        def direct(
            aggregates: Sequence[Tensor], drawn: Plan, rho: Tensor | None = None
        ) -> tuple[Tensor, Tensor | None]:
            if len(aggregates) == 1:
                return aggregates[0], None
            computations, accepted = drawn.prefixes[-1], None
            difference = aggregates[2] - aggregates[1]
            correction = computations * difference
            if filtered:
                limit = (1 + math.sqrt(2)) * coefficient * scale / math.sqrt(computations)
                accepted = length(difference) <= limit
            elif rho is not None and parameters.filter == "adaptive":
                accepted = accepts(difference, computations, parameters.tau, rho)
            if rho is not None and parameters.clip is not None:
                correction = clipped(correction, parameters.clip, rho)
            if accepted is not None:
                correction = torch.where(accepted, correction, 0)
            return aggregates[0] + correction, accepted

        return MeansMethod(
            plan=plan,
            direct=direct,
            threshold=2 * scale if parameters.filter == "option2" else None,
            wants_noise=filtered and parameters.noise_bound is None,
            noise_bound=noise if filtered else None,
            jmax=jmax,
            with_measured=with_measured if filtered else None,
            spread=spread_of if measured else None,
        )

    def with_measured(known: Measured) -> MeansMethod:
        coefficient = 6 * math.sqrt(2)
        if parameters.filter == "option1":
            if known.kappa is None:
                raise SpecError(
                    "method 'dynabro:filter=option1' needs an aggregator with a proved kappa, "
                    "and this one has none. "
                    "Try: --aggregator cwtm (or cwmed, gm, krum), or filter=option2 for mfm"
                )
            coefficient = math.sqrt(2 * known.kappa + 1 / m)
        return at(
            coefficient, known.noise if parameters.noise_bound is None else parameters.noise_bound
        )

    return at(math.inf, parameters.noise_bound)
