"""Numbers of stored runs that plots and comparisons name, and where each of them is stored."""

from __future__ import annotations

from typing import NamedTuple

METRIC_PREFIX = "metric:"
"""Beginning of the columns of numbers that functions of plugins measure."""


class Metric(NamedTuple):
    """A metric: its column in ``evaluations``, the column of a run's single number, and its name on
    an axis.

    For a column of ``recovery``, ``along`` is empty, and a run has at most one number.
    """

    along: str
    final: str
    label: str

    @property
    def title(self) -> str:
        """The name of the single number."""
        return f"final {self.label}" if self.along else self.label

    @property
    def higher(self) -> bool:
        """True if more is better, as for accuracies and for numbers of plugins."""
        return self.final in ("final_accuracy", "worst_window") or self.final.startswith(
            METRIC_PREFIX
        )


METRICS = {
    "accuracy": Metric("test_accuracy", "final_accuracy", "test accuracy"),
    "loss": Metric("test_loss", "final_loss", "test loss"),
    "gap": Metric("gap", "final_gap", "f(x) - f*"),
    "dip": Metric("", "dip", "accuracy lost after a switch"),
    "largest_dip": Metric("", "largest_dip", "largest loss of accuracy after a switch"),
    "recovery_rounds": Metric("", "recovery_rounds", "rounds to recover from a switch"),
    "recovery_budget": Metric("", "recovery_budget", "gradient computations to recover"),
    "worst_window": Metric("", "worst_window", "accuracy in the worst window"),
    "acceptance": Metric("", "acceptance", "acceptance ratio of Byzantine messages"),
    "aggregation_error": Metric("", "aggregation_error", "aggregation error"),
}
