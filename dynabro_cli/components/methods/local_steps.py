"""Local steps, as in FedAvg."""

from __future__ import annotations

from dataclasses import dataclass

from dynabro_cli.components.methods._api import (
    REGISTRY,
    Computing,
    Gathered,
    GatheringMethod,
    Measured,
    MethodSetting,
    Plan,
    State,
)
from dynabro_cli.core.registration import parameter

SENDS = ("gradient", "difference")


@dataclass(frozen=True)
class Parameters:
    H: int = parameter(5, minimum=1, help="steps of each worker per round")
    rate: float | None = parameter(
        None,
        above=0,
        auto=lambda _, setting: setting.learning_rate,
        help="learning rate of a worker's own steps; auto: the server's",
    )
    sends: str = parameter(
        "gradient",
        choices=SENDS,
        help="(x_t - x_i)/(rate H), the mean gradient along the way, or x_t - x_i, the model's "
        "difference",
    )


@REGISTRY.register("local-steps", Parameters, reference="McMahan et al., AISTATS 2017 (FedAvg)")
def local_steps(parameters: Parameters, setting: MethodSetting) -> GatheringMethod:
    """Local steps: each worker takes H steps of SGD on its own model, and sends the change.

    x_{t,i,0} = x_t, x_{t,i,h+1} = x_{t,i,h} - rate g_i(x_{t,i,h}); worker i sends (x_t -
    x_{t,i,H})/(rate H), the mean of its gradients (sends=gradient), or x_t - x_{t,i,H}
    (sends=difference). g_t is the messages' aggregate, and the server uses its own learning rate.
    With the server's rate equal to rate H (1 for differences) the method is FedAvg. A round costs H
    computations. With H = 1 the method is SGD.

    An attack on gradients acts on every step's gradients, at the workers' own points, before the
    step. If the clock counts computations, it uses the Byzantine set of that computation. An attack
    on messages acts on the message. A run is slower than a run of SGD with the same number of
    computations: after the first step all workers are at different points, so each worker is
    computed separately. The server applies weight decay, drops of the learning rate and the
    projection onto a domain.
    """
    steps = parameters.H

    def at(rate: float) -> GatheringMethod:
        def gather(workers: Computing, _: Plan, state: State) -> Gathered:
            moved = workers.x.new_zeros(setting.workers, workers.x.numel())
            for step in range(steps):
                gradients = workers.gradients(step, workers.x - moved if step else None)
                moved.add_(workers.attacked(gradients, step), alpha=rate)
            return Gathered(
                moved / (rate * steps) if parameters.sends == "gradient" else moved, state, True
            )

        return GatheringMethod(
            plan=lambda _: Plan(None, (steps,)),
            gather=gather,
            with_measured=with_measured if parameters.rate is None else None,
        )

    def with_measured(known: Measured) -> GatheringMethod:
        return at(1.0 if known.learning_rate is None else known.learning_rate)

    return at(1.0 if parameters.rate is None else parameters.rate)
