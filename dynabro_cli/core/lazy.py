"""PyTorch and NumPy, imported at their first use, and values made from them equally late.

``from dynabro_cli.core.lazy import np, torch`` at the head of a module replaces imports that take
seconds. A name stands for the module itself: the first access to an attribute, or the first
``import torch`` anywhere, loads PyTorch into the same object. Once loaded, it does not differ from
the module of a plain ``import torch``.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

V = TypeVar("V")
OF_THE_IMPORT = ("__path__", "__file__", "__cached__")
"""Attributes that the import system reads before it loads a module."""


class _Deferred(ModuleType):
    """A module that is not loaded yet. Loading makes it a plain module."""

    def __getattr__(self, name: str) -> Any:
        """Load the module and return its attribute; called for a missing attribute."""
        if self.__spec__ is None or name not in OF_THE_IMPORT:
            importlib.import_module(self.__name__)  # waits while another thread loads it
        if type(self) is _Deferred:  # this thread is loading it
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} yet")
        return getattr(self, name)


class _Finder(MetaPathFinder):
    """Let the import system load a module into an existing object.

    Args:
        module: The object.

    Attributes:
        waiting: Actions, called in this order after the module is loaded.
    """

    def __init__(self, module: _Deferred) -> None:
        self._module = module
        self.waiting: list[Callable[[], object]] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the result of the other finders, with a loader that uses the object; None for any
        other module.
        """
        if fullname != self._module.__name__:
            return None
        specs = (
            finder.find_spec(fullname, path, target)
            for finder in sys.meta_path
            if finder is not self
        )
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._module, self)
        return spec


class _Loader(Loader):
    """Load a module like its own loader, but into the object that stands for it."""

    def __init__(self, real: Any, module: _Deferred, finder: _Finder) -> None:
        self._real, self._module, self._finder = real, module, finder

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the object, with the attributes that the import system reads before the module is
        loaded.
        """
        attributes = zip(
            OF_THE_IMPORT, (spec.submodule_search_locations, spec.origin, spec.cached), strict=True
        )
        self._module.__dict__.update(
            {name: value for name, value in attributes if value is not None} | {"__spec__": spec}
        )
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Load the module, make it a plain module, and call the waiting actions."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        module.__loader__ = self._real
        self._real.exec_module(module)
        if type(module) is _Deferred:
            module.__class__ = ModuleType  # type: ignore[assignment]
        sys.meta_path.remove(self._finder)
        for action in self._finder.waiting:
            action()


def deferred(name: str) -> ModuleType:
    """Return the module ``name``; if it is not loaded yet, an object that becomes the module at its
    first use.
    """
    if name in sys.modules:
        return sys.modules[name]
    for finder in sys.meta_path:
        if isinstance(finder, _Finder) and finder._module.__name__ == name:
            return finder._module
    # Not in ``sys.modules``, where importlib's LazyLoader has its modules: others look there, and
    # an access to a module that they find would load it.
    module = _Deferred(name)
    sys.meta_path.insert(0, _Finder(module))
    return module


def when_loaded(module: ModuleType, action: Callable[[], object]) -> None:
    """Call ``action`` as soon as ``module``, from ``deferred``, is loaded; at once if it is already
    loaded.
    """
    for finder in sys.meta_path:
        if isinstance(finder, _Finder) and finder._module is module:
            finder.waiting.append(action)
            return
    action()


class Late(Mapping[str, V]):
    """A mapping that is made when it is first read: ``Late(lambda: {"tick": torch.zeros(())})``."""

    def __init__(self, make: Callable[[], Mapping[str, V]]) -> None:
        self._make = make

    @functools.cached_property
    def _made(self) -> Mapping[str, V]:
        return self._make()

    def __getitem__(self, key: str) -> V:
        return self._made[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


if TYPE_CHECKING:
    import numpy  # noqa: ICN001
    import torch as torch
    from torch import nn as nn

    np = numpy
else:
    np, torch, nn = map(deferred, ("numpy", "torch", "torch.nn"))
