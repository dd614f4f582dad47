"""Steps that a compiled function cannot contain, or would not be faster for, as operators of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

import torch
from torch import Tensor

P = ParamSpec("P")

_LIBRARY = torch.library.Library("dynabro", "FRAGMENT")  # type: ignore[no-untyped-call]


def opaque(schema: str, like: Callable[P, Tensor]) -> Callable[[Callable[P, Tensor]], Callable[P, Tensor]]:
    """Decorate a function of tensors that the compiler is to call, and not to look into.

    Args:
        schema: Its name, arguments and result, as ``torch.library`` writes them.
        like: Maps the same arguments to an empty tensor of the result's shape and kind: what the compiler knows of it.
    """

    def decorate(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
        name = schema.partition("(")[0]
        _LIBRARY.define(schema)  # type: ignore[no-untyped-call]
        _LIBRARY.impl(name, function, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"dynabro::{name}", like, lib=_LIBRARY)
        operator = getattr(torch.ops.dynabro, name)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Tensor:
            result: Tensor = (operator if torch.compiler.is_compiling() else function)(*args, **kwargs)
            return result

        return call

    return decorate
