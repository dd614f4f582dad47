"""Tables of the results in ``gpu.json``, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.gpu.steps import STEPS

PARTS = ("The machine", "Right or wrong", "Fast or slow", "Many at once")
HIDDEN = ("state", "ok", "error", "seconds")


def tables(whole: dict[str, Any]) -> str:
    """Return a table for each step, after a summary."""
    results = whole["results"]
    states = [outcome["state"] for checks in results.values() for outcome in checks.values()]
    counts = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states))) or "nothing yet"
    device = "the GPU" if str(whole["how"]["device"]).startswith("cuda") else "the CPU, a trial of the command"
    lines = [f"# What was found on {device}", "", f"{whole['written']}: {counts}."]
    if whole["missing"]:
        lines.append(f"Missing packages: {', '.join(whole['missing'])}.")
    faults = [
        f"- {step}, {name}: {outcome['state']}. {outcome.get('error', '')}".rstrip()
        for step, checks in results.items()
        for name, outcome in checks.items()
        if outcome["state"] not in ("done", "left out")
    ]
    lines += ["", *(["## Faults", "", *faults, ""] if faults else [])]
    for part, title in enumerate(PARTS):
        own = [step for step in STEPS if step.part == part and results.get(step.name)]
        if own:
            lines += [f"## {title}", ""]
        for step in own:
            lines += [f"### {step.name}", "", *_table(results[step.name]), ""]
    return "\n".join(lines)


def _table(checks: dict[str, dict[str, Any]]) -> list[str]:
    columns = list(dict.fromkeys(key for outcome in checks.values() for key in outcome if key not in HIDDEN))
    rows = [["check", "state", *columns, "s"]]
    for name, outcome in checks.items():
        rows.append([name, outcome["state"], *(_shown(outcome.get(key)) for key in columns), _shown(outcome.get("seconds"))])
    return [_line(rows[0]), _line(["---"] * len(rows[0])), *(_line(row) for row in rows[1:])]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else str(value).replace("|", "/").replace("\n", " ")
