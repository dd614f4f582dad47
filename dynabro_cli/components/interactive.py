"""Digest of a function of a notebook's cell or of a script: its compiled code, and the values of
the names that this code has.

Functions and classes of ``__main__`` count by their content, and so does what they read in turn;
functions and classes of modules count by their names. Numbers, texts, containers, arrays, tensors,
and the attributes of other objects count as ``pickle`` writes them. Of an object that cannot be
pickled, only the type counts.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any

from dynabro_cli.components import registry


def digest_of(function: Any, file: str | None = None) -> str:
    """Return the SHA-256 of a function and of what it reads, as hexadecimal digits.

    Of a factory that a decorator of ``dynabro_cli.plugins`` has made, the user's function counts.

    Args:
        function: The function.
        file: The digest of its file, if it has one.
    """
    digest = hashlib.sha256()
    writer = _Writer(SimpleNamespace(write=digest.update), 4)
    writer.dump((file, getattr(function, "__wrapped__", function)))
    return digest.hexdigest()


class _Writer(pickle._Pickler):
    def save(self, obj: Any, *rest: Any) -> None:
        # any object may refuse, each with another exception
        try:
            super().save(obj, *rest)  # type: ignore[misc]
        except Exception:
            super().save(str(type(obj)))  # type: ignore[misc]

    def memoize(self, obj: Any) -> None:
        # equal constants may be one object or several
        if not isinstance(obj, str | bytes | tuple):
            super().memoize(obj)  # type: ignore[misc]

    def reducer_override(self, obj: Any) -> Any:
        """Return a call and its argument that stand for an object; NotImplemented leaves the object
        to ``pickle``.
        """
        match obj:
            case CodeType():
                scope = vars(sys.modules[registry.NOTEBOOK])
                read = [scope.get(name) for name in obj.co_names]
                content: Any = obj.co_code, obj.co_names, obj.co_consts, read
            case FunctionType(__module__=registry.NOTEBOOK):
                self.memoize(obj)  # before its content, which may refer to it
                cells = [cell.cell_contents for cell in obj.__closure__ or ()]
                content = obj.__code__, obj.__defaults__, obj.__kwdefaults__, cells
            case type(__module__=registry.NOTEBOOK):
                self.memoize(obj)
                members = {
                    name: value
                    for name, value in vars(obj).items()
                    if callable(value) or not name.startswith("__")
                }
                content = obj.__bases__, members
            # a method of a class, and a function with a cache
            case object(__module__=registry.NOTEBOOK, __wrapped__=content):
                pass
            case property():
                content = obj.fget, obj.fset
            case set() | frozenset():  # whose order differs between two processes
                content = sorted(map(repr, obj))
            case object(numpy=_):  # a tensor, which pickle names by its address
                content = obj.numpy(force=True)
            case _:
                return NotImplemented
        return str, (content,)
