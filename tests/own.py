"""Plugins in tests: a rule of the user's, and a process that forgets what a test has loaded."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from dynabro_cli.answers.figures import _api as figures
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core import registration as components
from dynabro_cli.core.registration import METRICS, digests, plugins

RULE = '''"""A rule."""

from dataclasses import dataclass

from dynabro_cli.components.aggregators._api import REGISTRY, Aggregator, stateless
from dynabro_cli.plugins import parameter
{imports}

@dataclass(frozen=True)
class Parameters:
    broken: str = parameter("no", choices=("no", "factory", "rule"), help="what raises")


@REGISTRY.register("{name}", Parameters, reference="nobody")
def own(parameters: Parameters, setting) -> Aggregator:
    """The mean of all messages."""
    if parameters.broken == "factory":
        raise KeyError("in the factory")  # line 18 without imports

    def rule(messages):
        if parameters.broken == "rule":
            raise ZeroDivisionError("in the rule")  # line 22 without imports
        return messages.mean(0) * {factor}

    return stateless(rule, None)
'''


def write_rule(
    folder: Path,
    file: str = "own_rule.py",
    *,
    name: str = "own",
    imports: str = "",
    factor: str = "1.0",
) -> Path:
    """Write a plugin with an aggregator."""
    path = folder / file
    path.write_text(RULE.format(name=name, imports=imports, factor=factor))
    return path


def forget() -> None:
    """Forget answers about components that are kept by name."""
    digests.of_file.cache_clear()
    digests._content.cache_clear()
    digests._executed.clear()


@contextlib.contextmanager
def fresh() -> Iterator[None]:
    """Allow plugins to be loaded within the context; afterwards no plugin is loaded."""
    registries = [*REGISTRIES.values(), figures.REGISTRY]
    for registry in registries:
        registry.entries()
    kept = [(dict(registry._entries), registry) for registry in registries]
    users, grids = dict(components.USERS), dict(figures.GRIDS)
    loaded, places, done = dict(plugins._loaded), list(plugins.places), plugins._installed_done
    modules, path = set(sys.modules), list(sys.path)
    try:
        yield
    finally:
        for entries, registry in kept:
            registry._entries = entries
            registry._parsed.clear()
        components.USERS.clear()
        components.USERS.update(users)
        METRICS.clear()
        figures.GRIDS.clear()
        figures.GRIDS.update(grids)
        plugins._loaded.clear()
        plugins._loaded.update(loaded)
        plugins.places[:] = places
        plugins._installed_done = done
        for name in set(sys.modules) - modules:
            if getattr(sys.modules[name], "__file__", None) and not name.startswith(
                ("dynabro_cli", "torch", "tests")
            ):
                file = str(sys.modules[name].__file__)
                if "/pytest-" in file or "dynabro-plugin-" in file:
                    del sys.modules[name]
        sys.path[:] = path
        forget()
