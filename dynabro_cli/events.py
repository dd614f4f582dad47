"""What a simulation tells the world while it runs: plain data, without torch, fit for a pipe or a network.

``simulate`` yields ``Started``, then ``RoundsDone`` and ``Evaluated`` in turn, and last ``Finished`` or ``Diverged``. Where
it is asked for checkpoints, ``Checkpointed`` comes between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Round:
    """One server update. ``budget`` is what each worker has spent at its end, in gradient computations.

    ``acceptance`` is the acceptance ratio of the Byzantine messages, in the rounds in which it is measured.
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
    """From ``tick`` on these workers are Byzantine, by numbers from 1 to m, until the next of its kind."""

    tick: int
    byzantine: tuple[int, ...]


@dataclass(frozen=True)
class Totals:
    """Counts over a run so far. ``switches`` counts the clock ticks at which the Byzantine set changed.

    ``squared_gradients`` is the sum of |grad f(x_t)|^2 over the rounds, of an objective; None where f is not known.
    """

    rounds: int
    budget_spent: int
    switches: int
    dynamic_rounds: int
    squared_gradients: float | None = None


@dataclass(frozen=True)
class Started:
    """The run is set up: ``record`` holds the columns of its row in ``runs`` that are known from the start.

    ``resumed`` are the totals of the checkpoint that it goes on from; None where it begins at the beginning. ``labels`` has
    (worker, label, count) for every label of which a worker has training samples; empty where every worker has all samples.
    """

    run_key: str
    record: dict[str, Any]
    resumed: Totals | None = None
    labels: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True)
class RoundsDone:
    """Rounds that have been completed since the last event of this kind, in order; ``totals`` count from the start.

    ``identities`` has the changes of the Byzantine set in them, the first set among them, where the strategy is one whose
    schedule is not told by the seed.
    """

    rounds: tuple[Round, ...]
    totals: Totals
    identities: tuple[Identity, ...] = ()


@dataclass(frozen=True)
class Evaluated:
    """The model x_t after ``round`` rounds. ``samples`` is budget x batch size x workers, the paper's x-axis.

    ``x`` is the model itself, to nine digits, where it has few enough numbers to draw its path; else None. The validation
    numbers are those on samples that are held out of training; None where none are.
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


@dataclass(frozen=True)
class Checkpointed:
    """All that the run needs to go on from here, as ``simulation.checkpoint`` writes it; ``totals`` count from the start."""

    totals: Totals
    data: bytes


@dataclass(frozen=True)
class Diverged:
    """NaN or Inf appeared in the model or its update at ``round``: a result, and the end of the run.

    The numbers are those of the model as it stands; argmax over NaN is class 0.
    """

    round: int
    accuracy: float | None
    loss: float | None
    gap: float | None
    totals: Totals


@dataclass(frozen=True)
class Finished:
    """The budget is spent. The numbers are those of the last evaluation: on the test set, or f(x) - f*."""

    accuracy: float | None
    loss: float | None
    gap: float | None
    totals: Totals


Event = Started | RoundsDone | Evaluated | Checkpointed | Diverged | Finished
