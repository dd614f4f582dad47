"""Byz-VR-MARINA-PP."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.methods._api import (
    REGISTRY,
    Computing,
    Gathered,
    GatheringMethod,
    MethodSetting,
    Plan,
    State,
)
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.lazy import np, torch
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.vectors.lengths import clipped, length, lengths

if TYPE_CHECKING:
    from torch import Tensor

FRESH = 10
"""Mini-batches of a large gradient if the task has no training samples."""
DIFFERENCE = 2
"""Gradient computations of a difference: the same mini-batch at two points."""


@dataclass(frozen=True)
class Parameters:
    batches: int | None = parameter(
        None,
        minimum=1,
        auto=lambda _, setting: _large(setting),
        help="mini-batches of a full gradient; auto: all training samples, or 10 if there are "
        "none, or their number is unknown",
    )
    p: float | None = parameter(
        None,
        above=0,
        maximum=1,
        auto=lambda block, setting: 1 / (block.batches or _large(setting)),
        help="probability of a round of full gradients; auto: 1/batches",
    )
    C: int | None = parameter(
        None,
        minimum=1,
        auto=lambda _, setting: -(-setting.workers // 5),
        help="workers that take part in all other rounds; auto: a fifth of them, rounded up",
    )
    alpha: float = parameter(
        1.0, above=0, help="differences are clipped at alpha |x_t - x_{t-1}|; 2 L in the theory"
    )


def _large(setting: MethodSetting) -> int:
    """Return the usual number of mini-batches of a full gradient."""
    return setting.batches or FRESH


@REGISTRY.register(
    "marina-pp",
    Parameters,
    reference="Malinovsky, Richtarik, Horvath & Gorbunov, NeurIPS 2024, Algorithm 1 and Appendix G",
)
def marina_pp(parameters: Parameters, setting: MethodSetting) -> GatheringMethod:
    """Byz-VR-MARINA-PP: full gradients now and then; in all other rounds clipped differences from a
    few workers.

    With probability p all workers send their full gradient, and g_t = A(grad f_1(x_t), ..., grad
    f_m(x_t)). Otherwise C workers, drawn uniformly, send the difference of their gradients at x_t
    and x_{t-1} on one mini-batch, and g_t = g_{t-1} + A(clip(d_{t,i})), where the server clips
    differences longer than alpha |x_t - x_{t-1}|. So even a majority of Byzantine workers among the
    C cannot move g far. A is the aggregation chain; in the latter rounds it is built for C workers,
    floor(C f/m) of them Byzantine.

    A full gradient is the mean over ``batches`` mini-batches. If these make up all training
    samples, each sample is used once and without random flips (Algorithm 1). Otherwise the
    mini-batches are fresh, as they always are if the objective is an expectation (Appendix G,
    Algorithm 4). A round costs ``batches`` computations, or 2; the cost is counted for all workers,
    although only C compute.

    The state is ``x`` (x_t) and ``g`` (g_t). An attack acts on a worker's vector, full gradient or
    difference, with the Byzantine set of the round's last computation. The attack also knows the
    vectors of the workers that do not take part.

    Raises SpecError if C is larger than the number of workers.

    Differs from the paper: the first round has full gradients, in place of a given g_0. Nothing is
    compressed, and all workers take part in rounds of full gradients. L is unknown, so alpha is 1
    unless given.
    """
    m, batches = setting.workers, parameters.batches or _large(setting)
    p = 1 / batches if parameters.p is None else parameters.p
    chosen = parameters.C or -(-m // 5)
    if chosen > m:
        raise SpecError(
            f"method 'marina-pp': C={chosen} is more than the {m} workers. Try: C={m}, or less"
        )

    def plan(generator: np.random.Generator) -> Plan:
        if generator.random() < p:
            return Plan(None, (batches,))
        cohort = generator.choice(m, chosen, replace=False)
        return Plan(None, (DIFFERENCE,), tuple(sorted(cohort.tolist())))

    def gather(workers: Computing, drawn: Plan, state: State) -> Gathered:
        here = workers.x.clone()
        if drawn.cohort is None:
            new = {"x": here, "base": torch.zeros_like(here), "limit": here.new_tensor(math.inf)}
            return Gathered(workers.large(batches), new, False)
        before = workers.gradients(0, state["x"])
        limit = (parameters.alpha * length(here - state["x"])).to(here.dtype)
        return Gathered(
            workers.gradients(0) - before, {"x": here, "base": state["g"], "limit": limit}, False
        )

    def receive(messages: Tensor, state: State) -> Tensor:
        return clipped(messages, lengths(messages), state["limit"])

    def settle(aggregate: Tensor, state: State) -> tuple[Tensor, State]:
        direction = state["base"] + aggregate
        return direction, {"x": state["x"], "g": direction}

    return GatheringMethod(
        plan=plan,
        first=Plan(None, (batches,)),
        gather=gather,
        receive=receive,
        settle=settle,
        cohort=chosen,
        asks=False,
    )
