"""Compile a run's hot functions on a CPU by ``torch.compile``, and handle failures."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from dynabro_cli.core.errors import RunError, SpecError
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.machine import gpu_kernels, native
from dynabro_cli.core.machine.cache_folder import cache_folder
from dynabro_cli.core.machine.native import check_choice

P = ParamSpec("P")
R = TypeVar("R")

COMPILE_WORK = 1e10
"""Number of values above which compiling saves time on a CPU: it saves some 1.2 ns per value, and
costs 12 s the first time.
"""

KERNEL_AGGREGATES = 200
"""Number of aggregates of a run above which a rule's kernel is compiled: this takes 1 s, and saves
0.3 to 1 ms per aggregate. Later runs find the kernel in the cache.
"""

SHAPES = 64
"""Largest number of variants (shapes, numbers of arguments) of a compiled function; torch's default
is 8.
"""


class Compiler:
    """Compiler of hot functions in this run; on a GPU it compiles none, because Triton's kernels do
    the work.

    Attributes:
        enabled: True if functions are compiled now; False after a failure under ``auto``.
        reason: The same in a few words; on a GPU ``triton``, ``off``, or why Triton's kernels
            cannot be launched.

    Args:
        choice: ``on``, ``off``, or ``auto``: on if the work is large enough and a compiler is
            available.
        work: Values in all aggregations of the run, m x d each, for ``auto``.
        device: The device of the run.

    Raises:
        SpecError: Any other choice, or ``on`` without a compiler, or on a GPU without Triton.
    """

    def __init__(self, choice: str, *, work: float, device: torch.device) -> None:
        check_choice(choice)
        self._insist, on_host = choice == "on", device.type == "cpu"
        self.enabled, self.reason = False, "off"
        if choice == "off":
            return
        missing = missing_tool() if on_host else gpu_kernels.obstacle(device)
        if self._insist and missing:
            tool = (
                "a C++ compiler, which was not found"
                if on_host
                else f"Triton, which does not work here ({missing})"
            )
            raise SpecError(f"compile=on needs {tool}. Try: install it, or --compile off")
        if choice == "auto" and on_host and work < COMPILE_WORK:
            missing = "too little work"
        self.enabled = on_host and not missing
        self.reason = f"off: {missing}" if missing else "on" if on_host else "triton"

    def __str__(self) -> str:
        """Return the reason, and the kernels of a GPU that are off."""
        return "; ".join([self.reason, *(gpu_kernels.notes() if self.reason == "triton" else ())])

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return a callable that behaves like ``function`` and is compiled at the first call with
        each shape of its arguments.

        All of ``function`` becomes one graph, so it is compiled before any part of it runs. If
        compiling fails, the arguments are unchanged, and the function runs eagerly from then on.

        Raises:
            RunError: Raised by the callable if compiling failed under ``on``. The function's own
                errors pass through unchanged.
        """
        if not self.enabled:
            return function
        compiled: Callable[P, R] | None = None

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            nonlocal compiled
            if compiled is None and self.enabled:
                compiled = self._compile(function)
            if compiled is None or not self.enabled:
                return function(*args, **kwargs)
            from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

            try:
                return compiled(*args, **kwargs)
            except (TorchDynamoException, FailOnRecompileLimitHit) as error:
                failure = error
            result = function(*args, **kwargs)  # if this raises, compiling was not the problem
            self._give_up(failure)
            return result

        return call

    def _compile(self, function: Callable[P, R]) -> Callable[P, R] | None:
        """Wrap ``function`` for compiling; None if torch cannot compile here at all."""
        try:
            _prepare()
            return torch.compile(function, dynamic=False, fullgraph=True)
        except Exception as error:  # an error in torch's own modules: the function has not run yet
            self._give_up(error)
        return None

    def _give_up(self, error: Exception) -> None:
        """Stop compiling; raise RunError if the user asked for ``on``."""
        cause = getattr(error, "inner_exception", error)
        name = type(cause).__name__
        if self._insist:
            line = (str(cause).strip().splitlines() or [""])[0]
            raise RunError(f"compiling failed ({name}: {line}). Try: --compile off") from error
        self.enabled, self.reason = False, f"off: {name}"


def use_kernels(choice: str, aggregates: float) -> None:
    """Choose for this process if rules that are not compiled use kernels; results are equal bit for
    bit.

    Args:
        choice: ``on``, ``off``, or ``auto``: kernels in the cache are used, others are compiled if
            the work is large enough.
        aggregates: Number of aggregates of the run.
    """
    enough = choice == "on" or aggregates >= KERNEL_AGGREGATES
    native.set_first_use("leave" if choice == "off" else "compile" if enough else "cached")


def missing_tool() -> str | None:
    """Return why functions cannot be compiled for a CPU here; None if they can."""
    return None if native.compiler() else native.no_compiler()


def _prepare() -> None:
    """Prepare torch to compile in this process; the imports are here because they take seconds."""
    cache = cache_folder() / "inductor" / native.processor()
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache))
    if native.compiler() == "clang++":  # on Linux torch looks only for g++ by default
        os.environ.setdefault("CXX", "clang++")
    import torch._dynamo.config
    import torch._inductor.config

    # compiled code has a fixed number of threads; before torch 2.15 the cache ignores the number
    # unless it is set here
    torch._inductor.config.cpp.threads = torch.get_num_threads()
    # a user's function draws the same numbers compiled or not; torch would draw others in its place
    torch._inductor.config.fallback_random = True
    torch._dynamo.config.use_numpy_random_stream = True
    # torch's bars make a lock between processes, of which a killed worker leaves a file
    with contextlib.suppress(ImportError):
        from tqdm import tqdm

        tqdm.set_lock(threading.RLock())
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, SHAPES)
    # warns about a CUDA compiler without a GPU
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    # for pure functions
    warnings.filterwarnings("ignore", message="Dynamo detected a call to a `functools.lru_cache`")
    # from torch's modules to each other
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    # --precision decides this
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores", category=UserWarning)
