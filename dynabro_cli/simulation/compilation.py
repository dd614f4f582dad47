"""Compile a run's hot functions by ``torch.compile``, and handle failures."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
import threading
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from dynabro_cli.errors import RunError, SpecError
from dynabro_cli.lazy import torch
from dynabro_cli.machine import native
from dynabro_cli.machine.cache_folder import cache_folder
from dynabro_cli.machine.native import check_choice

P = ParamSpec("P")
R = TypeVar("R")

COMPILE_WORK = 1e10
"""Number of values above which compiling saves time on a CPU: it saves some 1.2 ns per value, and costs 12 s the first time."""

COMPILE_ROUNDS = 30_000
"""Number of rounds above which compiling saves time on a GPU: it saves some 1 ms of launches per round, and costs 20 to 60 s.

The number is estimated, not measured. The step ``twice`` of ``python -m benchmarks gpu`` measures a run both ways.
"""

KERNEL_AGGREGATES = 200
"""Number of aggregates of a run above which a rule's kernel is compiled: this takes 1 s, and saves 0.3 to 1 ms per aggregate.
Later runs find the kernel in the cache.
"""

SHAPES = 64
"""Largest number of variants (shapes, numbers of arguments) of a compiled function; torch's default is 8."""


class Compiler:
    """Compiler of hot functions in this run.

    Attributes:
        enabled: True if functions are compiled now; False after a failure under ``auto``.
        on_host: True if the run computes on a CPU, so that the host may look at results between two functions.
        reason: The same in a few words.

    Args:
        choice: ``on``, ``off``, or ``auto``: on if the work is large enough and a compiler is available.
        work: Values in all aggregations of the run, m x d each; ``auto`` uses it on a CPU.
        device: The device of the run.
        rounds: Rounds of the run; ``auto`` uses them on a GPU.

    Raises:
        SpecError: Any other choice, or ``on`` without a compiler.
    """

    def __init__(self, choice: str, *, work: float, device: torch.device, rounds: float = 0) -> None:
        check_choice(choice)
        self._insist, self.on_host = choice == "on", device.type == "cpu"
        missing = None if choice == "off" else missing_tool(device)
        if self._insist and missing:
            raise SpecError(f"compile=on needs {missing}, which was not found. Try: install it, or --compile off")
        self.enabled, self.reason = True, "on"
        if choice == "off":
            self.enabled, self.reason = False, "off"
        elif choice == "auto" and (work < COMPILE_WORK if self.on_host else rounds < COMPILE_ROUNDS):
            self.enabled, self.reason = False, "off: too little work"
        elif missing:
            self.enabled, self.reason = False, f"off: no {missing.removeprefix('a ')}"

    def __call__(self, function: Callable[P, R], *, dynamic: bool | None = False) -> Callable[P, R]:
        """Return a callable that behaves like ``function`` and is compiled at the first call with each shape of its arguments.

        With ``dynamic=None``, a size that changes becomes a variable of the compiled function.

        All of ``function`` becomes one graph, so it is compiled before any part of it runs. If compiling fails, the arguments
        are unchanged, and the function runs eagerly from then on.

        Raises:
            RunError: Raised by the callable if compiling failed under ``on``. The function's own errors pass through unchanged.
        """
        if not self.enabled:
            return function
        compiled: Callable[P, R] | None = None

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            nonlocal compiled
            if compiled is None and self.enabled:
                compiled = self._compile(function, dynamic)
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

    def _compile(self, function: Callable[P, R], dynamic: bool | None) -> Callable[P, R] | None:
        """Wrap ``function`` for compiling; None if torch cannot compile here at all."""
        try:
            _prepare()
            return torch.compile(function, dynamic=dynamic, fullgraph=True)
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
    """Choose for this process if rules that are not compiled use kernels; results are equal bit for bit.

    Args:
        choice: ``on``, ``off``, or ``auto``: kernels in the cache are used, others are compiled if the work is large enough.
        aggregates: Number of aggregates of the run.
    """
    enough = choice == "on" or aggregates >= KERNEL_AGGREGATES
    native.set_first_use("leave" if choice == "off" else "compile" if enough else "cached")


def missing_tool(device: torch.device) -> str | None:
    """Return the tool that compiling for ``device`` lacks here; None if nothing is missing."""
    if device.type == "cuda":
        return None if importlib.util.find_spec("triton") else "triton"
    return None if native.compiler() else "a C++ compiler"


def _prepare() -> None:
    """Prepare torch to compile in this process; the imports are here because they take seconds."""
    cache = cache_folder() / "inductor" / native.processor()
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache))
    if native.compiler() == "clang++":  # on Linux torch looks only for g++ by default
        os.environ.setdefault("CXX", "clang++")
    import torch._dynamo.config
    import torch._inductor.config

    # compiled code has a fixed number of threads; before torch 2.15 the cache ignores the number unless it is set here
    torch._inductor.config.cpp.threads = torch.get_num_threads()
    with contextlib.suppress(ImportError):  # torch's bars make a lock between processes, of which a killed worker leaves a file
        from tqdm import tqdm

        tqdm.set_lock(threading.RLock())
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, SHAPES)
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # warns about a CUDA compiler without a GPU
    warnings.filterwarnings("ignore", message="Dynamo detected a call to a `functools.lru_cache`")  # for pure functions
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")  # from torch's modules to each other
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores", category=UserWarning)  # --precision decides this
