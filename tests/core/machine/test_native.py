"""Compiling kernels: the cache, and everything that can go wrong with a compiler."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dynabro_cli.core.machine import native
from dynabro_cli.core.machine.native import Kernel, NativeError

pytestmark = pytest.mark.thorough

REAL = native.compiler()
needs_compiler = pytest.mark.skipif(REAL is None, reason="there is no C++ compiler")
SMALL = Path("small.cpp")
"""The source of a small kernel, in a folder of each test's own."""
SOURCE = 'extern "C" long answer() { return ANSWER; }\n'


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A home of the test's own, with the source of a small kernel; returns the cache's folder."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    monkeypatch.setattr(sys.modules[__name__], "SMALL", tmp_path / "small.cpp")
    SMALL.write_text(SOURCE)
    forget()
    yield home / "dynabro" / "native" / native.processor()
    forget()
    native.set_first_use("compile")  # as it is when a process begins


def forget() -> None:
    """Let this process find nothing that it has loaded or asked before."""
    native._load.cache_clear()
    native._at_hand.cache_clear()
    native._version.cache_clear()


def answer(number: int) -> int:
    forget()
    return int(Kernel(SMALL, {"ANSWER": number}).load().answer())


def compiler_that(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> Path:
    """Make ``CXX`` a shell script with ``script`` behind the answer to --version; returns a log of
    its calls.
    """
    program, log = folder / "cxx", folder / "calls"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo 1 && exit\necho "$@" >> {log}\n{script}\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("CXX", str(program))
    return log


def calls(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


@needs_compiler
def test_a_kernel_is_compiled_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own_cache: Path
) -> None:
    log = compiler_that(monkeypatch, tmp_path, f'exec {REAL} "$@"')
    assert [answer(3), answer(4), answer(3)] == [3, 4, 3]
    assert calls(log) == 2
    assert len(list(own_cache.iterdir())) == 2, "something was left behind"
    SMALL.write_text(SOURCE.replace("ANSWER;", "-ANSWER;"))
    assert answer(3) == -3
    (tmp_path / "cxx").write_text((tmp_path / "cxx").read_text().replace("echo 1", "echo 2"))
    assert answer(4) == -4
    assert calls(log) == 4, "another compiler's kernel was used"


@needs_compiler
def test_another_header_makes_another_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    SMALL.write_text('#include "team.hpp"\nextern "C" long answer() { return ANSWER + MORE; }\n')
    monkeypatch.setattr(native, "HEADER", tmp_path / "team.hpp")
    for more in (1, 2):
        native.HEADER.write_text(f"#define MORE {more}\n")
        assert answer(3) == 3 + more


@needs_compiler
@pytest.mark.parametrize(
    "damage",
    [b"no library", *(pytest.param(other, marks=pytest.mark.slow) for other in (b"", None))],
)
def test_a_damaged_kernel_is_compiled_anew(own_cache: Path, damage: bytes | None) -> None:
    program = (
        f"import tests.core.machine.test_native as t; t.SMALL = t.Path({str(SMALL)!r}); "
        "print(t.answer(3))"
    )
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        assert done.stdout == "3\n"
        (path,) = own_cache.iterdir()
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2] if damage is None else damage)


@needs_compiler
def test_processes_at_the_same_time(own_cache: Path) -> None:
    program = (
        f"import tests.core.machine.test_native as t; t.SMALL = t.Path({str(SMALL)!r}); "
        "print(t.answer(3))"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert [process.communicate()[0] for process in processes] == ["3\n"] * 3
    assert not list(own_cache.glob("*.tmp"))


@needs_compiler
def test_several_kernels_at_a_time() -> None:
    libraries = native.load_all([Kernel(SMALL, {"ANSWER": number}) for number in (5, 6, 7)])
    assert [library.answer() for library in libraries] == [5, 6, 7]


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "nothing"))
    with pytest.raises(NativeError, match=r"^CXX=.*/nothing: there is no such compiler$"):
        answer(3)
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NativeError, match=r"^no C\+\+ compiler$"):
        answer(3)


@needs_compiler
@pytest.mark.parametrize("words", ["{} -O1", "{env} {}", "'{}' -DUNUSED=1"])
def test_a_compiler_of_several_words(
    words: str, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    monkeypatch.setenv("CXX", words.format(shutil.which(str(REAL)), env=shutil.which("env")))
    assert [answer(3), answer(3)] == [3, 3]


@pytest.mark.parametrize("words", ["nothing g++", "'g++", "   "])
def test_words_that_are_no_compiler(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", words)
    assert native.compiler() is None
    assert native.no_compiler() == f"CXX={words}: there is no such compiler"


def test_a_compiler_that_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own_cache: Path
) -> None:
    compiler_that(
        monkeypatch, tmp_path, "echo a warning; echo small.cpp: error: no luck >&2; exit 1"
    )
    with pytest.raises(NativeError, match=r"cxx failed: small.cpp: error: no luck$"):
        answer(3)
    assert not list(own_cache.iterdir())


def test_a_compiler_that_makes_no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler_that(monkeypatch, tmp_path, "exit 0")
    with pytest.raises(NativeError, match="the compiled kernel does not load"):
        answer(3)


def test_a_compiler_that_hangs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own_cache: Path
) -> None:
    """The command and the processes that it started are killed."""
    pid = tmp_path / "pid"
    compiler_that(
        monkeypatch, tmp_path, f"sleep 600 & echo $! > {pid}.part; mv {pid}.part {pid}; wait"
    )
    monkeypatch.setattr(native, "SECONDS", 2.0)
    with pytest.raises(NativeError, match="took longer than 2 s"):
        answer(3)
    assert not list(own_cache.iterdir())
    assert gone(int(pid.read_text()))


def gone(pid: int) -> bool:
    """True once a process has ended, or is a zombie that nobody has waited for."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


@needs_compiler
def test_a_cache_that_others_can_write_is_not_used(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert answer(3) == 3
    log = compiler_that(monkeypatch, tmp_path, f'exec {REAL} "$@"')
    own_cache.chmod(0o777)
    content = sorted(own_cache.iterdir())
    assert answer(4) == 4, "it is compiled for this process alone"
    assert calls(log) == 1
    assert sorted(own_cache.iterdir()) == content


@needs_compiler
def test_a_cache_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert answer(3) == 3


def test_torchs_own_threads() -> None:
    """A team has as many threads as asked for, and no second OpenMP runtime is loaded for it."""
    team = native.team()
    assert team is not None
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    seen: list[int] = []
    body = kind(lambda _: seen.append(threading.get_native_id()))
    run = ctypes.CFUNCTYPE(None, kind, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)(
        team.value or 0
    )
    run(body, None, 3, 0)
    assert len(seen) == len(set(seen)) == 3
    torch.set_num_threads(torch.get_num_threads())
    maps = Path("/proc/self/maps")
    if maps.exists():
        runtimes = {
            line.split()[-1]
            for line in maps.read_text().splitlines()
            if "libgomp" in line or "libomp" in line
        }
        assert (
            len(
                [
                    path
                    for path in runtimes
                    if Path(path).is_relative_to(Path(torch.__file__).parent)
                ]
            )
            == 1
        )
        (own,) = {path for path in runtimes if os.path.dirname(torch.__file__) in path}
        assert ctypes.cast(ctypes.CDLL(own).GOMP_parallel, ctypes.c_void_p).value == team.value


@needs_compiler
def test_what_is_at_hand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log, kernel = (
        compiler_that(monkeypatch, tmp_path, f'exec {REAL} "$@"'),
        Kernel(SMALL, {"ANSWER": 8}),
    )
    native.set_first_use("cached")
    assert kernel.at_hand() is None
    assert calls(log) == 0, "it was compiled"
    native.set_first_use("compile")
    library = kernel.at_hand()
    assert library is not None
    assert library.answer() == 8
    native.set_first_use("leave")
    assert kernel.at_hand() is None
    forget()  # as another process
    native.set_first_use("cached")
    found = kernel.at_hand()
    assert found is not None
    assert found.answer() == 8
    assert calls(log) == 1


def test_without_a_compiler_nothing_is_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "compiler", lambda: None)
    assert Kernel(SMALL, {}).at_hand() is None
