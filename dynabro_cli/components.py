"""Components written ``name:key=value,key=value``: their parameters, their text, and the registries they live in.

An algorithm's file declares a frozen dataclass of parameters and decorates a factory with ``@registry.register``. Nothing else
changes: discovery imports every module of the registry's package whose name does not begin with ``_``. Plugins register
components in the same way.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import math
import pkgutil
import re
import types
import typing
from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

from dynabro_cli import plugins
from dynabro_cli.errors import SpecError, did_you_mean
from dynabro_cli.footprint import Footprint

Factory = TypeVar("Factory", bound=Callable[..., Any])
Check: TypeAlias = "Callable[[Component[Any], Any], None]"
AUTO = "auto"
NOTEBOOK = "__main__"
"""The module of a notebook's cells, and of a script."""
USERS: dict[str, Entry[Any]] = {}
"""Components that are not dynabro's own, by the names of ``dynabro show``: ``aggregators/my-rule``."""


def parameter(
    default: Any = dataclasses.MISSING,
    *,
    help: str,  # noqa: A002
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: tuple[str, ...] | None = None,
    auto: Callable[[Any, Any], Any] | None = None,
    fixed: bool = False,
    later: bool = False,
) -> Any:
    """Declare a field of a parameter block: its meaning, and its legal range (``above`` and ``below`` are strict).

    ``auto`` maps the block and the component's setting to the value that None stands for; to None if only the run determines
    it. A spec has None for it, or, if it is ``fixed``, the value, as auto may resolve to another value tomorrow.

    ``later`` says that runs were stored before the component had this parameter. Its default is left out of the run key, so
    that those runs keep their keys.
    """
    limits = {"help": help, "minimum": minimum, "maximum": maximum, "above": above, "below": below, "choices": choices}
    return dataclasses.field(default=default, metadata=limits | {"auto": auto, "fixed": fixed, "later": later})


@dataclasses.dataclass(frozen=True)
class NoParameters:
    """The parameter block of a component without parameters."""


@dataclasses.dataclass(frozen=True)
class ParameterInfo:
    """One parameter of a component, for parsing and for help."""

    key: str
    field: str
    type: type
    optional: bool
    default: Any
    limits: dict[str, Any]

    @property
    def required(self) -> bool:
        return self.default is dataclasses.MISSING

    @property
    def auto(self) -> Callable[[Any, Any], Any] | None:
        return self.limits["auto"]  # type: ignore[no-any-return]

    @property
    def legal(self) -> str:
        """The legal values, in words."""
        if self.limits["choices"]:
            return " or ".join([*self.limits["choices"], *([AUTO] if self.optional else [])])
        words = {
            int: "a whole number",
            float: "a number",
            bool: "true or false",
            str: "a word",
            tuple: "numbers a:b:...",
        }
        text = words[self.type]
        signs = (("minimum", ">="), ("above", ">"), ("maximum", "<="), ("below", "<"))
        ranges = [f"{sign} {format_value(self.limits[name])}" for name, sign in signs if self.limits[name] is not None]
        text = " ".join(filter(None, (text, " and ".join(ranges))))
        return text + (" or auto" if self.optional else "")

    def parse(self, text: str) -> Any:
        """Turn ``text`` into a value of this parameter's type and range; raise ValueError if this is not possible."""
        if self.optional and text == AUTO:
            return None
        value: Any = text
        if self.type is float:
            value = parse_number(text)
        elif self.type is int:
            value = parse_whole(text)
        elif self.type is bool:
            value = {"true": True, "false": False}[text.lower()]
        elif self.type is tuple:
            return tuple(parse_number(part) for part in text.split(":"))
        self.check(value)
        return value

    def check(self, value: Any) -> None:
        """Raise ValueError if ``value`` is outside the legal range."""
        limits = self.limits
        legal = (
            not (isinstance(value, float) and not math.isfinite(value))
            and (limits["choices"] is None or value in limits["choices"])
            and (limits["minimum"] is None or value >= limits["minimum"])
            and (limits["maximum"] is None or value <= limits["maximum"])
            and (limits["above"] is None or value > limits["above"])
            and (limits["below"] is None or value < limits["below"])
        )
        if not legal:
            raise ValueError(value)


def parse_number(text: str) -> float:
    """Return the finite number in ``text``, 0 for -0; raise ValueError otherwise."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value + 0.0


def parse_whole(text: str) -> int:
    """Return the whole number in ``text``, also for ``5e3`` or ``8.0``; raise ValueError otherwise, or beyond 64 bits."""
    try:
        value = int(text)
    except ValueError:
        number = parse_number(text)
        value = int(number)
        if value != number or abs(value) > 2**53:
            raise ValueError(text) from None
    if abs(value) >= 2**63:
        raise ValueError(text)
    return value


def format_value(value: Any) -> str:
    """Write a parameter's value as typed: ``0.1``, ``8``, ``true``, ``3:-3``, ``auto``."""
    if value is None:
        return AUTO
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ":".join(format_value(part) for part in value)
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return str(value)


@dataclasses.dataclass(frozen=True)
class Entry(Generic[Factory]):
    """A registered algorithm: its name, parameter block, factory, reference, and legal settings.

    ``check`` raises SpecError for a component and a setting in which it cannot be built; None if only building it decides.
    ``footprint`` maps parameters and setting to the memory that it takes beyond the usual; None if it is negligible.
    """

    kind: str
    name: str
    parameters: type
    factory: Factory
    reference: str
    check: Check | None = None
    footprint: Callable[[Any, Any], Footprint] | None = None

    @property
    def doc(self) -> str:
        return inspect.getdoc(self.factory) or ""

    @property
    def summary(self) -> str:
        return self.doc.partition("\n")[0]

    @property
    def infos(self) -> tuple[ParameterInfo, ...]:
        """The parameters, in the order in which they are declared."""
        return parameter_infos(self.parameters)


@functools.cache
def parameter_infos(block: type) -> tuple[ParameterInfo, ...]:
    """Describe the fields of a parameter block. A trailing underscore is not part of the key (``lambda_``)."""
    hints = typing.get_type_hints(block)
    infos = []
    for field in dataclasses.fields(block):
        annotation, optional = hints[field.name], False
        if isinstance(annotation, types.UnionType):
            (annotation,) = (part for part in typing.get_args(annotation) if part is not type(None))
            optional = True
        kind = typing.get_origin(annotation) or annotation
        key = field.name.rstrip("_")
        infos.append(ParameterInfo(key, field.name, kind, optional, field.default, dict(field.metadata)))
    return tuple(infos)


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
        shown = [
            f"{info.key}={format_value(getattr(self.parameters, info.field))}"
            for info in self.entry.infos
            if info.required or getattr(self.parameters, info.field) != info.default
        ]
        return self.name + (":" + ",".join(shown) if shown else "")

    @property
    def inner(self) -> tuple[Component[Any], ...]:
        """Components that the parameters name: such a block has a property ``components``."""
        return tuple(getattr(self.parameters, "components", ()))

    @functools.cached_property
    def mapping(self) -> dict[str, Any]:
        """Name and all parameters with defaults, ``later`` ones only if not at their default: the content of the run key."""
        values = ((info, getattr(self.parameters, info.field)) for info in self.entry.infos)
        known = {info.key: value for info, value in values if not info.limits["later"] or value != info.default}
        return {"name": self.name} | known

    def canonical(self, setting: Any) -> Component[Factory]:
        """Return the same component, with each parameter at its default or at ``auto`` if that is the same in ``setting``.

        A ``fixed`` parameter has the value of its ``auto``.
        """
        values = {}
        for info in self.entry.infos:
            given = getattr(self.parameters, info.field)
            if info.auto is None or (given is None and info.default is None and not info.limits["fixed"]):
                continue  # auto already: its value may be as large as the model, and is not needed
            meant = info.auto(self.parameters, setting)
            if meant is not None and given in (None, meant):
                values[info.field] = meant if info.default == meant or info.limits["fixed"] else None
        if all(getattr(self.parameters, name) == value for name, value in values.items()):
            return self
        return dataclasses.replace(self, parameters=dataclasses.replace(self.parameters, **values))

    def build(self, setting: Any) -> Any:
        """Call the factory with the parameters and the run's setting, unless its check raises SpecError.

        Raises:
            PluginError: The factory is a plugin's, and raised an unexpected exception.
        """
        with plugins.guarded(f"{self.entry.kind} {self.name!r}"):
            if self.entry.check is not None:
                self.entry.check(self, setting)
            return self.entry.factory(self.parameters, setting)

    def footprint(self, setting: Any) -> Footprint:
        """The memory that it takes beyond the usual in this setting."""
        return Footprint() if self.entry.footprint is None else self.entry.footprint(self.parameters, setting)


class Registry(Generic[Factory]):
    """All algorithms of one kind, found by importing the modules of one package.

    Args:
        kind: The word for one of them, as in ``unknown aggregator``.
        package: The package whose modules register themselves.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
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
        footprint: Callable[[Any, Any], Footprint] | None = None,
    ) -> Callable[[Factory], Factory]:
        """Register the decorated factory under ``name``.

        A name that is taken raises ValueError, unless the same cell of a notebook is executed again.

        ``check`` decides without building in which settings the component is legal, if building takes long.
        ``footprint`` maps parameters and setting to the memory that the component takes beyond the usual.
        """

        def decorate(factory: Factory) -> Factory:
            ours = factory.__module__.startswith(f"{self.package}.")
            again = factory.__module__ == NOTEBOOK
            if not ours and (again or plugins.is_loading()):
                self._discover()  # so that a name of dynabro's own is known to be taken
            taken = self._entries.get(name)
            if taken is not None and not (again and taken.factory.__module__ == NOTEBOOK):
                raise ValueError(f"{self.kind} {name!r} is registered twice; {taken.factory.__module__} has the first one")
            entry = Entry(self.kind, name, parameters, factory, reference, check, footprint)
            self._entries = dict(sorted({**self._entries, name: entry}.items()))
            self._parsed.clear()
            if not ours:
                USERS[f"{self.package.rpartition('.')[2]}/{name}"] = entry
            return factory

        return decorate

    def entries(self) -> dict[str, Entry[Factory]]:
        """Return all entries by name, in alphabetical order: the package's, which are imported on first use, and plugins'."""
        self._discover()
        plugins.load_installed()
        return dict(self._entries)

    def entry(self, name: str) -> Entry[Factory]:
        """Return the entry called ``name``; raise SpecError with the legal names if there is none."""
        self._discover()
        if name not in self._entries:
            entries = self.entries()
            if name not in entries:
                hint = did_you_mean(name, entries)
                own = "" if hint else "; --plugin FILE loads your own"
                raise SpecError(f"unknown {self.kind} {name!r}{hint}; legal: {', '.join(entries)}{own}")
        return self._entries[name]

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
        """Read ``name:key=value,...``, each text once; raise SpecError that lists every problem in it."""
        if text not in self._parsed:
            self._parsed[text] = self._read(text)
        return self._parsed[text]

    def _read(self, text: str) -> Component[Factory]:
        name, colon, rest = text.strip().partition(":")
        entry = self.entry(name)
        raw, problems = _split(rest if colon else "", f"{self.kind} {text!r}")
        infos = {info.key: info for info in entry.infos}
        values: dict[str, Any] = {}
        for key, value in raw.items():
            if key not in infos:
                legal = ", ".join(infos) or "it has none"
                hint = did_you_mean(key, infos)
                problems.append(f"{self.kind} {name!r} has no parameter {key!r}{hint}; legal: {legal}")
                continue
            try:
                values[infos[key].field] = infos[key].parse(value)
            except (ValueError, KeyError, OverflowError):
                problems.append(f"{self.kind} {name!r}: {key}={value} is not legal; {key} must be {infos[key].legal}")
        missing = [info.key for info in infos.values() if info.required and info.key not in raw]
        problems += [f"{self.kind} {name!r} needs {key}=. Try: '{name}:{key}=VALUE' ({infos[key].legal})" for key in missing]
        if problems:
            raise SpecError(problems)
        return Component(entry, entry.parameters(**values))


def _split(text: str, where: str) -> tuple[dict[str, str], list[str]]:
    """Split ``key=value,key=value``; return the pairs and the problems."""
    pairs: dict[str, str] = {}
    problems = []
    for part in text.split(",") if text else []:
        match = re.fullmatch(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(\S+)\s*", part)
        if match is None:
            problems.append(f"{where}: {part!r} is not of the form key=value")
        elif match[1] in pairs:
            problems.append(f"{where}: {match[1]} is given twice")
        else:
            pairs[match[1]] = match[2]
    return pairs, problems
