"""The contract of figures, and their registry.

A figure of a grid is a function ``(Results) -> Drawn``, registered with the sweep whose runs it
shows. A plot of any runs is a function ``(Results, Choice) -> Drawn``, registered with the defaults
of its options. A figure of another table is a function ``(Engine, condition) -> Drawn``. Each
returns the picture with the table of all numbers in it: only numbers of the table are plotted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd
from sqlalchemy import Engine

from dynabro_cli.answers.analysis.results import Results as Results
from dynabro_cli.core.errors import SpecError, did_you_mean
from dynabro_cli.core.registration import Registry

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Drawn(NamedTuple):
    """A picture, the plotted numbers, and, for ``--format tex,html``, the same as a table of texts,
    or None.

    ``bold`` has the places of the table's cells that are the best, [row, column]; ``notes`` are
    written below the table.
    """

    figure: Figure
    numbers: pd.DataFrame
    table: pd.DataFrame | None = None
    bold: Collection[tuple[int, int]] = ()
    notes: Sequence[str] = ()


class Variant(NamedTuple):
    """The same grid with other settings, as ``--set`` takes them, and their name in the picture."""

    settings: tuple[str, ...]
    label: str


@dataclass(frozen=True)
class Grid:
    """The runs of a figure.

    Attributes:
        sweep: The name of a sweep that comes with the program.
        variants: Replacements, if the database has no run of the sweep itself: the first variant
            with any run is drawn.
        only: Fields with their values, if the figure shows only a part of the sweep's runs.
    """

    sweep: str
    variants: tuple[Variant, ...] = ()
    only: tuple[tuple[str, tuple[str | int, ...]], ...] = ()


@dataclass(frozen=True)
class Choice:
    """Options of a plot of any runs; None leaves the choice to the plot.

    Attributes:
        x: Column along the axis, or the columns of a matrix.
        hue: Compared column: it has the colours, or the rows.
        facet: Column with a panel per value.
        metric: A key of ``METRICS``.
        free_y: Each panel has its own vertical axis; otherwise all panels share one.
        labels: Values, as stored or as shown, and the words that replace them.
        order: Values in the wanted order; others follow.
        colours: Values, and their colours.
        spread: What bars of final numbers show: ``95% interval`` or ``std``, as in the paper.
        met: Values that the plot has met so far; names of other values are mistakes.
    """

    x: str | None = None
    hue: str | None = None
    facet: str | None = None
    metric: str | None = None
    free_y: bool = False
    labels: tuple[tuple[str, str], ...] = ()
    order: tuple[str, ...] = ()
    colours: tuple[tuple[str, str], ...] = ()
    spread: str = "95% interval"
    met: dict[str, None] = field(default_factory=dict, compare=False)

    def label(self, value: object, shown: str | None = None) -> str:
        """Return the words for a value: the user's, or those that are shown by default."""
        shown = str(value) if shown is None else shown
        self.met.update(dict.fromkeys((str(value), shown)))
        wanted = dict(self.labels)
        return wanted.get(str(value), wanted.get(shown, shown))

    def arranged(self, values: Sequence[Any], shown: Mapping[Any, str] | None = None) -> list[Any]:
        """Return values, the ones in ``order`` first."""
        places = {text: place for place, text in enumerate(self.order)}
        names = {value: (shown or {}).get(value, str(value)) for value in values}
        for value, name in names.items():
            self.met.update(dict.fromkeys((str(value), name)))
        return sorted(
            values, key=lambda value: places.get(str(value), places.get(names[value], len(places)))
        )

    def colour(self, value: object, shown: str) -> str | None:
        """Return the user's colour of a value, if there is one."""
        wanted = dict(self.colours)
        return wanted.get(str(value), wanted.get(shown))

    def check(self) -> None:
        """Raise SpecError if an option names a value that the picture does not have."""
        for option, names in (
            ("label", dict(self.labels)),
            ("order", self.order),
            ("colour", dict(self.colours)),
        ):
            for name in names:
                if name not in self.met:
                    hint = did_you_mean(name, self.met)
                    raise SpecError(
                        f"{option}={name}: the picture has no such value{hint}. Try: "
                        f"{', '.join(self.met)}"
                    )


REGISTRY: Registry[Callable[..., Drawn]] = Registry("figure", __package__)
GRIDS: dict[str, Grid] = {}
"""Grids of the figures of a sweep, by name; other figures are plots of any runs, or of another
table.
"""
RECORDS: dict[str, str] = {}
"""Tables of the figures that do not show runs, by name."""


def figure(
    name: str,
    *,
    sweep: str,
    reference: str,
    variants: tuple[Variant, ...] = (),
    **only: tuple[str | int, ...],
) -> Callable[[Callable[[Results], Drawn]], Callable[[Results], Drawn]]:
    """Register the decorated function as the figure ``name`` of a sweep's runs, or of the runs with
    the values ``only``.
    """

    def decorate(draw: Callable[[Results], Drawn]) -> Callable[[Results], Drawn]:
        GRIDS[name] = Grid(sweep, variants, tuple(only.items()))
        REGISTRY.register(name, reference=reference)(draw)
        return draw

    return decorate


def record(
    name: str, *, table: str
) -> Callable[[Callable[[Engine, str | None], Drawn]], Callable[[Engine, str | None], Drawn]]:
    """Register the decorated function as the figure ``name`` of a table other than ``runs``; it
    takes a condition on that table.
    """

    def decorate(
        draw: Callable[[Engine, str | None], Drawn],
    ) -> Callable[[Engine, str | None], Drawn]:
        RECORDS[name] = table
        REGISTRY.register(name, reference=f"the table {table}")(draw)
        return draw

    return decorate


def plot(name: str) -> Callable[[Callable[..., Drawn]], Callable[..., Drawn]]:
    """Register the decorated function as the plot ``name`` of any runs."""
    return REGISTRY.register(name, reference="any runs of the database")
