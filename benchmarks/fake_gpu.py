"""A fake GPU: tensors with shapes, types and devices, but without values.

CPU tensors are real. Tensors on ``cuda`` are torch's fake tensors, so that an operation on two
devices raises as on a GPU. An operation that would make the host wait for the GPU raises
``HiddenWaitError``, unless it is ``allowed``; then every value is 1.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from dynabro_cli.core.machine import gpu_kernels

aten = torch.ops.aten
VALUES = (
    aten._local_scalar_dense.default,
    aten.item.default,
    aten.is_nonzero.default,
    aten.equal.default,
)
PICKS = (aten.index.Tensor, aten.index_select.default, aten.gather.default, aten.embedding.default)
OVERWRITES = (aten.copy_.default, aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default)
SHAPES = (
    aten.nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.unique_dim.default,
)


class HiddenWaitError(AssertionError):
    """The host reads a value of the GPU, and waits for everything before it."""


class _NoDriver(FakeTensorMode):
    """Torch's mode, which uses no driver, although dynabro sees a GPU."""

    avoid_device_init = True  # type: ignore[assignment]


class FakeGPU(TorchDispatchMode):
    """Compute with real CPU tensors, and follow the shapes and devices of tensors on ``cuda``.

    Attributes:
        counts: Operations on the GPU since the last ``counted``, by name; Triton's kernels are
            ``triton::NAME``.
        moved: Bytes that the operations since the last ``counted`` read and wrote; see ``traffic``.
        follows: Torch's mode that follows shapes and devices.
        sent: Tensors of the CPU that were sent to the GPU.
    """

    # torch initialises no device while such a mode exists
    _mode_key = torch._C._TorchDispatchModeKey.FAKE

    def __init__(self) -> None:
        super().__init__()
        self.follows = _NoDriver(allow_non_fake_inputs=True)
        with self.follows:
            pass  # torch's guard of devices then uses no driver
        self._allowed = False
        self.counts: dict[str, int] = {}
        self.moved = 0
        self.sent = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        on_gpu = any(isinstance(leaf, FakeTensor) for leaf in leaves)
        to = kwargs.get("device")
        target = None if to is None else torch.device(to).type
        if not on_gpu and target != "cuda":
            return func(*args, **kwargs)
        if func is aten.is_set_to.default:  # torch's mode does not know it
            return _place(args[0]) == _place(args[1])
        self._check_sending(func, args, kwargs)
        if on_gpu:
            host = target == "cpu" or (
                func is aten.copy_.default and not isinstance(args[0], FakeTensor)
            )
            if func in VALUES or host:
                return self._read(func, args)
            if func in SHAPES or self._masked(func, args):
                raise HiddenWaitError(f"{func}: the shape of the result depends on values")
        name = func.name()
        self.counts[name] = self.counts.get(name, 0) + 1
        with self.follows:
            result = func(*args, **kwargs)
        self.moved += 0 if _is_free(name) else traffic(func, args, kwargs, result)
        return result

    def launch(self, kernel: Any, _: object, *arguments: object, **constants: object) -> None:
        """Count a launch of a Triton kernel, which reads or writes each of its tensors once."""
        name = f"triton::{kernel.fn.__name__}"
        self.counts[name] = self.counts.get(name, 0) + 1
        self.moved += sum(map(_size, arguments))

    def _read(self, func: Any, args: Any) -> Any:
        if not self._allowed:
            raise HiddenWaitError(f"{func}: the host reads values of the GPU")
        if func is aten.copy_.default:
            return args[0].fill_(1)
        if func in (aten.equal.default, aten.is_nonzero.default):
            return True
        source = args[0]
        if func in VALUES:
            return True if source.dtype == torch.bool else 1.0 if source.is_floating_point() else 1
        return torch.ones(source.shape, dtype=source.dtype)

    def _check_sending(self, func: Any, args: Any, kwargs: Any) -> None:
        """Raise if the host waits until a tensor has been sent to the GPU."""
        to = func is aten._to_copy.default and not kwargs.get("non_blocking", False)
        into = func is aten.copy_.default and not (len(args) > 2 and args[2])
        either = func in (aten._to_copy.default, aten.copy_.default)
        source = None if not either else args[0] if func is aten._to_copy.default else args[1]
        self.sent += isinstance(source, Tensor) and not isinstance(source, FakeTensor)
        sent = args[0] if to else args[1] if into else None
        if (
            not self._allowed
            and isinstance(sent, Tensor)
            and not isinstance(sent, FakeTensor)
            and (sent.ndim or to)
        ):
            raise HiddenWaitError(f"{func}: the host waits until a tensor of it is on the GPU")

    @staticmethod
    def _masked(func: Any, args: Any) -> bool:
        """Return True for indices that are masks; the host does not know their number of places."""
        if func not in (aten.index.Tensor, aten.index_put_.default, aten.index_put.default):
            return False
        return any(
            isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)
            for index in args[1]
        )

    @contextlib.contextmanager
    def allowed(self, yes: bool = True) -> Iterator[None]:
        """Allow the host to read values, which are all 1; or forbid it."""
        before, self._allowed = self._allowed, yes
        try:
            yield
        finally:
            self._allowed = before

    def counted(self) -> dict[str, int]:
        """Return the operations since the last call, by name, and reset the counts."""
        found, self.counts, self.moved = self.counts, {}, 0
        return found


class Current:
    """The current GPU, in the place of ``torch.cuda.device``."""

    index = 0

    def __init__(self, device: Any) -> None:
        self._index, self._before = torch.device(device).index or 0, 0

    def __enter__(self) -> None:
        self._before, Current.index = Current.index, self._index

    def __exit__(self, *_: object) -> None:
        Current.index = self._before


@contextlib.contextmanager
def one_gpu(devices: int = 1, obstacle: str | None = None) -> Iterator[FakeGPU]:
    """Make torch find one GPU, or several, whose tensors have no values, and which Triton's kernels
    run on if it is installed.

    ``obstacle`` is why Triton's kernels do not run there.
    """
    mode = FakeGPU()  # before torch finds a GPU, so that it asks no driver about it
    found: dict[str, Callable[..., object]] = {
        "is_current_stream_capturing": lambda: False,
        "is_available": lambda: True,
        "device_count": lambda: devices,
        "device": Current,
        "current_device": lambda: Current.index,
        "get_device_capability": lambda *_: (9, 0),
        "get_arch_list": lambda: ["sm_90"],
        "get_device_name": lambda *_: "a GPU that is not there",
        "mem_get_info": lambda *_: (100 << 30, 140 << 30),
    }
    lifts = torch._C._only_lift_cpu_tensors()
    before = torch.are_deterministic_algorithms_enabled()
    with contextlib.ExitStack() as stack:
        for name, answer in found.items():
            stack.enter_context(patch.object(torch.cuda, name, answer))
        stack.enter_context(patch.object(gpu_kernels, "launch", mode.launch))
        why = obstacle or (None if find_spec("triton") else "no triton")
        stack.enter_context(patch.object(gpu_kernels, "obstacle", lambda _: why))
        # nothing can be compared without values
        stack.enter_context(patch.object(gpu_kernels, "trial", lambda _: {}))
        stack.enter_context(
            patch.object(gpu_kernels, "checked", lambda _, __, fast, *___, **____: fast())
        )
        stack.enter_context(patch.object(torch.Tensor, "pin_memory", lambda self: self))
        stack.enter_context(patch.object(torch.Tensor, "backward", backward))
        stack.enter_context(
            patch.object(torch.__future__, "_overwrite_module_params_on_conversion", True)
        )
        # torch.tensor(..., device="cuda") makes a tensor on the CPU and sends it
        torch._C._set_only_lift_cpu_tensors(True)
        try:
            with mode:
                yield mode
        finally:
            torch._C._set_only_lift_cpu_tensors(lifts)
            torch.use_deterministic_algorithms(before)


def launches(counts: dict[str, int]) -> int:
    """Return the number of operations that compute or copy; views, empty tensors and queries launch
    nothing.
    """
    return sum(number for name, number in counts.items() if not _is_free(name))


def traffic(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    """Return the bytes that an operation has to read and write: each tensor once, and where it
    picks numbers, these.

    How a library computes the operation is not known here: a convolution may read its input several
    times.
    """
    read = [
        args[1:] if func in OVERWRITES + PICKS else args,
        [value for name, value in kwargs.items() if name != "out"],
    ]
    return sum(map(_size, tree_leaves((read, [result] if func in PICKS else [], result))))


def _place(tensor: Tensor) -> tuple[object, ...]:
    """Return where a tensor lies in memory."""
    memory = tensor.untyped_storage()._cdata
    return memory, tensor.storage_offset(), tensor.size(), tensor.stride()


def _size(value: object) -> int:
    """Return the bytes of a tensor on the GPU, without repetitions; 0 for everything else."""
    if not isinstance(value, FakeTensor):
        return 0
    return (
        math.prod(size for size, stride in zip(value.shape, value.stride(), strict=True) if stride)
        * value.element_size()
    )


@functools.cache
def _is_free(name: str) -> bool:
    if name.startswith("triton::"):
        return False
    operator, _, overload = name.partition(".")
    if operator.startswith(("prim::", "aten::empty", "aten::new_empty", "aten::_unsafe_view")):
        return True
    results = torch._C._get_schema(operator, overload).returns
    return any(
        result.alias_info is not None and not result.alias_info.is_write for result in results
    )


def on_gpu(value: Any) -> Any:
    """Return nested tensors on the fake GPU."""
    return tree_map(
        lambda leaf: leaf.to("cuda", non_blocking=True) if isinstance(leaf, Tensor) else leaf, value
    )


def devices(value: Any) -> set[str]:
    """Return the kinds of devices of the tensors with dimensions in a nested value."""
    return {leaf.device.type for leaf in tree_leaves(value) if isinstance(leaf, Tensor)}


def backward(tensor: Tensor) -> None:
    """Run the backward pass of one number; torch's own engine asks the driver for the GPU's
    streams.
    """
    root = tensor.grad_fn
    assert root is not None
    gradients: dict[Any, list[Any]] = {root: [torch.ones_like(tensor)]}
    waiting = [root]
    with torch.no_grad():
        while waiting:
            node = max(waiting, key=lambda one: one._sequence_nr())
            waiting.remove(node)
            run = getattr(node, "apply", node)
            found = run(*gradients.pop(node))
            found = found if isinstance(found, tuple) else (found,)
            # for functions in Python, only the first argument has a gradient here
            found = found[: len(node.next_functions)]
            for (following, place), gradient in zip(node.next_functions, found, strict=True):
                if following is None or gradient is None:
                    continue
                if following not in gradients:
                    gradients[following] = [None] * (place + 1)
                    waiting.append(following)
                known = gradients[following]
                known += [None] * (place + 1 - len(known))
                known[place] = gradient if known[place] is None else known[place] + gradient
