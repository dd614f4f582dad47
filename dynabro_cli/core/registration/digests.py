"""Digests of what computes a run's numbers: the code of each of its components, the engine, and its
data.

A digest of code is a hash of what its files compute (``syntax.py``), wherever they are in the
package; of C++ and of a user's files, all bytes count. A component's files are the file that
registers it, and the files of components' packages that this file imports. The engine is all other
computing code. Nothing is imported for a digest of code. ``same_code.json`` names digests of
earlier code that gives the same numbers. A digest of data is a hash of the arrays as the task reads
them.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynabro_cli.core import package
from dynabro_cli.core.limits import DIGEST_DIGITS as DIGITS
from dynabro_cli.core.machine.cache_folder import cache_folder
from dynabro_cli.core.machine.strangers_files import read_regular
from dynabro_cli.core.registration import METRICS as FUNCTIONS
from dynabro_cli.core.registration import USERS, interactive, syntax
from dynabro_cli.core.registration.plugins import Plugin
from dynabro_cli.core.registration.registry import NOTEBOOK

if TYPE_CHECKING:
    from dynabro_cli.core.registration import Entry

ROOT = Path(package.ROOT)
KINDS = frozenset(
    "aggregators attacks methods models partitions pre_aggregators switching tasks".split()
)
"""The packages of components."""
ENGINE = "engine"
ENGINE_NAMES = frozenset(
    "gradients simulation vectors .cpp .hpp _chain.py build.py complete.py streams.py".split()
)
"""Folders, endings and names of the engine's files. With each ``_api.py`` of components, they are
all computing code that is not a component.
"""
SAME_CODE = Path(__file__).with_name("same_code.json")
"""Table of parts: the digest of today's code, and digests of earlier code that gives the same
numbers. ``python -m benchmarks digests`` writes it.
"""
DATA = "data/"
"""The beginning of the name of a digest of data; the text of the task follows, as in
``data/npz:file=a.npz``.
"""
METRICS = "metrics/"
"""The beginning of the name of a user's function that measures models."""
NAME = re.compile(
    rf"({'|'.join(KINDS)})/[A-Za-z0-9][A-Za-z0-9._-]*|{ENGINE}|{METRICS}\w+|{DATA}[^\x00-\x1f\x7f-\x9f\ud800-\udfff]+"
)
DIGEST = re.compile(rf"[0-9a-f]{{{DIGITS}}}")
IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(\S+)[ \t]+import[ \t]+(\([^)]*\)|.*)|import[ \t]+(.+))", re.MULTILINE
)
"""Statements that import. Files are searched and not parsed, because every command that reads runs
asks for digests, and to parse all components takes longer than the rest of it.
"""


def keep_sources() -> None:
    """Read the package's files now, before they are imported, so that later edits do not change the
    digests.
    """
    for path in frozenset.union(*_files()):
        _content(path)


def digests_of(
    components: Mapping[str, Entry[Any]],
    data: Mapping[str, str | None] | None = None,
    metrics: Iterable[str] = (),
) -> str | None:
    """Return the value of the column ``code_digests`` for a run with these components; None if
    nothing is known.

    Args:
        components: The components by name, such as ``aggregators/cwtm``.
        data: The digests of the run's data, by the text of the task; None if they are not known.
        metrics: The names of the user's functions that measure the run's models.
    """
    digests = {name: of_entry(entry) for name, entry in components.items()} | {ENGINE: of_engine()}
    digests |= {f"{METRICS}{name}": at_hand(f"{METRICS}{name}") for name in metrics}
    digests |= {f"{DATA}{task}": digest for task, digest in (data or {}).items()}
    readable = {name: digest for name, digest in digests.items() if digest is not None}
    return json.dumps(readable, sort_keys=True, separators=(",", ":")) if readable else None


def of_entry(entry: Entry[Any]) -> str | None:
    """Return the digest of a registered component, which may belong to a user; None if its source
    cannot be read.
    """
    return _of_function(entry.factory)


def _of_function(function: Callable[..., Any]) -> str | None:
    module = sys.modules.get(function.__module__)
    file = getattr(module, "__file__", None)
    if function.__module__ == NOTEBOOK:
        # a script has a file, and values that are not in it, such as arguments
        return interactive.digest_of(function, file and of_file(Path(file)))[:DIGITS]
    if file is None:
        return None
    content = getattr(getattr(module, "__loader__", None), "content", None)
    if content is not None:
        _executed.setdefault(Path(file), content)
    return of_file(Path(file))


def with_imports(plugins: Iterable[Plugin]) -> tuple[Plugin, ...]:
    """Return plugins in a form that can be sent: each file with the files beside it that it
    imports.
    """
    return tuple(
        Plugin(plugin.name, _sources(plugin)) if plugin.is_file else plugin for plugin in plugins
    )


def _sources(plugin: Plugin) -> tuple[tuple[str, bytes], ...]:
    path = Path(plugin.name)
    beside = sorted(
        file for file in _with_imports(path) if file.parent == path.parent and file != path
    )
    contents = ((file.name, _content(file)) for file in beside)
    return (
        *plugin.sources,
        *((name, content) for name, content in contents if content is not None),
    )


@functools.cache
def of_file(path: Path) -> str | None:
    """Return the digest of a file with components and of its imports with components; None if a
    file cannot be read.
    """
    return _hash(_with_imports(path))


@functools.cache
def of_engine() -> str | None:
    """Return the digest of the code that all runs share; None if a file cannot be read."""
    return _hash(_files()[0])


def at_hand(name: str) -> str | None:
    """Return the current digest of ``engine``, of a component such as ``aggregators/cwtm``, or of a
    function of ``metrics/``.

    None if it is unknown.
    """
    if name == ENGINE:
        return of_engine()
    if name in USERS:
        return of_entry(USERS[name])
    kind, _, component = name.partition("/")
    if kind == METRICS[:-1]:
        function = FUNCTIONS.get(component)
        return None if function is None else _of_function(function)
    file = _registered().get(name)
    return None if file is None else of_file(file)


@functools.cache
def _registered() -> dict[str, Path]:
    """Return the files of the shipped components, by names such as ``aggregators/cwtm``. The names
    are found in the files' texts, so that no file is imported.
    """
    return {
        f"{path.parent.name}/{component}": path
        for path in _files()[1]
        for component in re.findall(r'\.register\(\s*"([^"]+)"', _text(path))
    }


@functools.lru_cache(maxsize=4096)
def parse(text: str | None) -> dict[str, str] | None:
    """Read a value of ``code_digests``; None if it is NULL or not valid."""
    try:
        parsed = json.loads(text or "null")
    except (ValueError, RecursionError, TypeError):  # NULL is NaN in a data frame
        return None
    if not isinstance(parsed, dict) or not parsed:
        return None
    sound = all(
        NAME.fullmatch(name) and isinstance(value, str) and DIGEST.fullmatch(value)
        for name, value in parsed.items()
    )
    return parsed if sound else None


@functools.cache
def _same_code() -> Any:
    return json.loads(SAME_CODE.read_bytes())["parts"]


def today(stored: Mapping[str, str]) -> dict[str, str]:
    """Return a run's digests; a digest of earlier code that gives the same numbers (``SAME_CODE``)
    is replaced by today's.

    The digest of the engine is replaced only if all parts of the run are dynabro's, because a
    user's part may use what has changed in the engine.
    """
    same = dict(_same_code())
    if not all(name in same or name.startswith(DATA) for name in stored):
        same[ENGINE] = []
    return {
        name: same[name][0] if digest in same.get(name, ()) else digest
        for name, digest in stored.items()
    }


_executed: dict[Path, bytes] = {}
"""The bytes of plugins as they were executed, even if their files have changed since."""


@functools.cache
def _content(path: Path) -> bytes | None:
    """Return a file's bytes, read once, so that a process knows its loaded code even if the file
    changes.
    """
    if path in _executed:
        return _executed[path]
    try:
        return path.read_bytes()
    except OSError:
        return None


def _text(path: Path) -> str:
    return (_content(path) or b"").decode(errors="replace")


def _digest(contents: Iterable[bytes]) -> str:
    """Return one digest of several contents, whatever their order."""
    digests = sorted(hashlib.sha256(content).hexdigest() for content in contents)
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:DIGITS]


def _hash(paths: Collection[Path]) -> str | None:
    """Return one digest of several files, independent of their places; None without files, or if a
    file cannot be read.
    """
    contents = [content for content in map(_content, paths) if content is not None]
    if not contents or len(contents) < len(paths):
        return None
    # parsing the engine takes longer than many commands
    key = _digest((*contents, Path(syntax.__file__).read_bytes()))
    remembered = cache_folder() / "code" / key
    with contextlib.suppress(OSError, ValueError):
        if DIGEST.fullmatch(digest := read_regular(remembered, DIGITS).decode()):
            return digest
    digest = _digest(
        syntax.canonical(content, ROOT.name) if path.is_relative_to(ROOT) else content
        for path, content in zip(paths, contents, strict=True)
    )
    with contextlib.suppress(OSError):
        remembered.parent.mkdir(parents=True, exist_ok=True)
        remembered.write_text(digest)
    return digest


@functools.cache
def _files() -> tuple[frozenset[Path], frozenset[Path]]:
    """Return the engine's files, and the files of components, wherever they are in the package."""
    engine, components = set[Path](), set[Path]()
    for path in (*ROOT.rglob("*.py"), *ROOT.rglob("*.?pp")):
        folders = {*path.parts[len(ROOT.parts) : -1]}
        names = {path.name, path.suffix, *folders}
        if names & ENGINE_NAMES or (folders & KINDS and path.name == "_api.py"):
            engine.add(path)
        elif folders & KINDS:
            components.add(path)
    return frozenset(engine), frozenset(components)


def _with_imports(path: Path) -> set[Path]:
    """Return a component's file, and the files that it imports (directly or not), if they belong to
    a user or to components.
    """
    reached: set[Path] = set()
    waiting = [path]
    while waiting:
        path = waiting.pop()
        if path not in reached:
            reached.add(path)
            files = (_file(path.parent, name) for name in _imports(_text(path)))
            waiting += [file for file in files if file is not None and _holds_components(file)]
    return reached


def _imports(text: str) -> Iterator[str]:
    """Yield the modules that a file imports, with leading dots if relative; of ``from a import b``
    both ``a`` and ``a.b``.
    """
    for module, names, modules in IMPORT.findall(text):
        if module:
            yield module
        for name in (names or modules).strip("()").split(","):
            word = name.split("#")[0].split()[:1]
            yield from (
                f"{module}{'' if module.endswith('.') or not module else '.'}{imported}"
                for imported in word
            )


@functools.cache
def _file(folder: Path, name: str) -> Path | None:
    """Return the file of a module that a file in ``folder`` imports as ``name``; None if it belongs
    to another program.
    """
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
    """Return the folder of the outermost package that a folder is in; None if it is not in a
    package.
    """
    if not (folder / "__init__.py").is_file():
        return None
    return _package(folder.parent) or folder


def _holds_components(path: Path) -> bool:
    return path in _files()[1] or not path.is_relative_to(ROOT)
