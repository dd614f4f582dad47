"""Mimic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.attacks._api import (
    REGISTRY,
    Attack,
    AttackSetting,
    State,
    honest_size,
    honest_weights,
    replace,
    scaled_difference,
    stay,
)
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.vectors.means import weighted

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    target: str = parameter(
        "fixed",
        choices=("fixed", "learned"),
        help="worker to copy: the given one, or the one farthest out in a learned direction",
    )
    worker: int = parameter(
        0,
        minimum=0,
        help="number of the worker to copy, from 0; if it is Byzantine, the next honest one",
    )
    warmup: int = parameter(50, minimum=1, help="rounds of learning, if the target is learned")


@REGISTRY.register(
    "mimic",
    Parameters,
    reference="Karimireddy, He & Jaggi, ICLR 2022, Section 3.2 and its appendix",
)
def mimic(parameters: Parameters, setting: AttackSetting) -> Attack:
    """Mimic: all Byzantine workers copy one honest worker, which is then over-represented.

    g~_i = g_j. With target=fixed, j is the first honest worker from worker= on, cyclically. With
    target=learned, j = argmax |s_j| over honest j. s_j is the mean of z.g_j over the warm-up rounds
    in which j was honest. z is the direction of largest variance between workers, learned by Oja's
    rule over these rounds t = 0, 1, ...: mu = (t mu + g_bar)/(t + 1), z ~ (t z + u/|u|)/(t + 1), u
    = sum_j (g_j - mu)(g_j - mu)'z over honest j, |z| = 1. In the first round j is as with
    target=fixed. If all workers are Byzantine, all count as honest. If all workers have the same
    data (--data iid), no worker stands out for long; only the weight of the copies remains.

    The state of a learned target is ``mean`` [d], ``direction`` [d], ``score`` [m], ``seen`` [m]
    and ``rounds``.

    Differs from the paper: identities change, so j is chosen among the workers that are honest in
    the round. s_j uses each round's z instead of the last z, which would require keeping all
    vectors. u is normalised, as in the authors' code. z starts as the deviation of the worker
    farthest from the mean, not at random.

    Raises SpecError if worker= is not the number of a worker.
    """
    m = setting.workers
    if parameters.worker >= m:
        raise SpecError(
            f"attack 'mimic': worker={parameters.worker} is not one of workers={m}. Try: "
            f"worker=0 to {m - 1}"
        )

    def messages(vectors: Tensor, byzantine: Tensor, state: State) -> Tensor:
        weights, _ = honest_weights(byzantine, vectors)
        if "score" in state:
            merit = (state["score"] / state["seen"].clamp_min(1)).abs()
        else:
            merit = -((torch.arange(m, device=vectors.device) - parameters.worker) % m).to(
                vectors.dtype
            )
        chosen = torch.where(weights > 0, merit, -torch.inf).argmax()
        return replace(vectors, byzantine, vectors.index_select(0, chosen[None])[0])

    def observe(vectors: Tensor, byzantine: Tensor, state: State) -> State:
        weights, _ = honest_weights(byzantine, vectors)
        now, size = weighted(vectors, weights), honest_size(vectors, weights)  # [d]
        t = state["rounds"].to(vectors) if state else vectors.new_zeros(())
        mean = (t * state["mean"] + now) / (t + 1) if state else now
        deviations = scaled_difference(vectors, mean, size)  # [m, d]
        if state:
            before = state["direction"]
        else:
            far = torch.where(weights > 0, deviations.square().sum(1), 0)
            before = _unit(deviations.index_select(0, far.argmax()[None])[0])
        step = (weights * (deviations @ before)) @ deviations
        direction = _unit((t * before + _unit(step)) / (t + 1))
        learned = {
            "mean": mean,
            "direction": direction,
            "score": weights * (vectors @ direction) + (state["score"] if state else 0),
            "seen": weights + (state["seen"] if state else 0),
        }
        if state:
            finite = torch.stack([value.isfinite().all() for value in learned.values()]).all()
            learns = finite & (t < parameters.warmup)  # a round of NaN must not spoil the rest
            learned = {
                name: torch.where(learns, value, state[name]) for name, value in learned.items()
            }
        return learned | {"rounds": (t + 1).to(torch.float64)}

    learns = observe if parameters.target == "learned" else None
    return Attack({}, messages, stay, reads_own=False, observe=learns, by_number=True)


def _unit(vector: Tensor) -> Tensor:
    """Return ``vector`` scaled to length 1; 0 if it is 0."""
    length: Tensor = vector.norm()
    return vector / length.clamp_min(torch.finfo(vector.dtype).tiny)
