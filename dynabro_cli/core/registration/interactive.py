"""Digest of a value: of a function of a notebook's cell or of a script, its compiled code and the
values of the names that this code has.

Functions and classes of ``__main__`` count by their content, and so does what they read in turn;
functions and classes of modules count by their names. Numbers, texts, containers, arrays, tensors,
and the attributes of other objects count as ``pickle`` writes them. Of an object that cannot be
pickled, only the type counts.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any

from dynabro_cli.core.registration import registry


def digest_of(value: Any, file: str | None = None, scope: str = registry.NOTEBOOK) -> str:
    """Return the SHA-256 of a value and of what it reads, as hexadecimal digits.

    Of a factory that a decorator of ``dynabro_cli.plugins`` has made, the user's function counts.

    Args:
        value: A function, or anything else.
        file: The digest of its file, if it has one.
        scope: The module whose functions and classes count by their content; empty for none.
    """
    digest = hashlib.sha256()
    writer = _Writer(SimpleNamespace(write=digest.update), 5)
    writer.scope = scope
    value = getattr(value, "__wrapped__", value)
    try:
        writer.dump((file, value))
    except RecursionError:  # too many levels: of a function, its own code counts
        digest.update(getattr(value, "__code__", digest_of.__code__).co_code)
    return digest.hexdigest()


class _Writer(pickle.Pickler):
    scope = ""

    def persistent_id(self, obj: Any) -> Any:
        """Return a new object in the place of a constant: equal constants may be one object or
        several. The order of a set differs between two processes.
        """
        match obj:
            case str() | bytes():
                return repr(obj)
            case tuple():
                return list(obj)
            case set() | frozenset():
                return sorted(map(repr, obj))
        return None

    def reducer_override(self, obj: Any) -> Any:
        """Return a call without arguments, and a state that stands for the object: pickle notes an
        object before its state, which may refer to it.
        """
        content: Any
        value = obj
        try:
            match obj:
                case CodeType():
                    scope = vars(sys.modules[registry.NOTEBOOK])
                    read = [scope.get(name) for name in obj.co_names]
                    content = obj.co_code, obj.co_names, obj.co_consts, read
                case FunctionType(__module__=self.scope):
                    cells = [cell.cell_contents for cell in obj.__closure__ or ()]
                    content = obj.__code__, obj.__defaults__, obj.__kwdefaults__, cells
                case type(__module__=self.scope):
                    members = {
                        name: member
                        for name, member in vars(obj).items()
                        if callable(member) or not name.startswith("__")
                    }
                    content = obj.__bases__, members
                # a method of a class, and a function with a cache
                case object(__module__=self.scope, __wrapped__=content):
                    pass
                case property():
                    content = obj.fget, obj.fset
                case object(untyped_storage=_):  # a tensor, which pickle names by its address
                    numbers = (
                        value.detach().cpu().to_dense().reshape(-1).view(sys.modules["torch"].uint8)
                    )
                    content = str(value.dtype), list(value.shape), numbers.numpy()
                case _ if obj is str:
                    return NotImplemented
                case _:
                    reduced = obj.__reduce_ex__(5)
                    content = [list(x) if isinstance(x, Iterator) else x for x in reduced]
        # any object may refuse, each with another exception; functions, classes and modules do
        except Exception:
            names = "__module__", "__qualname__", "__name__"
            content = str(type(obj)), [getattr(obj, name, "") for name in names]
        return str, (), content
