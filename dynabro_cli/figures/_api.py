"""The contract of figures, and their registry.

A figure of a grid is a function ``(Results) -> Drawn``, registered with the sweep whose runs it shows. A plot of any runs is
a function ``(Results, Choice) -> Drawn``, registered with the defaults of its options. A figure of another
table is a function ``(Engine, condition) -> Drawn``. Each returns the picture with the table of all numbers in it: only numbers
of the table are plotted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure
from sqlalchemy import Engine

from dynabro_cli.components import Registry
from dynabro_cli.figures._data import Results


class Drawn(NamedTuple):
    """A picture, the plotted numbers, and the same as a table of texts, for ``--format tex``; None if there is no table."""

    figure: Figure
    numbers: pd.DataFrame
    table: pd.DataFrame | None = None


class Variant(NamedTuple):
    """The same grid with other settings, as ``--set`` takes them, and their name in the picture."""

    settings: tuple[str, ...]
    label: str


@dataclass(frozen=True)
class Grid:
    """The runs of a figure.

    Attributes:
        sweep: The name of a sweep that comes with the program.
        variants: Replacements, if the database has no run of the sweep itself: the first variant with any run is drawn.
        only: Fields with their values, if the figure shows only a part of the sweep's runs.
    """

    sweep: str
    variants: tuple[Variant, ...] = ()
    only: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True)
class Choice:
    """Columns of ``runs`` that a plot of any runs shows; None leaves the choice to the plot.

    With ``free_y`` each panel has a vertical axis of its own; otherwise all panels share one.
    """

    x: str | None = None
    hue: str | None = None
    facet: str | None = None
    metric: str | None = None
    free_y: bool = False


REGISTRY: Registry[Callable[..., Drawn]] = Registry("figure", "dynabro_cli.figures")
GRIDS: dict[str, Grid] = {}
"""Grids of the figures of a sweep, by name; other figures are plots of any runs, or of another table."""
RECORDS: dict[str, str] = {}
"""Tables of the figures that do not show runs, by name."""


def figure(
    name: str, *, sweep: str, reference: str, variants: tuple[Variant, ...] = (), **only: tuple[str, ...]
) -> Callable[[Callable[[Results], Drawn]], Callable[[Results], Drawn]]:
    """Register the decorated function as the figure ``name`` of a sweep's runs, or of the runs with the values ``only``."""

    def decorate(draw: Callable[[Results], Drawn]) -> Callable[[Results], Drawn]:
        GRIDS[name] = Grid(sweep, variants, tuple(only.items()))
        REGISTRY.register(name, reference=reference)(draw)
        return draw

    return decorate


def record(
    name: str, *, table: str
) -> Callable[[Callable[[Engine, str | None], Drawn]], Callable[[Engine, str | None], Drawn]]:
    """Register the decorated function as the figure ``name`` of a table other than ``runs``; it takes a condition on that
    table.
    """

    def decorate(draw: Callable[[Engine, str | None], Drawn]) -> Callable[[Engine, str | None], Drawn]:
        RECORDS[name] = table
        REGISTRY.register(name, reference=f"the table {table}")(draw)
        return draw

    return decorate


def plot(name: str) -> Callable[[Callable[..., Drawn]], Callable[..., Drawn]]:
    """Register the decorated function as the plot ``name`` of any runs."""
    return REGISTRY.register(name, reference="any runs of the database")
