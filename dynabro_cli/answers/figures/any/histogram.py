"""The plot ``histogram``."""

from __future__ import annotations

from dynabro_cli.answers.analysis.cells import fractions
from dynabro_cli.answers.analysis.columns import column_of, short
from dynabro_cli.answers.analysis.diverged import DIVERGED, mark, mark_note
from dynabro_cli.answers.analysis.results import Results
from dynabro_cli.answers.figures._api import Choice, Drawn, plot
from dynabro_cli.answers.figures._panels import draw_fractions, panel_grid, write_title
from dynabro_cli.answers.figures.any._choice import panels_of, whole_rules
from dynabro_cli.core.errors import SpecError


@plot("histogram")
def draw(results: Results, choice: Choice) -> Drawn:
    """Share of rounds with each fraction of Byzantine workers, one panel per --facet (default
    switching), over all its runs.
    """
    for option in ("x", "hue", "metric"):
        if getattr(choice, option) is not None:
            raise SpecError(f"a histogram has no {option}. Try: no --{option}")
    facet = column_of("facet", whole_rules(results.runs, choice).facet or "switching")
    numbers = fractions(results, (facet,))
    panels = panels_of(results.runs, numbers, facet, choice)
    figure, axes = panel_grid(len(panels), sharey=not choice.free_y)
    lost = results.runs["status"] == DIVERGED
    for panel, (title, part, bars) in zip(axes, panels, strict=True):
        draw_fractions(panel, bars, int(part["workers"].max()))
        panel.set(
            title=short(title) + mark(lost[part.index].agg({"diverged": "sum", "n": "size"})),
            xlabel="fraction of Byzantine workers",
            ylabel="share of rounds",
            xlim=(-0.03, 1.03),
        )
    write_title(figure, results, None, what=mark_note(lost.sum()))
    return Drawn(figure, numbers)
