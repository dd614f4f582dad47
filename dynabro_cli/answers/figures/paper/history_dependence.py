"""The table ``history-dependence``."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pandas as pd

from dynabro_cli.answers.analysis.columns import TASKS, method_label
from dynabro_cli.answers.analysis.results import Results
from dynabro_cli.answers.figures._api import Drawn, figure
from dynabro_cli.answers.figures._style import narrow
from dynabro_cli.answers.figures._tables import draw_table


@figure("history-dependence", sweep="history-dependence", reference="DynaBRO (ICML 2024), Table 1")
def draw(results: Results) -> Drawn:
    """Cost of a round for a worker, and the number of rounds for which a gradient influences the
    updates, by method.

    Both are measured. The cost is the cost of the stored rounds; for a thinned run, the largest is
    known only if all rounds cost 1. The window is the number of rounds that one gradient of one
    worker influences. It is found by running the method twice, with that gradient changed once
    (``theory.history``). A window longer than the run, or than the measurement, is "at least" its
    length. The window in computations is deterministic if all rounds cost the same. A picture of
    the width of a column has the columns of the paper's table.
    """
    numbers = pd.DataFrame([_measured(results, run) for run in results.runs.to_dict("records")])
    shown = pd.DataFrame(
        {
            "method": numbers["label"],
            "kind": numbers["kind"],
            "computations\na worker": numbers["computations"].map("{:,}".format),
            "cost of a round:\nmean, largest": [
                f"{mean:.2f}, {largest or 'not kept'}"
                for mean, largest in zip(
                    numbers["mean_cost"], numbers["largest_cost"].astype(object), strict=True
                )
            ],
            "window\nin rounds": [
                _at_least(row.window_rounds, row.window_ended) for row in numbers.itertuples()
            ],
            "window in\ncomputations": numbers["window"],
            "window type": numbers["window_type"],
            "accuracy\n(learning rate)": [
                f"{run.final_accuracy:.3f} ({run.learning_rate:g})"
                for run in results.runs.itertuples()
            ],
        }
    )
    drawn = (
        shown[["method", "cost of a round:\nmean, largest", "window\nin rounds", "window type"]]
        if narrow()
        else shown
    )
    first = results.planned.iloc[0]
    title = (
        f"{TASKS.get(first['task'], first['task'])}, {first['switching']}, budget "
        f"{first['budget']:,}, {_seeds(results)}"
    )
    return Drawn(draw_table(drawn, title), numbers.drop(columns="label"), shown)


def _measured(results: Results, run: dict[Hashable, Any]) -> dict[str, Any]:
    stored = results.rounds(run["id"])
    costs, budgets = stored["cost"], stored["budget"]
    # no round costs less than 1, so these cost 1 also between the kept ones
    ones = costs.max() == 1 and budgets.max() - budgets.min() == run["rounds"] - 1
    whole = len(costs) > 0 and (run["rounds_every"] == 1 or ones)  # missing runs are skipped
    mean = float(costs.mean()) if whole else run["budget_spent"] / max(1, run["rounds"])
    largest = int(costs.max()) if whole else None
    rounds, ended, filters = results.window({str(name): value for name, value in run.items()})
    # the first round of some methods is cheaper
    steady = whole and costs.iloc[1:].nunique() <= 1
    return {
        "method": run["method"],
        "label": method_label(run["spec"]["method"]),
        "kind": "filter" if filters else "aggregation",
        "seed": run["seed"],
        "rounds": run["rounds"],
        "computations": run["budget_spent"],
        "mean_cost": mean,
        "largest_cost": largest,
        "window_rounds": rounds,
        "window_ended": ended,
        "window": _computations(rounds, ended, mean, largest, steady),
        "window_type": "deterministic" if steady else "stochastic",
        "final_accuracy": run["final_accuracy"],
    }


def _at_least(count: int, ended: bool) -> str:
    return f"{count:,}" if ended else f"at least {count:,}"


def _computations(rounds: int, ended: bool, mean: float, largest: int | None, steady: bool) -> str:
    """Return a window of a number of rounds in gradient computations; the largest sum over several
    rounds is not known.
    """
    if steady:
        return _at_least(round(rounds * mean), ended)
    text = f"{rounds * mean:.2f} on average" if ended else f"at least {rounds * mean:.0f}"
    return text + (f", {largest} at most" if largest and rounds == 1 else "")


def _seeds(results: Results) -> str:
    seeds = sorted({int(seed) for seed in results.runs["seed"]})
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
