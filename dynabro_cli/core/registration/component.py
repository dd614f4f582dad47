"""A registered algorithm, and an algorithm with its parameters set: the meaning of
``name:key=value``.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

from dynabro_cli.core.package import NAME
from dynabro_cli.core.registration.parameters import (
    ParameterInfo,
    format_value,
    parameter_infos,
    quoted,
)
from dynabro_cli.core.registration.plugins import guarded

Factory = TypeVar("Factory", bound=Callable[..., Any])
Check: TypeAlias = "Callable[[Component[Any], Any], None]"
CHAINED = ("pre-aggregator", "aggregator")
"""Kinds of components whose texts are joined by ``+``."""


@dataclasses.dataclass(frozen=True)
class Entry(Generic[Factory]):
    """A registered algorithm: its name, parameter block, factory, reference, and legal settings.

    ``check`` raises SpecError if a component cannot be built in a setting; None if only building it
    can decide.
    """

    kind: str
    name: str
    parameters: type
    factory: Factory
    reference: str
    check: Check | None = None

    @property
    def doc(self) -> str:
        return inspect.getdoc(self.factory) or ""

    @property
    def summary(self) -> str:
        return " ".join(self.doc.partition("\n\n")[0].split())

    @property
    def shipped(self) -> bool:
        """True for dynabro's own components."""
        return self.factory.__module__.startswith(f"{NAME}.")

    @property
    def infos(self) -> tuple[ParameterInfo, ...]:
        """The parameters, in the order in which they are declared."""
        return parameter_infos(self.parameters)


@dataclasses.dataclass(frozen=True)
class Component(Generic[Factory]):
    """A registered algorithm with its parameters set: the meaning of ``name:key=value``."""

    entry: Entry[Factory]
    parameters: Any

    @property
    def name(self) -> str:
        return self.entry.name

    @functools.cached_property
    def text(self) -> str:
        """The canonical string: parameters that differ from their default, in declared order."""
        return self.joined(",", "+" if self.entry.kind in CHAINED else "")

    def joined(self, separator: str, others: str = "") -> str:
        """Return ``text`` with another separator of parameters; values with it, or with one of
        ``others``, are in quotes.
        """

        def written(value: Any) -> str:
            return (
                quoted(value, separator + others) if isinstance(value, str) else format_value(value)
            )

        values = ((info, getattr(self.parameters, info.field)) for info in self.entry.infos)
        shown = [
            f"{info.key}={written(value)}"
            for info, value in values
            if info.required or value != info.default
        ]
        return self.name + (":" + separator.join(shown) if shown else "")

    @property
    def inner(self) -> tuple[Component[Any], ...]:
        """Components that the parameters name; such a block has a property ``components``."""
        return tuple(getattr(self.parameters, "components", ()))

    @functools.cached_property
    def mapping(self) -> dict[str, Any]:
        """Name and all parameters, including defaults (``later`` ones only if not at their
        default), for the run key.
        """
        values = ((info, getattr(self.parameters, info.field)) for info in self.entry.infos)
        written = {
            info.key: value
            for info, value in values
            if not info.limits["later"] or value != info.default
        }
        return {"name": self.name} | written

    def canonical(self, setting: Any) -> Component[Factory]:
        """Return the same component; a parameter is written as its default, or as ``auto``, if that
        is equal in ``setting``.

        A ``fixed`` parameter has the value of its ``auto``, and a path is as short as possible.
        """
        values: dict[str, Any] = {}
        for info in self.entry.infos:
            given = getattr(self.parameters, info.field)
            if info.limits["folder"] is not None:
                values[info.field] = info.shortened(given, setting)
            if info.auto is None or (
                given is None and info.default is None and not info.limits["fixed"]
            ):
                continue  # already auto: its value may be as large as the model, and is not needed
            meant = info.auto(self.parameters, setting)
            if meant is not None and given in (None, meant):
                values[info.field] = (
                    meant if info.default == meant or info.limits["fixed"] else None
                )
        if all(getattr(self.parameters, name) == value for name, value in values.items()):
            return self
        return dataclasses.replace(self, parameters=dataclasses.replace(self.parameters, **values))

    def build(self, setting: Any) -> Any:
        """Call the factory with the parameters and the run's setting, unless its check raises
        SpecError.

        Raises:
            PluginError: The factory is a plugin's, and raised an unexpected exception.
        """
        with guarded(f"{self.entry.kind} {self.name!r}"):
            if self.entry.check is not None:
                self.entry.check(self, setting)
            return self.entry.factory(self.parameters, setting)
