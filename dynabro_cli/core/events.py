"""Events of a simulation: plain data, without torch, for a pipe or a network.

``simulate`` yields ``Started``, then ``RoundsDone`` and ``Evaluated`` in turn, and finally
``Finished`` or ``Diverged``. On request, ``Checkpointed`` and ``Weights`` come in between.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

SaveAt = Literal["never", "end", "evaluations"]
"""Moments at which a run yields ``Weights``: never, its end, or every evaluation."""


@dataclass(frozen=True)
class Round:
    """One server update. ``budget`` is the number of gradient computations per worker, up to and
    including this round.

    ``acceptance`` is the acceptance ratio of the Byzantine messages, if it is measured in the
    round.
    """

    round: int
    budget: int
    level: int | None
    cost: int
    byzantine: int
    switched: bool
    dynamic: bool
    accepted: bool | None
    learning_rate: float
    gradient_norm: float
    aggregation_error: float | None
    acceptance: float | None = None


@dataclass(frozen=True)
class Identity:
    """Byzantine workers from ``tick`` on, by numbers from 1 to m, until the next event of this
    kind.
    """

    tick: int
    byzantine: tuple[int, ...]


@dataclass(frozen=True)
class Totals:
    """Counts over a run so far. ``switches`` counts the clock ticks at which the Byzantine set
    changed.

    ``squared_gradients`` is the sum of |grad f(x_t)|^2 over the rounds of an objective; None if f
    is not known.
    """

    rounds: int
    budget_spent: int
    switches: int
    dynamic_rounds: int
    squared_gradients: float | None = None


@dataclass(frozen=True)
class Started:
    """The run is set up: ``record`` has its values in ``runs`` and ``environments`` that are known
    from the start.

    ``resumed`` are the totals of the checkpoint from which the run resumes; None if it starts from
    the beginning. ``labels`` has (worker, label, count) for every label of a worker's training
    samples; empty if every worker has all samples. ``unused`` is the reason why a given checkpoint
    is not used; None if it is used, or no checkpoint was given. ``notes`` are lines about the data
    and the way of computing that the user should see once.
    """

    run_key: str
    record: dict[str, Any]
    resumed: Totals | None = None
    labels: tuple[tuple[int, int, int], ...] = ()
    unused: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class RoundsDone:
    """Rounds completed since the last event of this kind, in order; ``totals`` count from the
    start.

    ``identities`` has the changes of the Byzantine set in these rounds, including the first set, if
    the seed does not determine the strategy's schedule.
    """

    rounds: tuple[Round, ...]
    totals: Totals
    identities: tuple[Identity, ...] = ()


@dataclass(frozen=True)
class Evaluated:
    """The model x_t after ``round`` rounds. ``samples`` is budget x batch size x workers, the
    paper's x-axis.

    ``x`` is the model, with nine digits, if it has few enough numbers to draw its path; else None.
    The validation numbers are measured on held-out samples; None without held-out samples.
    ``metrics`` has numbers of plugins by name.
    """

    round: int
    budget: int
    samples: int
    test_accuracy: float | None
    test_loss: float | None
    train_loss: float | None
    gap: float | None
    x: tuple[float, ...] | None = None
    validation_accuracy: float | None = None
    validation_loss: float | None = None
    metrics: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Checkpointed:
    """Everything that the run needs to resume, written by ``simulation.checkpoint``; ``totals``
    count from the start.
    """

    totals: Totals
    data: bytes


@dataclass(frozen=True)
class Weights:
    """The weights of the model after ``round`` rounds, on request: ``data`` is a whole safetensors
    file.

    ``final`` is True for the model with which the run ends; this event comes directly before
    ``Finished`` or ``Diverged``.
    """

    run_key: str
    round: int
    final: bool
    data: bytes


@dataclass(frozen=True)
class Diverged:
    """NaN or Inf appeared in the model or its update at ``round``: a result, and the end of the
    run.

    The numbers are of the current model; argmax over NaN is class 0. For ``how`` see ``Finished``.
    """

    round: int
    accuracy: float | None
    loss: float | None
    gap: float | None
    totals: Totals
    how: dict[str, object] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Finished:
    """The budget is spent. The numbers are from the last evaluation: on the test set, or f(x) - f*.

    ``how`` has the entries of the record's ``versions`` that have changed since ``Started``, such
    as the CUDA graphs in use.
    """

    accuracy: float | None
    loss: float | None
    gap: float | None
    totals: Totals
    how: dict[str, object] = field(default_factory=dict, repr=False)


Event = Started | RoundsDone | Evaluated | Checkpointed | Weights | Diverged | Finished
