"""Count rules and attacks here, and in the installed peers, from their importable classes."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import pkgutil
from types import ModuleType

from benchmarks.measuring import table
from dynabro_cli.components.registries import REGISTRIES

KINDS = ("aggregators", "pre_aggregators", "attacks")
"""Kinds of classes of the peers."""
BYZFL = {
    "aggregators": "byzfl.aggregators.aggregators",
    "pre_aggregators": "byzfl.aggregators.preaggregators",
    "attacks": "byzfl.attacks.attacks",
}
BYZPY = {
    "aggregators": ("byzpy.aggregators", "Aggregator"),
    "pre_aggregators": ("byzpy.pre_aggregators", "PreAggregator"),
    "attacks": ("byzpy.attacks", "Attack"),
}


def ours(kind: str) -> list[str]:
    """Return the names of a kind in our registry; ``none`` does not count, because it is not an
    attack.
    """
    return [name for name in REGISTRIES[kind].entries() if name != "none"]


def byzfl(kind: str) -> list[str]:
    """Return ByzFL's classes of a kind: all public classes of one module."""
    return _classes(importlib.import_module(BYZFL[kind]))


def byzpy(kind: str) -> list[str]:
    """Return ByzPy's classes of a kind: the classes derived from the kind's base."""
    package, base = BYZPY[kind]
    root = importlib.import_module(package)
    for found in pkgutil.walk_packages(root.__path__, f"{package}."):
        if ".tests" not in found.name:
            importlib.import_module(found.name)
    kinds = getattr(importlib.import_module(f"{package}.base"), base)
    return sorted({kind.__name__ for kind in _descendants(kinds) if not inspect.isabstract(kind)})


PEERS = {"byzfl": byzfl, "byzpy": byzpy}


def count() -> str:
    """Return a table of counts, with the names below it."""
    sides = {"dynabro": ours} | {
        name: find for name, find in PEERS.items() if importlib.util.find_spec(name) is not None
    }
    names = {(side, kind): find(kind) for side, find in sides.items() for kind in KINDS}
    head = ["", *(f"{side} {importlib.metadata.version(side)}" for side in sides)]
    text = table(head, [[kind, *(str(len(names[side, kind])) for side in sides)] for kind in KINDS])
    lines = [f"{side} {kind}: {', '.join(found)}" for (side, kind), found in names.items() if found]
    return "\n".join([text, "", *lines])


def _classes(module: ModuleType) -> list[str]:
    """Return the public classes that a module defines."""
    found = inspect.getmembers(module, inspect.isclass)
    return [
        name
        for name, kind in found
        if kind.__module__ == module.__name__ and not name.startswith("_")
    ]


def _descendants(base: type) -> list[type]:
    return [one for child in base.__subclasses__() for one in (child, *_descendants(child))]
