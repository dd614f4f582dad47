"""The figure ``history-methods``: methods that came after the paper."""

from __future__ import annotations

import itertools

import pandas as pd

from dynabro_cli.answers.analysis.cells import final_values
from dynabro_cli.answers.analysis.columns import RULES, method_label, switching_axis, switching_rate
from dynabro_cli.answers.analysis.results import Results, rows_with
from dynabro_cli.answers.figures._api import Drawn, figure
from dynabro_cli.answers.figures._panels import (
    ACCURACY,
    SCATTERED,
    draw_finals,
    legend,
    matrix_of_panels,
    write_title,
)
from dynabro_cli.answers.figures._style import looks

ENTRIES = {"gradient": "gradients are attacked", "state": "memories are attacked"}
"""Words for the two readings of what a worker remembers."""


@figure(
    "history-methods", sweep="history-methods", reference="dynabro's own; the methods name theirs"
)
def draw(results: Results) -> Drawn:
    """Final accuracy on digits against the switching rate K, for methods with and without a memory,
    each at its chosen rate.

    A row of panels per attack and rule, a column per reading of what a worker remembers. Series
    with "half answer" have --participation 0.5; "CTMA" is the meta-rule around the panel's rule.
    """
    results = results.named(_named)
    plan = results.planned
    labels = {name: name for name in plan["series"]}
    series = looks(labels)
    numbers = final_values(results, ("attack_name", "attack_entry", "series", "switching"))
    attacks, entries = (list(dict.fromkeys(plan[name])) for name in ("attack_name", "attack_entry"))
    picture, axes = matrix_of_panels(
        len(attacks), len(entries), height=2.0, rest=0.8, sharex=True, sharey=True
    )
    first = plan.drop_duplicates("switching")
    rates = {
        switching: switching_rate(spec["switching"])
        for switching, spec in zip(first["switching"], first["spec"], strict=True)
    }
    kinds, scattered = itertools.product(attacks, entries), False
    for panel, (attack, entry) in zip(axes.flat, kinds, strict=True):
        shown, runs = (
            rows_with(frame, attack_name=attack, attack_entry=entry)
            for frame in (numbers, results.runs)
        )
        scattered |= draw_finals(panel, shown, runs, rates, series)
        panel.set_title(f"{attack}: {ENTRIES.get(entry, entry)}")
    for panel in axes[:, 0]:
        panel.set_ylabel(f"final {ACCURACY}")
    for panel in axes[-1]:
        panel.set_xlabel(switching_axis(plan["clock"]))
    legend(picture, labels, series)
    what = SCATTERED if scattered else ""
    write_title(picture, results, numbers, "std", "digits, methods that look back", what)
    return Drawn(picture, numbers)


def _named(runs: pd.DataFrame) -> pd.DataFrame:
    """Add the names of panels and series."""
    specs = list(runs["spec"])
    names = [_rule(spec["aggregator"]) for spec in specs]
    return runs.assign(
        attack_name=[
            f"{spec['attack']['name'].upper()} against {rule}"
            for spec, (rule, _) in zip(specs, names, strict=True)
        ],
        series=[
            ", ".join(
                [
                    method_label(spec["method"]),
                    *(["CTMA"] if meta else []),
                    *(["half answer"] if share < 1 else []),
                ]
            )
            for spec, (_, meta), share in zip(specs, names, runs["participation"], strict=True)
        ],
    )


def _rule(mapping: dict[str, object]) -> tuple[str, bool]:
    """Return a rule's name in the paper, or the name of the rule within the meta-rule; and True for
    the meta-rule.
    """
    meta = mapping["name"] == "ctma"
    name = str(mapping["rule"] if meta else mapping["name"]).partition(":")[0]
    return RULES.get(name, name), meta
