"""Steps that a compiled function cannot contain or would not speed up, as separate operators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec

from dynabro_cli.core.lazy import torch, when_loaded

if TYPE_CHECKING:
    from torch import Tensor

P = ParamSpec("P")

INLINED = 32
"""Largest number of messages with which a function that takes them one by one becomes part of a
compiled function. The time to compile grows faster than the number: 40 messages take 7 s more than
a kernel, and are no faster.
"""


@functools.cache
def _library() -> torch.library.Library:
    return torch.library.Library("dynabro", "FRAGMENT")  # type: ignore[no-untyped-call]


def opaque(
    schema: str,
    like: Callable[P, Tensor],
    compiled: Callable[P, Tensor | None] | None = None,
    *,
    inlined: int = 0,
) -> Callable[[Callable[P, Tensor]], Callable[P, Tensor]]:
    """Decorate a function of tensors: the compiler calls it without looking into it.

    Args:
        schema: Its name, arguments and result, in the notation of ``torch.library``.
        like: Maps the same arguments to an empty tensor with the result's shape and type, for the
            compiler.
        compiled: A replacement that compiled functions call, such as a kernel. If it returns None,
            the function itself is called.
        inlined: Largest number of rows of the first argument with which the compiler looks into
            the function all the same.
    """

    def decorate(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
        name = schema.partition("(")[0]

        def implementation(*args: P.args, **kwargs: P.kwargs) -> Tensor:
            fast = None if compiled is None else compiled(*args, **kwargs)
            return function(*args, **kwargs) if fast is None else fast

        def register() -> None:
            _library().define(schema)  # type: ignore[no-untyped-call]
            _library().impl(name, implementation, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
            torch.library.register_fake(f"dynabro::{name}", like, lib=_library())

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Tensor:
            apart = torch.compiler.is_compiling()
            if apart and inlined:
                apart = args[0].shape[0] > inlined  # type: ignore[attr-defined]
            result: Tensor = (getattr(torch.ops.dynabro, name) if apart else function)(
                *args, **kwargs
            )
            return result

        when_loaded(torch, register)
        return call

    return decorate
