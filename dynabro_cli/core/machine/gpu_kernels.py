"""Triton's kernels on a GPU: if this process can launch them, if they agree with torch here, and
the function that launches them.

A kernel that fails on a GPU, or that computes something else than torch, is off: torch computes in
its place. All kernels are tried once for each GPU and version in a process of their own, because an
error can make a process unusable. Each is tried again by its first real arguments of a kind.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from dynabro_cli.core.errors import first_line
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.machine.cache_folder import cache_folder, locked
from dynabro_cli.core.machine.devices import current
from dynabro_cli.core.machine.mps import FOLDER
from dynabro_cli.core.machine.search_path import search_path
from dynabro_cli.core.package import ROOT

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
Compared = Iterable[tuple["Tensor", "Tensor", "Tensor | float"]]
"""Results of a kernel, the results of torch, and the largest legal difference of each."""

MOST_ROWS = 64
"""Most messages that a block of threads holds in its registers: one value of each, or their Gram
matrix.
"""
KERNELS = ("mean", "order", "norm", "dropout", "gm", "signguard")
DRIVER = Path("/sys/module/nvidia/version")
TRIAL_SECONDS = 300.0
TRIAL = "from dynabro_cli.simulation.kernel_trial import main; main(sys.argv[1])"
"""The program that tries all kernels, and prints a line of JSON for each."""

off: dict[str, str] = {}
"""Kernels that this process does not use, and why."""
_checked: set[Hashable] = set()
_allowed = _checks = True


@contextlib.contextmanager
def allowed(yes: bool) -> Iterator[None]:
    """Allow Triton's kernels, or leave all computations to torch."""
    global _allowed
    before, _allowed = _allowed, yes
    try:
        yield
    finally:
        _allowed = before


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Compare nothing, because the host may not wait for the GPU: what was not compared before is
    computed by torch.
    """
    global _checks
    before, _checks = _checks, False
    try:
        yield
    finally:
        _checks = before


def launch(
    kernel: Any, grid: tuple[int, ...], tensor: Tensor, *arguments: object, **constants: object
) -> None:
    """Launch ``kernel[grid](tensor, *arguments, **constants)`` on the tensor's GPU."""
    with current(tensor.device):
        kernel[grid](tensor, *arguments, **constants)


@functools.cache
def obstacle(device: torch.device) -> str | None:
    """Return why Triton's kernels cannot be launched on ``device``; None if they can.

    A kernel that does nothing is launched, once a process. The first launch compiles Triton's
    launcher, which fails without a C compiler, and compiles for this GPU and its driver, which
    fails if Triton does not know them. Then the outcome of the trial decides which kernels are off.
    """
    if device.type != "cuda":
        return "not a GPU"
    if find_spec("triton") is None:
        return "no triton"
    try:
        import triton

        @triton.jit
        def nothing(x):  # type: ignore[no-untyped-def]
            pass

        launch(nothing, (1,), torch.empty(1, device=device))
    except Exception as error:  # of Triton, of the C compiler, of a linker or of a driver
        return _line(error)
    for kernel, why in trial(device).items():
        if why:
            _switch_off(kernel, why)
    return None


def triton_works(kernel: str, *tensors: Tensor) -> bool:
    """Return True if a Triton kernel can compute from these tensors: no gradient is wanted, and
    the kernel is allowed, can be launched, and is not off.
    """
    if (
        not tensors[0].is_cuda
        or not _allowed
        or (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))
    ):
        return False
    return obstacle(tensors[0].device) is None and kernel not in off


def checked(
    kernel: str,
    kind: Hashable,
    fast: Callable[[], T],
    plain: Callable[[], T],
    *,
    bound: Callable[[], Tensor | float] = float,
    compared: Callable[[T], Compared] | None = None,
) -> T:
    """Return the result of a kernel; at its first call for a kind, only if it agrees with torch.

    Args:
        kernel: A name of ``KERNELS``.
        kind: What the kernel is compiled for, such as shapes and constants.
        fast: Computes by the kernel.
        plain: Computes the same by torch; called without Triton's kernels.
        bound: Returns the largest legal difference of a result, by default 0.
        compared: Returns what is compared, if this is not the whole result.
    """
    if (kernel, kind) in _checked:
        return fast()
    with allowed(False):
        if not _checks:
            return plain()
        try:
            result = fast()
            pairs = compared(result) if compared else [(result, plain(), bound())]
            why = next(filter(None, (_difference(*pair) for pair in pairs)), "")
        except torch.OutOfMemoryError:  # there is no room to compare, or smaller passes may help
            return fast()
        except Exception as error:  # of Triton or of a driver; a broken GPU raises again below
            why = _line(error)
        if not why:
            _checked.add((kernel, kind))
            return result
        _switch_off(kernel, why)
        return plain()


def _difference(result: Tensor, expected: Tensor, bound: Tensor | float) -> str:
    """Return the largest difference if it is too large; empty if it is not."""
    first, second = result.double(), expected.double()
    apart = torch.where(
        (first == second) | (first.isnan() & second.isnan()), 0.0, (first - second).abs()
    )
    if bool(((apart <= bound) | (apart == 0)).all()):
        return ""
    return (
        f"a result of shape {list(result.shape)} differs from torch's by {float(apart.max()):.1e}"
    )


def _switch_off(kernel: str, why: str) -> None:
    off[kernel] = why
    warnings.warn(notes()[-1], stacklevel=3)


class KernelOffError(RuntimeError):
    """A computation by a kernel has to begin again without the kernel."""


def refuse() -> NoReturn:
    """Raise KernelOffError, in the place of a computation by torch."""
    raise KernelOffError("the kernel is off")


def notes() -> tuple[str, ...]:
    """Return a line for each kernel that is off."""
    return tuple(f"without Triton's kernel {name} on this GPU: {why}" for name, why in off.items())


def _line(error: Exception) -> str:
    return first_line(f"{type(error).__name__}: {error}")[:200]


def trial(device: torch.device) -> dict[str, str]:
    """Return why each kernel is off on this GPU; empty texts for those that are not.

    The outcome is kept in the folder of caches, for the GPU, its driver, the versions and the
    kernels' code. Another process that needs it meanwhile waits.
    """
    import triton

    card = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
    driver = DRIVER.read_text() if DRIVER.exists() else ""
    key = hashlib.sha256(repr((card, driver, torch.__version__, triton.__version__)).encode())
    for path in sorted(Path(ROOT).rglob("*kernel*.py")):
        key.update(path.read_bytes())
    folder = cache_folder() / "gpu"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            return _kept(folder / f"{key.hexdigest()[:32]}.json", device)
    except OSError:  # the folder cannot be written
        return _tried(device)


def _kept(file: Path, device: torch.device) -> dict[str, str]:
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads(file.read_text()))
    outcome = _tried(device)
    if outcome:
        beside = file.with_suffix(".part")
        beside.write_text(json.dumps(outcome))
        beside.replace(file)
    return outcome


def _tried(device: torch.device) -> dict[str, str]:
    """Try all kernels in another process; return nothing if this process cannot use the GPU, which
    may be full or belong to one process only, or if it was killed.
    """
    program = f"import sys; sys.path[:] = sys.argv[2:]; {TRIAL}"
    words = [sys.executable, "-c", program, str(device), *search_path()]
    # an error in it would end the service that runs share
    environment = os.environ | {FOLDER: str(cache_folder() / "no service")}
    try:
        ended = subprocess.run(
            words, capture_output=True, env=environment, timeout=TRIAL_SECONDS, check=False
        )
        output, code, how = ended.stdout, ended.returncode, f"with code {ended.returncode}"
    except subprocess.TimeoutExpired as error:
        output, code, how = error.stdout or b"", 0, f"after {TRIAL_SECONDS:g} s"
    if not output or code == -signal.SIGKILL:
        return {}
    outcome = dict.fromkeys(KERNELS, f"its trial ended {how}")
    for line in output.splitlines():
        with contextlib.suppress(ValueError):  # another library has printed it
            outcome |= json.loads(line)
    return outcome
