"""Messages of workers in the forms that Python code has them in, as one matrix and back.

The forms are a matrix [m, d] of torch or NumPy; a list with the message of each worker; and a dict
of stacked parameters [m, ...] by name, as ``torch.func.vmap(torch.func.grad(...))`` makes it. A
worker's message in a list is a tensor or an array of any shape, or its parameters: a dict such as a
``state_dict()``, or a list of arrays.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dynabro_cli.core.lazy import np, torch

if TYPE_CHECKING:
    from torch import Tensor

Restore = Callable[["Tensor"], Any]
"""Maps a vector [d] to a message in the caller's form, and vectors [k, d] to the messages of k
workers.
"""


def read(name: str, given: Any) -> tuple[Tensor, Restore]:
    """Return messages in any form as a matrix [m, d], and the way back to their form, types and
    shapes.

    Args:
        name: The argument, for errors.
        given: The messages; they are not changed, and the matrix may share their memory.

    Raises:
        TypeError: A part is neither a tensor nor an array.
        ValueError: The messages of two workers have different names or shapes, or a part's numbers
            have no legal type.
    """
    if isinstance(given, torch.Tensor):
        return given, lambda vectors: vectors.to(given.dtype)
    if not isinstance(given, Mapping | list | tuple):
        return _tensor(name, given), lambda vectors: _like(given, vectors)
    stacked = given if isinstance(given, Mapping) else _stack(name, given)
    parts = [_tensor(where, part) for where, part in _parts(name, stacked)]
    if not parts or len({(part.device, len(part)) for part in parts}) > 1:
        raise ValueError(
            f"{name} must have parameters, all on the same device and with the same number of "
            "rows, one a worker"
        )
    matrix = torch.cat([part.flatten(1) if part.ndim > 1 else part[:, None] for part in parts], 1)

    def restore(vectors: Tensor) -> Any:
        pieces = iter(torch.split(vectors, [part[0].numel() for part in parts], -1))
        shaped = _map(
            stacked,
            lambda part: _like(part, next(pieces).reshape(vectors.shape[:-1] + part.shape[1:])),
        )
        if vectors.ndim == 1 or isinstance(given, Mapping):
            return shaped
        return [_map(shaped, operator.itemgetter(row)) for row in range(len(vectors))]

    return matrix, restore


def _stack(name: str, messages: Sequence[Any]) -> Any:
    """Stack the messages of a list: a dict or list of parameters [m, ...], or the matrix itself."""
    if not messages:
        raise ValueError(f"{name} is empty; expected one message a worker")
    described = [_described(message) for message in messages]
    for row, words in enumerate(described):
        if words != described[0]:
            raise ValueError(f"{name}[{row}] has {words}, and {name}[0] has {described[0]}")
    first = messages[0]
    if isinstance(first, Mapping):
        return {
            key: _stack(f"{name}[:][{key!r}]", [message[key] for message in messages])
            for key in first
        }
    if isinstance(first, list | tuple):
        return [
            _stack(f"{name}[:][{place}]", parts)
            for place, parts in enumerate(zip(*messages, strict=True))
        ]
    if isinstance(first, torch.Tensor):
        return torch.stack(list(messages))
    return np.stack(messages) if isinstance(first, np.ndarray) else _tensor(f"{name}[0]", first)


def _described(message: Any) -> str:
    """Return what the messages of all workers must have in common."""
    if isinstance(message, Mapping):
        return f"the parameters {sorted(map(str, message))}"
    if isinstance(message, list | tuple):
        return f"{len(message)} parameters"
    shape = getattr(message, "shape", None)
    return f"the type {type(message).__name__}" if shape is None else f"the shape {list(shape)}"


def _parts(name: str, nest: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tensors and arrays of a nest, with their names."""
    if isinstance(nest, Mapping | list | tuple):
        for key, value in nest.items() if isinstance(nest, Mapping) else enumerate(nest):
            yield from _parts(f"{name}[{key!r}]", value)
    else:
        yield name, nest


def _map(nest: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to the tensors and arrays of a nest, in the order of ``_parts``."""
    if isinstance(nest, Mapping):
        return {key: _map(value, function) for key, value in nest.items()}
    return (
        [_map(value, function) for value in nest]
        if isinstance(nest, list | tuple)
        else function(nest)
    )


def _tensor(name: str, part: Any) -> Tensor:
    """Return a part of the messages as a tensor [m, ...]; raise TypeError or ValueError if it has
    no numbers.
    """
    if isinstance(part, np.ndarray) and part.dtype.kind in "biufc":
        part = torch.from_numpy(np.require(part, part.dtype.newbyteorder("="), ["C", "W"]))
    if not isinstance(part, torch.Tensor):
        kind = f"an array of {part.dtype}" if isinstance(part, np.ndarray) else type(part).__name__
        raise TypeError(
            f"{name} must be a torch tensor or a NumPy array of numbers, a list with one of "
            "them a worker, or a dict of them "
            f"by name, not {kind}; pass torch.as_tensor({name.partition('[')[0]})"
        )
    if "[" in name and not (part.is_floating_point() and part.ndim):
        raise ValueError(
            f"{name} must be floating-point numbers, not {part.dtype} {list(part.shape)}. Try: "
            "leave it out"
        )
    return part


def _like(part: Any, values: Tensor) -> Any:
    """Return values in the type of a part, for an array as an array."""
    if isinstance(part, torch.Tensor):
        return values.to(part.dtype)
    return values.detach().numpy().astype(part.dtype, copy=False)
