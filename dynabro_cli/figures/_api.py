"""The contract of figures, and their registry.

A figure of a grid is a function ``(Results) -> Drawn``, registered with the sweep whose runs it shows. A plot of any runs is
a function ``(Results, Choice) -> Drawn``, registered with what its options are where they are left out. A figure of another
table is a function ``(Engine, condition) -> Drawn``. Each returns the picture with the table of all numbers in it: what is not
in the table is not plotted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure
from sqlalchemy import Engine

from dynabro_cli.components import Registry
from dynabro_cli.figures._data import Results


class Drawn(NamedTuple):
    """A picture, and the numbers that are plotted in it."""

    figure: Figure
    numbers: pd.DataFrame


class Variant(NamedTuple):
    """The same grid under other settings, as ``--set`` takes them, and how the picture names that."""

    settings: tuple[str, ...]
    label: str


@dataclass(frozen=True)
class Grid:
    """Whose runs a figure shows.

    Attributes:
        sweep: The name of a sweep that comes with the program.
        variants: What is drawn in its place, the first that has any run, where the database has no run of the sweep itself.
        only: The fields, with their values, of the runs that it shows, where those are not all of the sweep's.
    """

    sweep: str
    variants: tuple[Variant, ...] = ()
    only: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True)
class Choice:
    """What a plot of any runs shows where: columns of ``runs``; None is for the plot to choose."""

    x: str | None = None
    hue: str | None = None
    facet: str | None = None
    metric: str | None = None


REGISTRY: Registry[Callable[..., Drawn]] = Registry("figure", "dynabro_cli.figures")
GRIDS: dict[str, Grid] = {}
"""The grids of the figures that have one, by name; the others are plots of any runs, or of another table."""
RECORDS: dict[str, str] = {}
"""The tables of the figures that show no runs, by name."""


def figure(
    name: str, *, sweep: str, reference: str, variants: tuple[Variant, ...] = (), **only: tuple[str, ...]
) -> Callable[[Callable[[Results], Drawn]], Callable[[Results], Drawn]]:
    """Register the decorated function as the figure ``name`` of a sweep's runs, or of those that have the values ``only``."""

    def decorate(draw: Callable[[Results], Drawn]) -> Callable[[Results], Drawn]:
        GRIDS[name] = Grid(sweep, variants, tuple(only.items()))
        REGISTRY.register(name, reference=reference)(draw)
        return draw

    return decorate


def record(
    name: str, *, table: str
) -> Callable[[Callable[[Engine, str | None], Drawn]], Callable[[Engine, str | None], Drawn]]:
    """Register the decorated function as the figure ``name`` of a table other than ``runs``, of which it takes a condition."""

    def decorate(draw: Callable[[Engine, str | None], Drawn]) -> Callable[[Engine, str | None], Drawn]:
        RECORDS[name] = table
        REGISTRY.register(name, reference=f"the table {table}")(draw)
        return draw

    return decorate


def plot(name: str) -> Callable[[Callable[..., Drawn]], Callable[..., Drawn]]:
    """Register the decorated function as the plot ``name`` of any runs."""

    def decorate(draw: Callable[[Results, Choice], Drawn]) -> Callable[[Results, Choice], Drawn]:
        registered: Any = REGISTRY.register(name, reference="any runs of the database")(draw)
        return registered  # type: ignore[no-any-return]

    return decorate
