"""Registries of components, and texts ``name:key=value,key=value`` read by them.

An algorithm's file declares a frozen dataclass of parameters and decorates a factory with
``@registry.register``. Nothing else changes: discovery imports every module of the registry's
package whose name does not begin with ``_``. If a component's module has the component's name, only
this module is imported to find it. Plugins register components in the same way.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Generic

from dynabro_cli.core.errors import NameTakenError, SpecError, did_you_mean
from dynabro_cli.core.registration import aliases, plugins
from dynabro_cli.core.registration.component import Check, Component, Entry, Factory
from dynabro_cli.core.registration.parameters import QUOTED, NoParameters, split_text, unquoted

NOTEBOOK = "__main__"
"""The module of a notebook's cells, and of a script."""
METRICS: dict[str, Callable[..., Mapping[str, float]]] = {}
"""Functions that measure a model at each evaluation, by their names."""
USERS: dict[str, Entry[Any]] = {}
"""Components that are not dynabro's own, by the names of ``dynabro show``:
``aggregators/my-rule``.
"""


class Registry(Generic[Factory]):
    """All algorithms of one kind, found by importing the modules of one package.

    Args:
        kind: The word for one algorithm, as in ``unknown aggregator``.
        package: The package whose modules register algorithms.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self._folder = package.rpartition(".")[2]
        self._entries: dict[str, Entry[Factory]] = {}
        self._parsed: dict[str, Component[Factory]] = {}
        self._discovered = False

    def register(
        self,
        name: str,
        parameters: type = NoParameters,
        *,
        reference: str,
        check: Check | None = None,
    ) -> Callable[[Factory], Factory]:
        """Register the decorated factory under ``name``.

        A name that is taken raises NameTakenError, unless the same cell of a notebook is executed
        again.

        If building takes long, ``check`` decides without building in which settings the component
        is legal.
        """

        def decorate(factory: Factory) -> Factory:
            ours = factory.__module__.startswith(f"{self.package}.")
            again = factory.__module__ == NOTEBOOK
            if not ours:
                self._discover()  # so that dynabro's own names are known to be taken
            taken = self._entries.get(name)
            if taken is not None and not (again and taken.factory.__module__ == NOTEBOOK):
                raise NameTakenError(
                    f"{self.kind} {name!r} is registered twice; {taken.factory.__module__} has "
                    "the first one"
                )
            entry = Entry(self.kind, name, parameters, factory, reference, check)
            self._entries = dict(sorted({**self._entries, name: entry}.items()))
            # a text that was read before may mean the component of the cell that is now replaced
            self._parsed.clear()
            if not ours:
                USERS[f"{self._folder}/{name}"] = entry
            return factory

        return decorate

    def entries(self) -> dict[str, Entry[Factory]]:
        """Return all entries by name, in alphabetical order: the package's (imported on first use)
        and plugins'.
        """
        self._discover()
        plugins.load_installed()
        return dict(self._entries)

    def entry(self, name: str) -> Entry[Factory]:
        """Return the entry called ``name``, also in another library; raise SpecError with the legal
        names if it is unknown.
        """
        name = self._meaning(name).partition(":")[0]  # which may import the component
        return self._entries[name]

    def find(self, name: str) -> str:
        """Return the text of the component that ``name`` stands for: its own name, or another
        library's; empty if unknown.
        """
        self._import_namesake(name)
        if name not in self._entries:
            self._discover()
        if name in self._entries or name in self.entries():
            return name
        spelt = [
            entry_name
            for entry_name in self._entries
            if aliases.squashed(entry_name) == aliases.squashed(name)
        ]
        alias = aliases.find(self._folder, name)
        return spelt[0] if len(spelt) == 1 else alias.text if alias else ""

    def knows(self, name: str) -> bool:
        """Return True for a name of a component here or in another library, also if the component
        does not exist here.
        """
        return bool(self.find(name) or aliases.find(self._folder, name))

    def _meaning(self, name: str) -> str:
        """Return ``find(name)``; warn if other libraries define the component differently.

        Raises:
            SpecError: The name is unknown; the message has the legal names.
        """
        text, alias = self.find(name), aliases.find(self._folder, name)
        if not text:
            hint = f": {alias.note}" if alias else did_you_mean(name, self.suggestible(), self.find)
            plugin = (
                ""
                if hint
                else "; load your own with --plugin FILE, in Python with load_plugin(FILE)"
            )
            raise SpecError(
                f"unknown {self.kind} {name!r}{hint}; legal: {', '.join(self._entries)}{plugin}"
            )
        if alias and alias.note and text == alias.text and text != name:
            warnings.warn(f"{self.kind} {name!r} is {text} here: {alias.note}", stacklevel=3)
        return text

    def suggestible(self) -> list[str]:
        """Return all names, other libraries' included, except for no defence and no attack."""
        names = [*self.entries(), *aliases.names_of(self._folder)]
        return [
            name
            for name in names
            if self.find(name) not in ("", aliases.DISARMED.get(self._folder))
        ]

    def _import_namesake(self, name: str) -> None:
        """Import the module with a component's name, if it exists: ``centered_clipping`` for
        ``centered-clipping``.
        """
        module = name.replace("-", "_")
        if (
            self._discovered
            or name in self._entries
            or not module.isidentifier()
            or module.startswith("_")
        ):
            return
        if importlib.util.find_spec(f"{self.package}.{module}") is not None:
            importlib.import_module(f"{self.package}.{module}")

    def _discover(self) -> None:
        """Import the package's modules, once."""
        if self._discovered:
            return
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__):
            if not module.name.startswith("_"):
                importlib.import_module(f"{self.package}.{module.name}")
        self._discovered = True

    def parse(self, text: str) -> Component[Factory]:
        """Read ``name:key=value,...``, each text once; raise a SpecError that lists every problem
        in it.
        """
        if text not in self._parsed:
            self._parsed[text] = self._read(text)
        return self._parsed[text]

    def _read(self, text: str) -> Component[Factory]:
        typed, colon, rest = text.strip().partition(":")
        name, _, preset = self._meaning(typed).partition(":")
        entry = self._entries[name]
        raw, problems = _split(rest if colon else "", f"{self.kind} {text!r}")
        raw = _split(preset, name)[0] | raw
        alias = aliases.find(self._folder, typed)
        theirs = alias.parameters if alias else {}
        infos = {info.key: info for info in entry.infos}
        values: dict[str, Any] = {}
        for key, value in raw.items():
            if key in theirs and (key not in infos or typed != name):
                problems.append(
                    f"{self.kind} {typed!r}: {key}={value} is another library's parameter. "
                    f"Try: {theirs[key]}"
                )
                continue
            if key not in infos:
                legal = ", ".join(infos) or "it has none"
                hint = did_you_mean(key, infos)
                problems.append(
                    f"{self.kind} {name!r} has no parameter {key!r}{hint}; legal: {legal}"
                )
                continue
            try:
                values[infos[key].field] = infos[key].parse(value)
            except (ValueError, KeyError, OverflowError):
                problems.append(
                    f"{self.kind} {name!r}: {key}={value} is not legal; {key} must be "
                    f"{infos[key].legal}"
                )
        missing = [info.key for info in infos.values() if info.required and info.key not in raw]
        problems += [
            f"{self.kind} {name!r} needs {key}=. Try: '{name}:{key}=VALUE' ({infos[key].legal})"
            for key in missing
        ]
        if problems:
            raise SpecError(problems)
        return Component(entry, entry.parameters(**values))


def _split(text: str, where: str) -> tuple[dict[str, str], list[str]]:
    """Split ``key=value,key=value``; return the pairs and the problems."""
    pairs: dict[str, str] = {}
    problems = []
    for part in split_text(text, ",") if text else []:
        match = re.fullmatch(rf"\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*({QUOTED}|\S+)\s*", part)
        if match is None:
            problems.append(
                f'{where}: {part!r} is not of the form key=value. Try: key="value" if it has '
                "blanks or commas"
            )
        elif match[1] in pairs:
            problems.append(f"{where}: {match[1]} is given twice")
        else:
            pairs[match[1]] = unquoted(match[2])
    return pairs, problems
