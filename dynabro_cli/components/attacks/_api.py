"""The contract of attacks, and their registry.

An attack is a factory ``(parameters, AttackSetting) -> Attack``. It never modifies its input and is
defined for any number of Byzantine workers from 0 to m. If all m are Byzantine, an omniscient
attack uses the workers' own vectors as the honest ones: the vectors that these workers, each with
its own data, would have sent if honest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import Registry
from dynabro_cli.core.vectors.finite import host_may_look
from dynabro_cli.core.vectors.means import held, weighted

if TYPE_CHECKING:
    from torch import Tensor

State: TypeAlias = "dict[str, Tensor]"
COMPUTATION = "computation"
BEFORE_MEMORY = ("gradient", COMPUTATION)
"""The values of ``attack_entry`` with which an attack acts before the worker's momentum."""
ON_VECTORS = ("gradient", COMPUTATION, "message", "state")
ON_DATA = "data"


@dataclass(frozen=True)
class AttackSetting:
    """Setting of an attack.

    Attributes:
        workers: The number m of workers.
        beta: The momentum parameter of the method, if it has one.
        gain: The factor of a gradient in the first round's momentum, if it is not 1 - beta.
        always: The number of Byzantine workers, if it is known beforehand and constant.
        seed: The run's seed; an attack that draws uses its stream ``attack``, at a counter kept in
            its state.
    """

    workers: int
    beta: float | None = None
    always: int | None = None
    seed: int = 0
    gain: float | None = None


class Defence(NamedTuple):
    """Questions that an attack can ask about the defence, at the point where the attack enters.

    Attributes:
        honest: The mean [d] of the honest workers' messages.
        aggregate: Maps vectors [m, d], which replace the workers' own, to the aggregate [d] that
            the server would make of them now. It uses the current memory of the workers and state
            of the rule, and changes neither.
    """

    honest: Tensor
    aggregate: Callable[[Tensor], Tensor]


class Attack(NamedTuple):
    """An attack in its setting.

    Attributes:
        initial: The state before the first round; ``Late`` if it has tensors, so that building an
            attack loads no torch.
        messages: Maps the workers' own vectors [m, d], the Byzantine mask [m] and the state (and
            the ``Defence``, for attacks that see it) to the attacked vectors [m, d]; the rows of
            honest workers are unchanged. Called for every MLMC level of a round.
        advance: Maps the mask and the state to the next state; called once a round (or gradient
            computation).
        reads_own: True if a Byzantine worker's own vector has any influence while another worker is
            honest. If False, Byzantine workers' gradients are not computed, and their rows of the
            vectors are arbitrary.
        finite: True if finite inputs give finite messages.
        observe: Maps the workers' own vectors, the mask and the state to the next state; called
            once a round, with the vectors of its longest level (or once a gradient computation),
            before ``advance``. None if nothing is learned.
        follow: Maps the round's update g_t [d], which the model's movement shows, and the state to
            the next state; called once a round, after ``advance``. None if the attack does not
            follow the model.
        sees_defence: True if ``messages`` takes the ``Defence``. Such an attack is not compiled,
            but the defence is.
        labels: Maps the labels [m, n] of the workers' mini-batches, the mask [m] and the number of
            classes to the labels that gradients are computed with; the rows of honest workers are
            unchanged. None if data are not changed.
        entries: The legal values of ``attack_entry``, the usual one first.
        by_number: True if the attack identifies workers by their numbers, for example with a row of
            state for each worker. All workers must then answer in every round; otherwise a row
            would belong to another worker in each round.
        of_gradients: True if ``messages`` takes the workers' gradients, whatever the entry is. Its
            result then replaces the Byzantine workers' messages.
        acts: False if Byzantine workers follow the protocol.
    """

    initial: Mapping[str, Tensor]
    messages: Callable[..., Tensor]
    advance: Callable[[Tensor, State], State]
    reads_own: bool = True
    finite: bool = True
    observe: Callable[[Tensor, Tensor, State], State] | None = None
    sees_defence: bool = False
    labels: Callable[[Tensor, Tensor, int], Tensor] | None = None
    entries: tuple[str, ...] = ON_VECTORS
    by_number: bool = False
    of_gradients: bool = False
    follow: Callable[[Tensor, State], State] | None = None
    acts: bool = True


REGISTRY: Registry[Callable[..., Attack]] = Registry("attack", __package__)


def stay(_: Tensor, state: State) -> State:
    """``advance`` of an attack whose state does not change by itself."""
    return state


def memoryless(
    messages: Callable[[Tensor, Tensor], Tensor], *, reads_own: bool = True, finite: bool = True
) -> Attack:
    """Wrap an attack that uses the vectors of this call only."""
    return Attack(
        {}, lambda vectors, byzantine, _state: messages(vectors, byzantine), stay, reads_own, finite
    )


def replace(messages: Tensor, byzantine: Tensor, vectors: Tensor | float) -> Tensor:
    """Put ``vectors`` ([d], [m, d], or one number for all) into the rows of the Byzantine
    workers.
    """
    if (
        isinstance(vectors, float)
        or not host_may_look(messages)
        or vectors.dtype != messages.dtype
        or torch.is_grad_enabled()
    ):
        return torch.where(byzantine[:, None], vectors, messages)
    replaced = (
        messages.clone()
    )  # a CPU copies whole rows in less time than it chooses number by number
    replaced[byzantine] = vectors[byzantine] if vectors.ndim == 2 else vectors
    return replaced


def honest_weights(byzantine: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights [m], 1 for each worker that counts as honest (all workers if all are
    Byzantine), and their sum.
    """
    weights = (~byzantine | byzantine.all()).to(like.dtype)
    return weights, weights.sum()


def honest_mean(own: Tensor, byzantine: Tensor) -> Tensor:
    """Return the mean [d] of the honest workers' vectors; of all own vectors if every worker is
    Byzantine.
    """
    return weighted(own, honest_weights(byzantine, own)[0])


def honest_spread(own: Tensor, byzantine: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean [d] and element-wise standard deviation [d] of the honest workers' vectors (ddof
    = 1; 0 for one vector).
    """
    weights, count = honest_weights(byzantine, own)
    mean, size = weighted(own, weights), honest_size(own, weights)
    squares = weights @ scaled_difference(own, mean, size).square_()
    return mean, (squares / (count - 1).clamp_min(1)).sqrt() * size


def honest_size(vectors: Tensor, weights: Tensor) -> Tensor:
    """Return a power of two near the largest number in the vectors of positive weight, to divide by
    before squaring.
    """
    largest = torch.where(
        weights > 0, torch.linalg.vector_norm(vectors, float("inf"), dim=1), 0
    ).amax()
    exponent = torch.frexp(largest.double().nan_to_num()).exponent
    # Within the limits, the inverse is a normal number as well. A compiled function would compute
    # the power of two again for every few entries, unless it is held.
    return held(torch.exp2(exponent.double().clamp(-100, 100)).to(vectors.dtype))


def scaled_difference(vectors: Tensor, centre: Tensor, size: Tensor) -> Tensor:
    """Return (own - centre)/size for vectors [m, d] and a centre [d]; finite for finite input, as
    are its squares.
    """
    return (vectors / size).sub_(centre / size)
