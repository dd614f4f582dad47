"""Centered clipping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.aggregators._api import (
    REGISTRY,
    Aggregator,
    AggregatorSetting,
    State,
    tolerated,
)
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.vectors.lengths import lengths, shortening
from dynabro_cli.core.vectors.means import weighted

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    tau: float = parameter(
        above=0, help="clipping radius: the largest pull of a message, in the messages' own units"
    )
    L: int = parameter(1, minimum=1, help="clipping iterations per call")


@REGISTRY.register(
    "centered-clipping",
    Parameters,
    reference="Karimireddy, He & Jaggi, ICML 2021 (Algorithm 2, AggCC)",
)
def centered_clipping(parameters: Parameters, setting: AggregatorSetting) -> Aggregator:
    """Centered clipping: a step from the last aggregate towards the messages, each pulling no
    further than tau.

    L times v <- v + (1/m) sum_i (g_i - v) min(1, tau/|g_i - v|), from the v that the last call
    returned (0 at first). v is the rule's state, and goes into checkpoints. A call that returns a
    NaN or an Inf leaves v unchanged.

    No kappa: the proved bound needs a tau chosen for the noise, and a v that is already near. tau
    has no default because it determines the robustness; the right value depends on the task and the
    scale of momentum. Costs O(L m d). Raises SpecError if 2f >= m with f the declared number of
    Byzantine workers, which the rule itself does not use.

    Differs from the paper: v is carried from call to call. A round of a multi-level method
    (``dynabro``) makes up to three calls, one for each of the levels 0, J-1 and J.
    """
    m = setting.workers
    tolerated("centered-clipping", None, setting)

    def aggregate(messages: Tensor, state: State, _: int | Tensor) -> tuple[Tensor, State]:
        v = start = state["v"] if "v" in state else torch.zeros_like(messages[0])
        for _iteration in range(parameters.L):
            pulls = messages - v
            v = v + weighted(pulls, shortening(lengths(pulls), parameters.tau), m)
        return v, {"v": torch.where(v.isfinite().all(), v, start)}

    return Aggregator(aggregate, None)
