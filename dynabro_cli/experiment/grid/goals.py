"""Numbers of a run that a search can optimise."""

from __future__ import annotations

import math
from typing import NamedTuple


class Goal(NamedTuple):
    """A number of a run to optimise.

    Attributes:
        title: Its name in words.
        evaluated: The column of ``evaluations`` with the number during the run.
        final: The column of ``runs`` with the number at the end; None if only the last evaluation
            has it.
        worst: The number of a run that diverged, or whose number is not finite: the worst for who
            learns.
    """

    title: str
    evaluated: str
    final: str | None
    worst: float


GOALS = {
    "final_accuracy": Goal("final test accuracy", "test_accuracy", "final_accuracy", 0.0),
    "final_loss": Goal("final test loss", "test_loss", "final_loss", math.inf),
    "final_gap": Goal("final gap f(x) - f*", "gap", "final_gap", math.inf),
    "validation_accuracy": Goal("final validation accuracy", "validation_accuracy", None, 0.0),
    "validation_loss": Goal("final validation loss", "validation_loss", None, math.inf),
}
