"""Source files as data: a digest of what each one says, and the modules that it imports.

The digest is of the syntax tree without docstrings, so that comments, layout and documentation do not change it. The tree is
written in a form that is the same in every version of Python.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import platformdirs

FORM = 1
"""Version of the form that is hashed; part of every digest."""
DIGITS = 16
MOST_REMEMBERED = 2000
DOCUMENTATION = {"parameter": "help", "register": "reference"}
"""Functions of ``components`` with an argument that only documents."""
MEANINGLESS = ("ctx", "type_comment", "type_ignores")
"""Fields of the tree that follow from the others, or that nobody executes."""


class Source(NamedTuple):
    """One file.

    Attributes:
        digest: Digest of what it says, in hexadecimal.
        imports: The modules that it imports, with leading dots if relative; of ``from a import b`` both ``a`` and ``a.b``.
        registers: The names under which it registers components.
    """

    digest: str
    imports: tuple[str, ...]
    registers: tuple[str, ...]


class SourceReader:
    """Reads source files; each is read once, so that a process knows the code that it has loaded, whatever becomes of the file.

    Args:
        memory: A file that keeps what is known of sources, by the digest of their bytes, from one process to the next.
    """

    def __init__(self, memory: Path) -> None:
        self._memory = memory
        self._bytes: dict[Path, bytes | None] = {}
        self._sources: dict[Path, Source | None] = {}
        self._remembered: dict[str, Source] | None = None
        self._new: dict[str, Source] = {}

    def keep(self, folder: Path) -> None:
        """Read every file below a folder now, to be looked at later."""
        for path in folder.rglob("*.py"):
            self._read(path)

    def source(self, path: Path) -> Source | None:
        """Return what is known of a file; None if it cannot be read, or is not valid Python."""
        if path not in self._sources:
            content = self._read(path)
            self._sources[path] = None if content is None else self._look_up(content)
        return self._sources[path]

    def remember(self) -> None:
        """Write what is new to the memory; if that fails, it is found out again next time."""
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
    """The file in the platform's cache that remembers digests."""
    return Path(platformdirs.user_cache_path("dynabro") / "source-digests.json")


def read_source(content: bytes) -> Source:
    """Read a file's content.

    Raises:
        SyntaxError, ValueError: It is not Python that this interpreter can read.
    """
    tree = ast.parse(content)
    parts = [str(FORM)]
    _write(tree, parts)
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:DIGITS]
    return Source(digest, tuple(sorted(_imports(tree))), tuple(_registers(tree)))


def combined(digests: Iterable[str]) -> str:
    """One digest of several files, in whatever order."""
    return hashlib.sha256("\0".join(sorted(digests)).encode()).hexdigest()[:DIGITS]


def _load(memory: Path) -> dict[str, Source]:
    """What is remembered; nothing of it that is not of the form in which it is written."""
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

    Fields that newer versions of Python add are empty, and so left out, in code that older ones can read.
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
    """A list without what says nothing: texts that stand alone, documenting arguments, the ways to write an f-string."""
    if name == "body":
        return [item for item in items if not _is_text(item)]
    if name == "values" and isinstance(node, ast.JoinedStr):
        return _joined(items)
    if name == "keywords" and isinstance(node, ast.Call):
        function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return [item for item in items if getattr(item, "arg", None) != DOCUMENTATION.get(function, "")]
    return items


def _is_text(item: ast.AST) -> bool:
    return isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) and isinstance(item.value.value, str)


def _joined(items: list[ast.AST]) -> list[ast.AST]:
    """The parts of an f-string, with neighbouring texts as one and without empty ones; versions of Python differ there."""
    parts: list[ast.AST] = []
    for item in items:
        last = parts[-1] if parts else None
        if isinstance(item, ast.Constant) and isinstance(last, ast.Constant):
            parts[-1] = ast.Constant(str(last.value) + str(item.value))
        else:
            parts.append(item)
    return [item for item in parts if not (isinstance(item, ast.Constant) and item.value == "")]


def _imports(tree: ast.AST) -> Iterator[str]:
    """The modules that a file imports, those for type checkers left out."""
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
    """The names in decorators such as ``@REGISTRY.register("cwtm", ...)``."""
    for node in tree.body:
        for call in getattr(node, "decorator_list", ()):
            function = getattr(call, "func", None)
            if isinstance(function, ast.Attribute) and function.attr == "register":
                name = next(iter(call.args), None)
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    yield name.value
