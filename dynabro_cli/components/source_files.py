"""Source files as data: a digest of each file's code, and the modules that it imports.

The digest covers the syntax tree without docstrings, so that comments, layout and documentation do not change it. The tree is
written in a form that is the same in every version of Python.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import platformdirs

FORM = 1
"""Version of the form that is hashed; part of every digest."""
DIGITS = 16
MOST_REMEMBERED = 2000
DOCUMENTATION = {"parameter": "help", "register": "reference"}
"""Functions of ``components`` with an argument that only documents."""
MOVED = {
    **{f"dynabro_cli.components.{name}": f"dynabro_cli.{name}" for name in ("digests", "footprint", "plugins")},
    **{f"dynabro_cli.machine.{name}": f"dynabro_cli.{name}" for name in ("devices", "host_memory", "strangers_files")},
    "dynabro_cli.simulation.problem": "dynabro_cli.simulation.problems",
}
"""First names of modules: an import counts under the first name of what it imports, so that a move changes no digest."""
LATE = {"dynabro_cli.deferred.np": ("numpy", "np")}
"""Imports at the first use, each with the module and name of the plain import that it counts as: both compute the same."""
MEANINGLESS = ("ctx", "type_comment", "type_ignores")
"""Fields of the tree that follow from the others, or that are not executed."""


class Source(NamedTuple):
    """One file.

    Attributes:
        digest: Digest of its code, in hexadecimal.
        imports: The modules that it imports, with leading dots if relative; of ``from a import b`` both ``a`` and ``a.b``.
        registers: The names under which it registers components.
    """

    digest: str
    imports: tuple[str, ...]
    registers: tuple[str, ...]


class SourceReader:
    """Read each source file once, so that a process knows the code that it has loaded, even if the file changes.

    Args:
        memory: A file that keeps results from one process to the next, by the digest of the sources' bytes.
    """

    def __init__(self, memory: Path) -> None:
        self._memory = memory
        self._bytes: dict[Path, bytes | None] = {}
        self._sources: dict[Path, Source | None] = {}
        self._remembered: dict[str, Source] | None = None
        self._new: dict[str, Source] = {}

    def keep(self, folder: Path) -> None:
        """Read every file below a folder now, for later use."""
        for path in folder.rglob("*.py"):
            self._read(path)

    def source(self, path: Path) -> Source | None:
        """Return the digest and imports of a file; None if it cannot be read, or is not valid Python."""
        if path not in self._sources:
            content = self._read(path)
            self._sources[path] = None if content is None else self._look_up(content)
        return self._sources[path]

    def content(self, path: Path) -> bytes | None:
        """Return the bytes of a file; None if it cannot be read."""
        return self._read(path)

    def take(self, path: Path, content: bytes) -> None:
        """Take ``content`` for a file's bytes, unless the file was read before."""
        self._bytes.setdefault(path, content)

    def remember(self) -> None:
        """Write new results to the memory; if that fails, they are computed again next time."""
        if not self._new:
            return
        known = {**(self._remembered or {}), **self._new}
        kept = dict(list(known.items())[-MOST_REMEMBERED:])
        part = self._memory.with_name(f"{self._memory.name}.{os.getpid()}.part")
        with contextlib.suppress(OSError):
            self._memory.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(kept), encoding="utf-8")
            part.replace(self._memory)
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        self._remembered, self._new = kept, {}

    def _read(self, path: Path) -> bytes | None:
        if path not in self._bytes:
            try:
                self._bytes[path] = path.read_bytes()
            except OSError:
                self._bytes[path] = None
        return self._bytes[path]

    def _look_up(self, content: bytes) -> Source | None:
        if self._remembered is None:
            self._remembered = _load(self._memory)
        key = f"{FORM}:{hashlib.sha256(content).hexdigest()}"
        if key not in self._remembered and key not in self._new:
            try:
                self._new[key] = read_source(content)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return None
        return self._remembered.get(key) or self._new[key]


def default_memory() -> Path:
    """Return the file in the platform's cache that remembers digests."""
    return Path(platformdirs.user_cache_path("dynabro") / "source-digests.json")


def read_source(content: bytes) -> Source:
    """Read a file's content.

    Raises:
        SyntaxError, ValueError: This interpreter cannot parse it.
    """
    tree = ast.parse(content)
    parts = [str(FORM)]
    _write(tree, parts)
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:DIGITS]
    return Source(digest, tuple(sorted(_imports(tree))), tuple(_registers(tree)))


def combined(digests: Iterable[str]) -> str:
    """Return one digest of several files, in any order."""
    return hashlib.sha256("\0".join(sorted(digests)).encode()).hexdigest()[:DIGITS]


def _load(memory: Path) -> dict[str, Source]:
    """Return the remembered results; entries of another form are skipped."""
    try:
        found = json.loads(memory.read_text(encoding="utf-8"))
        return {
            str(key): Source(str(digest), tuple(map(str, imports)), tuple(map(str, registers)))
            for key, (digest, imports, registers) in found.items()
        }
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _write(node: ast.AST, parts: list[str]) -> None:
    """Append a tree: class names, fields that have a value, and constants in ASCII.

    Fields that newer versions of Python add are empty, and therefore skipped, in code that older versions can read.
    """
    parts.append(type(node).__name__)
    if isinstance(node, ast.Constant):
        parts.append(ascii(node.value))
        return
    for name in sorted(node._fields):
        value = getattr(node, name, None)
        if value is None or name in MEANINGLESS:
            continue
        items = _trimmed(node, name, value) if isinstance(value, list) else [value]
        if items:
            parts.append(f"{name}:{len(items)}")
        for item in items:
            if isinstance(item, ast.AST):
                _write(item, parts)
            else:
                parts.append(ascii(item))


def _trimmed(node: ast.AST, name: str, items: list[ast.AST]) -> list[ast.AST]:
    """Return a list without meaningless parts: standalone texts, documenting arguments, variants of f-strings."""
    if name == "body":
        return _unmoved(item for item in items if not _is_text(item))
    if name == "values" and isinstance(node, ast.JoinedStr):
        return _joined(items)
    if name == "keywords" and isinstance(node, ast.Call):
        function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return [item for item in items if getattr(item, "arg", None) != DOCUMENTATION.get(function, "")]
    return items


def _unmoved(items: Iterable[ast.AST]) -> list[ast.AST]:
    """Return a body in which imports of moved modules, and late imports, have the name and the place that they first had."""
    found: list[ast.AST] = []
    for ours, group in itertools.groupby(items, _is_import_of_ours):
        block: list[Any] = list(group)
        found += _as_first(block) if ours else block
    return found


def _as_first(block: list[ast.ImportFrom]) -> Sequence[ast.AST]:
    plain: list[ast.AST] = []
    names: dict[str, list[ast.alias]] = {}
    moved = False
    for item in block:
        for alias in item.names:
            if f"{item.module}.{alias.name}" in LATE:
                plain.append(ast.Import([ast.alias(*LATE[f"{item.module}.{alias.name}"])]))
                continue
            whole = MOVED.get(f"{item.module}.{alias.name}")
            module = whole.rpartition(".")[0] if whole else MOVED.get(item.module or "", item.module or "")
            moved = moved or module != item.module
            names.setdefault(module, []).append(alias)
    if not moved and not plain:
        return block
    return [*plain, *(ast.ImportFrom(module, names[module], 0) for module in sorted(names))]


def _is_import_of_ours(item: ast.AST) -> bool:
    return isinstance(item, ast.ImportFrom) and (item.module or "").partition(".")[0] == "dynabro_cli"


def _is_text(item: ast.AST) -> bool:
    return isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) and isinstance(item.value.value, str)


def _joined(items: list[ast.AST]) -> list[ast.AST]:
    """Return the parts of an f-string, with adjacent texts joined and without empty ones; versions of Python differ there."""
    parts: list[ast.AST] = []
    for item in items:
        last = parts[-1] if parts else None
        if isinstance(item, ast.Constant) and isinstance(last, ast.Constant):
            parts[-1] = ast.Constant(str(last.value) + str(item.value))
        else:
            parts.append(item)
    return [item for item in parts if not (isinstance(item, ast.Constant) and item.value == "")]


def _imports(tree: ast.AST) -> Iterator[str]:
    """Yield the modules that a file imports, except for type checkers."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield base
            yield from (base + ("" if base.endswith(".") else ".") + alias.name for alias in node.names)
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)


def _registers(tree: ast.Module) -> Iterator[str]:
    """Yield the names in decorators such as ``@REGISTRY.register("cwtm", ...)``."""
    for node in tree.body:
        for call in getattr(node, "decorator_list", ()):
            function = getattr(call, "func", None)
            if isinstance(function, ast.Attribute) and function.attr == "register":
                name = next(iter(call.args), None)
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    yield name.value
