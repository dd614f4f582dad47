"""Digests of the code that computes a run's numbers: one for each of its components, and one for the engine.

A component's digest covers the file that registers it, and the files of components' packages that this one imports. The engine
is all other computing code that ``dynabro_cli.simulation`` imports. No module is imported for a digest, and so no torch.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynabro_cli.components import USERS
from dynabro_cli.components.plugins import Plugin
from dynabro_cli.components.source_files import SourceReader, combined, default_memory

if TYPE_CHECKING:
    from dynabro_cli.components import Entry

ROOT = Path(__file__).parents[1]
KINDS = ("aggregators", "attacks", "methods", "models", "partitions", "pre_aggregators", "switching", "tasks")
"""The packages of components."""
ENGINE = "engine"
DESCRIBING = (
    *("errors", "events", "machine/failpoints", "machine/settings"),
    *(f"components/{name}" for name in ("component", "digests", "parameters", "plugin_errors", "plugins", "registry")),
    "components/source_files",
    *(f"experiment/{name}" for name in ("field", "fit", "key", "resolve", "spec")),
)
"""Modules that describe a run or its errors; their effect on a spec is in its key."""
NAME = re.compile(rf"({'|'.join(KINDS)})/[A-Za-z0-9][A-Za-z0-9._-]*|{ENGINE}")
DIGEST = re.compile(r"[0-9a-f]{16}")
MOST_TOLD = 4

_reader = SourceReader(default_memory())


def keep_sources() -> None:
    """Read the package's files now: a process that is about to import them knows them later, even if they are edited."""
    _reader.keep(ROOT)


def digests_of(components: Mapping[str, Entry[Any]]) -> str | None:
    """Return the value of the column ``code_digests`` for a run with these components; None if no source can be read.

    Args:
        components: The components by name, such as ``aggregators/cwtm``.
    """
    found = {name: of_entry(entry) for name, entry in components.items()} | {ENGINE: of_engine()}
    _reader.remember()
    known = {name: digest for name, digest in found.items() if digest is not None}
    return json.dumps(known, sort_keys=True, separators=(",", ":")) if known else None


def of_entry(entry: Entry[Any]) -> str | None:
    """Return the digest of a registered component, which may be a user's; None if its source cannot be read."""
    module = sys.modules.get(entry.factory.__module__)
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    content = getattr(getattr(module, "__loader__", None), "content", None)
    if content is not None:
        _reader.take(Path(file), content)
    return of_file(Path(file))


def with_imports(plugins: Iterable[Plugin]) -> tuple[Plugin, ...]:
    """Return plugins as they can be sent: each file with the files beside it that it imports."""
    return tuple(Plugin(plugin.name, _sources(plugin)) if plugin.is_file else plugin for plugin in plugins)


def _sources(plugin: Plugin) -> tuple[tuple[str, bytes], ...]:
    path = Path(plugin.name)
    beside = sorted(file for file in _closure([path], _holds_components) if file.parent == path.parent and file != path)
    found = ((file.name, _reader.content(file)) for file in beside)
    return (*plugin.sources, *((name, content) for name, content in found if content is not None))


@functools.cache
def of_file(path: Path) -> str | None:
    """Return the digest of a file with components, and of its imports with components; None if one cannot be read."""
    return _combined(_closure([path], _holds_components))


@functools.cache
def of_engine() -> str | None:
    """Return the digest of the code that all runs share; None if a file cannot be read."""
    return _combined(_closure(sorted((ROOT / "simulation").glob("*.py")), _is_engine))


@functools.cache
def at_hand(name: str) -> str | None:
    """Return the present digest of ``engine``, or of a component such as ``aggregators/cwtm``; None if it is not known."""
    if name == ENGINE:
        return of_engine()
    if name in USERS:
        return of_entry(USERS[name])
    kind, _, component = name.partition("/")
    usual = ROOT / kind / f"{component.replace('-', '_')}.py"
    for path in (usual, *sorted((ROOT / kind).glob("*.py"))):
        source = _reader.source(path)
        if source is not None and component in source.registers:
            return of_file(path)
    return None


@functools.lru_cache(maxsize=4096)
def parse(text: str | None) -> dict[str, str] | None:
    """Read a value of ``code_digests``; None if it is NULL or not of this form."""
    try:
        found = json.loads(text or "null")
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not found:
        return None
    sound = all(NAME.fullmatch(name) and isinstance(value, str) and DIGEST.fullmatch(value) for name, value in found.items())
    return found if sound else None


@functools.lru_cache(maxsize=4096)
def changed(text: str | None) -> tuple[str, ...]:
    """Return the differences between the current code and a run's: names of components, and ``engine``, in order.

    Unknown digests, then or now, do not count as changed.

    Args:
        text: The run's value of ``code_digests``.
    """
    stored = parse(text) or {}
    names = [name for name, digest in stored.items() if at_hand(name) not in (None, digest)]
    return tuple(sorted(names))


def changed_components(text: str | None) -> tuple[str, ...]:
    """As ``changed``, without ``engine``."""
    return tuple(name for name in changed(text) if name != ENGINE)


@dataclass(frozen=True)
class CodeComparison:
    """Comparison of the code of stored runs with the current code.

    Attributes:
        runs: Number of runs.
        changed: Number of runs with a changed component.
        components: Number of runs by changed component.
        engine: Number of runs with another engine.
        unknown: Number of runs without digests.
    """

    runs: int = 0
    changed: int = 0
    components: dict[str, int] = field(default_factory=dict)
    engine: int = 0
    unknown: int = 0

    @property
    def line(self) -> str | None:
        """The differences in one line; None if there are no differences."""
        parts = []
        if self.changed:
            told = [f"{name}: {count}" for name, count in self.components.items()]
            more = f", and {len(told) - MOST_TOLD} more" if len(told) > MOST_TOLD else ""
            parts.append(f"with other code: {self.changed} of {self.runs} ({', '.join(told[:MOST_TOLD])}{more})")
        if self.engine:
            parts.append(f"with another version of the engine: {self.engine} of {self.runs}")
        return f"stored runs made {'; '.join(parts)}" if parts else None


def compare(texts: Iterable[tuple[str | None, int]]) -> CodeComparison:
    """Compare values of ``code_digests``, each with its number of runs, with the current code."""
    components: Counter[str] = Counter()
    runs = different = engine = unknown = 0
    for text, count in texts:
        runs += count
        names = changed(text)
        unknown += count * (parse(text) is None)
        engine += count * (ENGINE in names)
        others = [name for name in names if name != ENGINE]
        different += count * bool(others)
        components.update(dict.fromkeys(others, count))
    _reader.remember()
    return CodeComparison(runs, different, dict(components.most_common()), engine, unknown)


def _combined(paths: Iterable[Path]) -> str | None:
    sources = [_reader.source(path) for path in paths]
    known = [source.digest for source in sources if source is not None]
    return combined(known) if known and len(known) == len(sources) else None


def _closure(paths: Iterable[Path], belongs: Callable[[Path], bool]) -> set[Path]:
    """Return files and their imports, direct or not, as far as they belong to the same digest."""
    found: set[Path] = set()
    waiting = list(paths)
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            source = _reader.source(path)
            imports = () if source is None else source.imports
            waiting += [file for name in imports for file in _files(path, name) if belongs(file)]
    return found


def _files(path: Path, name: str) -> list[Path]:
    """Return the file of a module that ``path`` imports, if it is dynabro's, of the same package, or beside it."""
    file = _file(path.parent, name)
    return [] if file is None else [file]


@functools.cache
def _file(folder: Path, name: str) -> Path | None:
    """Return the file of a module that a file in ``folder`` imports as ``name``; None if it is another program's."""
    level = len(name) - len(name.lstrip("."))
    parts = name[level:].split(".")
    top = _package(folder)
    if level:
        above = (folder, *folder.parents)
        start = above[min(level, len(above)) - 1]
    elif parts[0] in (ROOT.name, top and top.name):
        start = (ROOT if parts[0] == ROOT.name else top or ROOT).parent
    elif top is None and len(parts) == 1:
        start = folder
    else:
        return None
    return _existing(os.path.join(start, *parts) + ".py")


@functools.cache
def _existing(file: str) -> Path | None:
    return Path(file) if os.path.isfile(file) else None


@functools.cache
def _package(folder: Path) -> Path | None:
    """Return the folder of the outermost package that a folder is in; None if it is in none."""
    if not (folder / "__init__.py").is_file():
        return None
    return _package(folder.parent) or folder


def _place(path: Path) -> tuple[str, ...] | None:
    """Return the place of a file in dynabro's package; None for a user's."""
    return path.relative_to(ROOT).parts if path.is_relative_to(ROOT) else None


def _holds_components(path: Path) -> bool:
    place = _place(path)
    return place is None or (place[0] in KINDS and place[-1] != "_api.py")


def _is_engine(path: Path) -> bool:
    place = _place(path)
    if place is None or "/".join(place).removesuffix(".py") in DESCRIBING:
        return False
    return place[0] not in KINDS or place[-1].startswith("_")
