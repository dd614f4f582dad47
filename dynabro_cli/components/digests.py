"""Digests of the code that computes a run's numbers: one for each of its components, and one for the engine.

A digest is a hash of whole files, comments included. A component's files are the file that registers it, and the files of
components' packages that this file imports. The engine is all other computing code. Nothing is imported or parsed for a digest.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynabro_cli.components import USERS
from dynabro_cli.components.plugins import Plugin

if TYPE_CHECKING:
    from dynabro_cli.components import Entry

ROOT = Path(__file__).parents[1]
KINDS = ("aggregators", "attacks", "methods", "models", "partitions", "pre_aggregators", "switching", "tasks")
"""The packages of components."""
ENGINE = "engine"
ENGINE_FILES = (
    *("simulation/**/*.py", "gradients/**/*.*pp", "gradients/**/*.py", "vectors/*.*pp", "vectors/*.py", "machine/*.*pp"),
    *("experiment/build.py", "experiment/complete.py", "streams.py"),
    *(f"{kind}/{name}" for kind in KINDS for name in ("_api.py", "*.*pp")),
    "pre_aggregators/_chain.py",
)
"""Patterns of the engine's files: all computing code that is not a component, C++ included."""
NAME = re.compile(rf"({'|'.join(KINDS)})/[A-Za-z0-9][A-Za-z0-9._-]*|{ENGINE}")
DIGITS = 12
"""Hexadecimal digits of a digest: 48 bits tell the versions of a file apart, and a stored run has some eight digests."""
DIGEST = re.compile(rf"[0-9a-f]{{{DIGITS}}}")
IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+(\S+)[ \t]+import[ \t]+(\([^)]*\)|.*)|import[ \t]+(.+))", re.MULTILINE)
MOST_SHOWN = 4


def keep_sources() -> None:
    """Read the package's files now, before they are imported, so that later edits do not change the digests."""
    for path in (*_engine_files(), *(file for kind in KINDS for file in (ROOT / kind).glob("*.py"))):
        _content(path)


def digests_of(components: Mapping[str, Entry[Any]]) -> str | None:
    """Return the value of the column ``code_digests`` for a run with these components; None if no source can be read.

    Args:
        components: The components by name, such as ``aggregators/cwtm``.
    """
    found = {name: of_entry(entry) for name, entry in components.items()} | {ENGINE: of_engine()}
    known = {name: digest for name, digest in found.items() if digest is not None}
    return json.dumps(known, sort_keys=True, separators=(",", ":")) if known else None


def of_entry(entry: Entry[Any]) -> str | None:
    """Return the digest of a registered component, which may belong to a user; None if its source cannot be read."""
    module = sys.modules.get(entry.factory.__module__)
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    content = getattr(getattr(module, "__loader__", None), "content", None)
    if content is not None:
        _executed.setdefault(Path(file), content)
    return of_file(Path(file))


def with_imports(plugins: Iterable[Plugin]) -> tuple[Plugin, ...]:
    """Return plugins in a form that can be sent: each file with the files beside it that it imports."""
    return tuple(Plugin(plugin.name, _sources(plugin)) if plugin.is_file else plugin for plugin in plugins)


def _sources(plugin: Plugin) -> tuple[tuple[str, bytes], ...]:
    path = Path(plugin.name)
    beside = sorted(file for file in _with_imports(path) if file.parent == path.parent and file != path)
    found = ((file.name, _content(file)) for file in beside)
    return (*plugin.sources, *((name, content) for name, content in found if content is not None))


@functools.cache
def of_file(path: Path) -> str | None:
    """Return the digest of a file with components and of its imports with components; None if a file cannot be read."""
    return _hash(_with_imports(path))


@functools.cache
def of_engine() -> str | None:
    """Return the digest of the code that all runs share; None if a file cannot be read."""
    return _hash(_engine_files())


@functools.cache
def at_hand(name: str) -> str | None:
    """Return the current digest of ``engine`` or of a component such as ``aggregators/cwtm``; None if it is unknown."""
    if name == ENGINE:
        return of_engine()
    if name in USERS:
        return of_entry(USERS[name])
    kind, _, component = name.partition("/")
    registers = f'.register("{component}"'
    usual = ROOT / kind / f"{component.replace('-', '_')}.py"
    files = (usual, *sorted((ROOT / kind).glob("*.py")))
    return next((of_file(path) for path in files if registers in re.sub(r"\(\s+", "(", _text(path))), None)


@functools.lru_cache(maxsize=4096)
def parse(text: str | None) -> dict[str, str] | None:
    """Read a value of ``code_digests``; None if it is NULL or not valid."""
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
    """Return ``changed`` without ``engine``."""
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
            found = [f"{name}: {count}" for name, count in self.components.items()]
            more = f", and {len(found) - MOST_SHOWN} more" if len(found) > MOST_SHOWN else ""
            parts.append(f"with other code: {self.changed} of {self.runs} ({', '.join(found[:MOST_SHOWN])}{more})")
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
    return CodeComparison(runs, different, dict(components.most_common()), engine, unknown)


_executed: dict[Path, bytes] = {}
"""The bytes of plugins as they were executed, even if their files have changed since."""


@functools.cache
def _content(path: Path) -> bytes | None:
    """Return a file's bytes, read once, so that a process knows its loaded code even if the file changes."""
    if path in _executed:
        return _executed[path]
    try:
        return path.read_bytes()
    except OSError:
        return None


def _text(path: Path) -> str:
    return (_content(path) or b"").decode(errors="replace")


def _hash(paths: Iterable[Path]) -> str | None:
    """Return one digest of several files, independent of their places; None without files, or if a file cannot be read."""
    contents = [_content(path) for path in paths]
    known = sorted(hashlib.sha256(content).hexdigest() for content in contents if content is not None)
    if not known or len(known) < len(contents):
        return None
    return hashlib.sha256("".join(known).encode()).hexdigest()[:DIGITS]


@functools.cache
def _engine_files() -> frozenset[Path]:
    return frozenset(file for pattern in ENGINE_FILES for file in ROOT.glob(pattern))


def _with_imports(path: Path) -> set[Path]:
    """Return a component's file, and the files that it imports (directly or not), if they belong to a user or to components."""
    found: set[Path] = set()
    waiting = [path]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            files = (_file(path.parent, name) for name in _imports(_text(path)))
            waiting += [file for file in files if file is not None and _holds_components(file)]
    return found


def _imports(text: str) -> Iterator[str]:
    """Yield the modules that a file imports, with leading dots if relative; of ``from a import b`` both ``a`` and ``a.b``."""
    for module, names, modules in IMPORT.findall(text):
        if module:
            yield module
        for name in (names or modules).strip("()").split(","):
            word = name.split("#")[0].split()[:1]
            yield from (f"{module}{'' if module.endswith('.') or not module else '.'}{one}" for one in word)


@functools.cache
def _file(folder: Path, name: str) -> Path | None:
    """Return the file of a module that a file in ``folder`` imports as ``name``; None if it belongs to another program."""
    parts = name.lstrip(".").split(".")
    level = len(name) - len(name.lstrip("."))
    top = _package(folder)
    above = (folder, *folder.parents)
    if level:
        start = above[min(level, len(above)) - 1]
    elif parts[0] in (ROOT.name, top and top.name):
        start = (ROOT if parts[0] == ROOT.name else top or ROOT).parent
    elif top is None and len(parts) == 1:
        start = folder
    else:
        return None
    file = start.joinpath(*parts[:-1], f"{parts[-1]}.py")
    return file if file.is_file() else None


@functools.cache
def _package(folder: Path) -> Path | None:
    """Return the folder of the outermost package that a folder is in; None if it is not in a package."""
    if not (folder / "__init__.py").is_file():
        return None
    return _package(folder.parent) or folder


def _holds_components(path: Path) -> bool:
    return not path.is_relative_to(ROOT) or (path.relative_to(ROOT).parts[0] in KINDS and path not in _engine_files())
