"""C++ kernels, compiled for this machine when they are first needed, and cached.

A kernel is one source file with numbers (sizes) that are fixed at compile time; it may include
``team.hpp``. It is loaded with ctypes and uses only torch's threads: ``team`` is the function of
torch's OpenMP runtime that starts them. ``library_of`` is for kernels without sizes; ``Library``
calls the functions of a kernel with tensors.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from dynabro_cli.core.errors import SpecError, first_line
from dynabro_cli.core.machine.cache_folder import cache_folder
from dynabro_cli.core.machine.macos import is_stub

CHOICES = ("auto", "on", "off")
"""Values of the option ``--compile``."""
SECONDS = 120.0
"""Time limit of the compiler for one kernel."""

_FLAGS = ("-std=c++17", "-O3", "-ffp-contract=fast", "-fPIC", "-shared")
_NATIVE = {"x86_64": ("-march=native", "-mprefer-vector-width=512"), "AMD64": ("-march=native",)}
HEADER = Path(__file__).with_name("team.hpp")


class NativeError(Exception):
    """A kernel could not be compiled or loaded; the message says why in a few words."""


class Kernel:
    """A source file and its fixed numbers, such as ``{"C": 20, "H": 12}``."""

    def __init__(self, source: Path, numbers: Mapping[str, int]) -> None:
        self.source = source
        self.defines = tuple(f"-D{name}={value}" for name, value in sorted(numbers.items()))

    def load(self) -> ctypes.CDLL:
        """Return the loaded library; compile it now unless the cache or this process has it.

        Raises:
            NativeError: No compiler was found, it failed or took longer than ``SECONDS``, or its
                result does not load.
        """
        return _load(self.source, self.defines)

    def at_hand(self) -> ctypes.CDLL | None:
        """Return the library for functions that are not compiled and that torch can also compute;
        None to leave them to torch.

        None is returned if ``set_first_use`` forbids the kernel, or if it cannot be loaded.
        """
        return (
            None
            if _first_use == "leave"
            else _at_hand(self.source, self.defines, _first_use == "compile")
        )


FirstUse = Literal["compile", "cached", "leave"]
# belongs to the process, like torch's number of threads: every run sets it
_first_use: FirstUse = "compile"


def set_first_use(choice: FirstUse) -> None:
    """Set for this process if a needed kernel is compiled, only taken from the cache, or not
    used.
    """
    global _first_use
    _first_use = choice


@functools.cache
def _at_hand(source: Path, defines: tuple[str, ...], compiles: bool) -> ctypes.CDLL | None:
    try:
        return _load(source, defines) if compiles else _cached(source, defines)
    except NativeError:
        return None


def load_all(kernels: Sequence[Kernel]) -> list[ctypes.CDLL]:
    """Load several kernels; missing ones are compiled at the same time.

    Raises NativeError if one of them cannot be loaded.
    """
    if len(kernels) < 2:
        return [kernel.load() for kernel in kernels]
    import concurrent.futures  # needed only to call a compiler, but every command loads this module

    with concurrent.futures.ThreadPoolExecutor(len(kernels)) as pool:
        return list(pool.map(Kernel.load, kernels))


def compiler() -> str | None:
    """Return the C++ compiler to use, as the words of a command: ``CXX``, or the first known
    compiler on the path; None without a compiler.
    """
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
    return next(
        (
            name
            for name in names
            if shutil.which(_words(name)[0]) and not any(map(is_stub, _words(name)))
        ),
        None,
    )


def no_compiler() -> str:
    """Return why there is no compiler."""
    given = os.environ.get("CXX")
    return f"CXX={given}: there is no such compiler" if given else "no C++ compiler"


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command) or [command]
    except ValueError:  # a quotation mark that is not closed
        return [command]


@functools.cache
def _cpu_lines() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def cpu_name() -> str:
    """Return the system's name of the processor, such as ``AMD EPYC 7R13``."""
    names = (line.partition(":")[2] for line in _cpu_lines() if line.startswith("model name"))
    return next(names, platform.processor()).strip() or platform.machine()


def processor() -> str:
    """Return a name for this kind of processor: compiled code serves one kind, but several machines
    may share a home folder.
    """
    about = ("model name", "flags", "CPU part", "Features")
    kinds = sorted({line for line in _cpu_lines() if line.startswith(about)})
    name = "\n".join(kinds) or f"{platform.processor()} {platform.platform()}"
    return f"{platform.machine()}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


@functools.cache
def team() -> ctypes.c_void_p | None:
    """Return ``GOMP_parallel`` of the OpenMP runtime that torch uses, so that all share one pool of
    threads.

    Return None if torch's runtime has no such function.
    """
    import torch

    try:  # a symbol is searched for in the library and in the libraries that it has loaded
        function = ctypes.CDLL(torch._C.__file__).GOMP_parallel
    except (OSError, AttributeError):
        return None
    return ctypes.cast(function, ctypes.c_void_p)


@functools.cache
def _load(source: Path, defines: tuple[str, ...]) -> ctypes.CDLL:
    command, name, folder = _plan(source, defines)
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="dynabro-") as private:
            return _open(_compile(command, source, Path(private), name))
    try:
        return _open(_in_cache(folder, name) or _compile(command, source, folder, name))
    except OSError as error:
        raise NativeError(f"the cache {folder} failed: {error.strerror or error}") from error


def _cached(source: Path, defines: tuple[str, ...]) -> ctypes.CDLL | None:
    """Return the loaded library if it is in the cache."""
    _, name, folder = _plan(source, defines)
    library = None if folder is None else _in_cache(folder, name)
    return None if library is None else _open(library)


def _plan(source: Path, defines: tuple[str, ...]) -> tuple[Sequence[str], str, Path | None]:
    """Return the compiler's command, the start of the library's name in the cache, and the cache if
    it can be used.
    """
    cxx = compiler()
    if cxx is None:
        raise NativeError(no_compiler())
    command = (
        *_words(cxx),
        *_FLAGS,
        *_NATIVE.get(platform.machine(), ()),
        *defines,
        f"-I{HEADER.parent}",
    )
    texts = [path.read_text(encoding="utf-8") for path in (source, HEADER)]
    key = hashlib.sha256(
        # without -I: the header's text counts, not the folder of this installation
        repr((texts, command[:-1], _version(cxx), processor())).encode()
    ).hexdigest()
    return command, f"{source.stem}-{key[:32]}", _cache()


def _in_cache(folder: Path, name: str) -> Path | None:
    """Return a library in the cache that is whole: the end of its name is its digest."""
    libraries = sorted(folder.glob(f"{name}-*.so"))
    return next((path for path in libraries if path.stem.endswith(f"-{_digest(path)}")), None)


def _open(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeError(f"the compiled kernel does not load ({first_line(error)})") from error


@functools.cache
def _version(cxx: str) -> str:
    """Identify the compiler: its path and the output of ``--version``."""
    program, *words = _words(cxx)
    path = os.path.realpath(shutil.which(program) or program)
    return "\n".join([path, *words, _run([program, *words, "--version"], 20.0)])


def _run(command: Sequence[str], seconds: float) -> str:
    """Return the output of a command; kill it with all its children if it takes too long or is
    interrupted.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # a separate group, so that the compiler's children can be killed with it
            start_new_session=True,
        )
    except OSError as error:
        raise NativeError(f"{command[0]} does not start: {error.strerror}") from error
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise NativeError(f"{command[0]} took longer than {seconds:g} s") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode:
        errors = [line for line in output.splitlines() if "error" in line]
        raise NativeError(
            f"{command[0]} failed: {(errors or output.splitlines() or ['no message'])[0][:200]}"
        )
    return output


def _compile(command: Sequence[str], source: Path, folder: Path, name: str) -> Path:
    """Compile under a temporary name and rename, so that no process ever sees half a library;
    return the library's path.

    The name contains the SHA-256 of the library, so that damage is detected.
    """
    handle, temporary = tempfile.mkstemp(prefix=f"{name}.", suffix=".tmp", dir=folder)
    os.close(handle)
    try:
        _run([*command, str(source), "-o", temporary], SECONDS)
        os.chmod(temporary, 0o700)
        path = folder / f"{name}-{_digest(Path(temporary))}.so"
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return path


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:32]


def _cache() -> Path | None:
    """Return the folder of compiled kernels; None if it cannot be written, or if others could
    change the files, which are code.
    """
    folder = cache_folder() / "native" / processor()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.stat()
    except OSError:
        return None
    private = state.st_uid == os.geteuid() and not state.st_mode & 0o022
    return folder if private and os.access(folder, os.W_OK | os.X_OK) else None


class Library:
    """Functions of a loaded kernel: tensors (or None) are passed as pointers, integers as ``long``,
    and floats as ``double``.

    A list of integers is an array of ``long``; values of ctypes are passed unchanged.

    Args:
        loaded: The kernel.
    """

    def __init__(self, loaded: ctypes.CDLL) -> None:
        self._loaded = loaded

    @property
    def threads(self) -> int:
        """The number of threads that ``run`` passes to a function."""
        import torch

        return torch.get_num_threads() if team() is not None else 1

    def run(self, name: str, *arguments: object) -> None:
        """Call a function whose first arguments are ``team`` and the number of threads."""
        getattr(self._loaded, name)(team(), ctypes.c_long(self.threads), *map(_as_c, arguments))

    def number(self, name: str, *arguments: object) -> int:
        """Call a function that returns a ``long``, or nothing, on this thread."""
        function = getattr(self._loaded, name)
        function.restype = ctypes.c_long
        return int(function(*map(_as_c, arguments)))


def _as_c(value: Any) -> Any:
    if isinstance(value, int):
        return ctypes.c_long(value)
    if isinstance(value, float):
        return ctypes.c_double(value)
    if isinstance(value, list):
        return (ctypes.c_long * len(value))(*value)
    return ctypes.c_void_p(value.data_ptr()) if hasattr(value, "data_ptr") else value


@functools.cache
def library_of(source: Path) -> Library | None:
    """Compile and load a kernel without sizes; None if that fails."""
    try:
        return Library(Kernel(source, {}).load())
    except NativeError:
        return None


def check_choice(choice: str) -> None:
    """Raise SpecError if ``choice``, a value of ``--compile``, is not one of ``CHOICES``."""
    if choice not in CHOICES:
        raise SpecError(
            f"compile={choice} is not legal. Try: --compile with {' or '.join(CHOICES)}"
        )
