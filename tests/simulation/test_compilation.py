"""Compilation of functions, and its failures."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed, FailOnRecompileLimitHit, Unsupported

from dynabro_cli import RunSpec, simulate
from dynabro_cli.components.aggregators._order import comparators
from dynabro_cli.core import events
from dynabro_cli.core.errors import RunError, SpecError
from dynabro_cli.core.machine import gpu_kernels, native
from dynabro_cli.simulation import compilation, setup
from dynabro_cli.simulation.compilation import (
    COMPILE_WORK,
    KERNEL_AGGREGATES,
    Compiler,
    missing_tool,
    use_kernels,
)

pytestmark = pytest.mark.thorough

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
ENOUGH = 1e15
ENVIRONMENT = ("TORCHINDUCTOR_CACHE_DIR", "CXX")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache of the test's own; and what compiling sets is unset after it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ENVIRONMENT:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture
def compiler_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a C++ compiler, whatever this one has."""
    monkeypatch.setattr(compilation, "missing_tool", lambda: None)


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without a C++ compiler."""
    monkeypatch.setenv("PATH", str(tmp_path))


def compile_by(
    monkeypatch: pytest.MonkeyPatch, stand_in: Callable[..., Any]
) -> list[dict[str, Any]]:
    """Let ``stand_in(function, *arguments)`` stand for every compiled function; return the options
    given to torch.
    """
    calls: list[dict[str, Any]] = []

    def fake(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        calls.append(options)
        return lambda *arguments: stand_in(function, *arguments)

    monkeypatch.setattr(torch, "compile", fake)
    return calls


def fail_with(error: Exception) -> Callable[..., Any]:
    def stand_in(_function: Callable[..., Any], *_arguments: Any) -> Any:
        raise error

    return stand_in


def add_one(x: Tensor) -> Tensor:
    """Updates its argument in place: done twice it shows."""
    return x.add_(1)


# --- whether


def test_off() -> None:
    compiler = Compiler("off", work=ENOUGH, device=CPU)
    assert (compiler.enabled, compiler.reason) == (False, "off")
    assert compiler(add_one) is add_one


@pytest.mark.usefixtures("compiler_here")
def test_auto_decides_by_the_work() -> None:
    assert COMPILE_WORK > 0
    little, enough = (
        Compiler("auto", work=work, device=CPU)
        for work in (COMPILE_WORK * (1 - 1e-9), COMPILE_WORK)
    )
    assert (little.enabled, little.reason) == (False, "off: too little work")
    assert little(add_one) is add_one
    assert (enough.enabled, enough.reason) == (True, "on")


@pytest.mark.usefixtures("compiler_here")
def test_on_compiles_however_little_it_is() -> None:
    compiler = Compiler("on", work=0, device=CPU)
    assert (compiler.enabled, compiler.reason) == (True, "on")


@pytest.mark.parametrize(
    ("choice", "aggregates", "expected"),
    [
        ("off", 1e9, "leave"),
        ("on", 1, "compile"),
        ("auto", KERNEL_AGGREGATES - 1, "cached"),
        ("auto", KERNEL_AGGREGATES, "compile"),
    ],
)
def test_kernels_of_rules(
    choice: str, aggregates: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_first_use", "compile")
    use_kernels(choice, aggregates)
    assert native._first_use == expected


@pytest.mark.usefixtures("no_compiler")
def test_without_a_cpp_compiler() -> None:
    compiler = Compiler("auto", work=ENOUGH, device=CPU)
    assert (compiler.enabled, compiler.reason) == (False, "off: no C++ compiler")
    with pytest.raises(SpecError) as caught:
        Compiler("on", work=ENOUGH, device=CPU)
    assert caught.value.problems == [
        "compile=on needs a C++ compiler, which was not found. Try: install it, or --compile off"
    ]
    assert Compiler("off", work=ENOUGH, device=CPU).reason == "off"


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("name", ["g++", "clang++", "my-c++"])
def test_what_counts_as_a_cpp_compiler(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / name
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert (missing_tool() is None) == (name != "my-c++")
    monkeypatch.setenv("CXX", name)
    assert missing_tool() is None
    monkeypatch.setenv("CXX", "nosuch-c++")  # it is what torch would try, and nothing else
    assert missing_tool() == "CXX=nosuch-c++: there is no such compiler"


@pytest.mark.parametrize("choice", ["auto", "on"])
def test_nothing_is_compiled_by_torch_on_a_gpu(
    choice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_kernels, "obstacle", lambda _: None)
    compiler = Compiler(choice, work=ENOUGH, device=CUDA)
    assert (compiler.enabled, compiler.reason) == (False, "triton")
    assert compiler(add_one) is add_one


@pytest.mark.parametrize("choice", ["", "ON", "maybe", "true"])
def test_another_choice_is_refused(choice: str) -> None:
    line = f"compile={choice} is not legal. Try: --compile with auto or on or off"
    with pytest.raises(SpecError) as caught:
        Compiler(choice, work=0, device=CPU)
    assert caught.value.problems == [line]
    with pytest.raises(SpecError) as caught:  # at once, not with the first event
        simulate(RunSpec(), device="cpu", compile=choice)
    assert caught.value.problems == [line]


# --- how


@pytest.mark.usefixtures("compiler_here")
def test_compiled_at_the_first_call_once_and_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = compile_by(monkeypatch, lambda function, x: function(x) * 10)
    function = Compiler("auto", work=ENOUGH, device=CPU)(add_one)
    assert calls == []
    assert [float(function(torch.zeros(()))) for _ in range(3)] == [10, 10, 10]
    # one graph, or a failure in the second would find what the first has done to the arguments
    assert calls == [{"dynamic": False, "fullgraph": True}]


@pytest.mark.usefixtures("compiler_here")
def test_what_is_set_before_compiling(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch._dynamo.config
    import torch._inductor.config

    compile_by(monkeypatch, lambda function, x: function(x))
    with (
        warnings.catch_warnings(record=True) as warned,
        torch._dynamo.config.patch(recompile_limit=8),
        torch._inductor.config.patch({"cpp.threads": -1}),
    ):
        warnings.simplefilter("always")
        Compiler("on", work=0, device=CPU)(add_one)(torch.zeros(()))
        warnings.warn(
            "TensorFloat32 tensor cores for float32 matrix multiplication available",
            UserWarning,
            stacklevel=1,
        )
        assert torch._dynamo.config.recompile_limit == compilation.SHAPES >= 10
        assert torch._inductor.config.cpp.threads == torch.get_num_threads()
    assert warned == []
    cache = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert cache.parent == tmp_path / "cache" / "dynabro" / "inductor"

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "mine")
    Compiler("on", work=0, device=CPU)(add_one)(torch.zeros(()))
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "mine"


def test_each_kind_of_processor_has_a_cache_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def name(text: str) -> str:
        monkeypatch.setattr(native, "_cpu_lines", text.splitlines)
        return native.processor()

    core = "processor\t: {}\nmodel name\t: One\ncpu MHz\t: {}\nflags\t: fpu avx2{}\n"
    assert name(core.format(0, 1000, "")) == name(
        core.format(0, 2000, "") + core.format(1, 3000, "")
    )
    assert name(core.format(0, 1000, "")) != name(core.format(0, 1000, " avx512f"))


@pytest.mark.usefixtures("no_compiler")
def test_the_only_compiler_is_named_to_torch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "clang++"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    compile_by(monkeypatch, lambda function, x: function(x))
    Compiler("on", work=0, device=CPU)(add_one)(torch.zeros(()))
    assert os.environ["CXX"] == "clang++"


@pytest.mark.usefixtures("compiler_here")
def test_ten_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda function, **options: real(function, backend="eager", **options)
    )
    compiler = Compiler("auto", work=ENOUGH, device=CPU)
    function = compiler(lambda x: x * 2)
    for length in range(2, 12):
        assert function(torch.ones(length)).tolist() == [2.0] * length
    assert (compiler.enabled, compiler.reason) == (True, "on")


NETWORK = comparators(5, 2, 3)


def update(state: Tensor, gradients: Tensor) -> Tensor:
    """Momentum in place, and the column-wise median of five rows."""
    rows = list(state.mul_(0.5).add_(gradients, alpha=0.5).unbind(0))
    for i, j in NETWORK:
        rows[i], rows[j] = torch.minimum(rows[i], rows[j]), torch.maximum(rows[i], rows[j])
    return rows[2]


def test_compiled_in_earnest() -> None:
    """A missing compiler is reported instead."""
    if not (shutil.which("g++") or shutil.which("clang++")):
        with pytest.raises(SpecError, match="install it, or --compile off"):
            Compiler("on", work=0, device=CPU)
        return
    compiler = Compiler("on", work=0, device=CPU)
    function = compiler(update)
    gradients = [
        torch.randn(5, 1000, generator=torch.Generator().manual_seed(round_)) for round_ in range(3)
    ]
    states = torch.zeros(5, 1000), torch.zeros(5, 1000)
    for gradient in gradients:
        torch.testing.assert_close(function(states[0], gradient), update(states[1], gradient))
    torch.testing.assert_close(*states)
    assert (compiler.enabled, compiler.reason) == (True, "on")
    assert list(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).rglob("*.so"))


@pytest.mark.parametrize("choice", ["off", "auto"])
def test_torchs_compiler_is_not_loaded_where_nothing_is_compiled(choice: str) -> None:
    program = f"""
import sys
from dynabro_cli import RunSpec, simulate
from dynabro_cli.simulation.compilation import Compiler
import torch
assert Compiler({choice!r}, work=1, device=torch.device("cpu"))(abs)(-1) == 1
list(simulate(RunSpec(model="logistic", method="sgd", budget=2), device="cpu", compile={choice!r}))
print(sum(name.startswith(("torch._dynamo", "torch._inductor")) for name in sys.modules))
"""
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert answer.stdout == "0\n"


# --- where it fails


FAILURES: list[tuple[Exception, str, str]] = [
    (Unsupported("call to print\n\nmore", gb_type="x"), "Unsupported", "call to print"),
    (BackendCompilerFailed(add_one, OSError("no room\nfor it"), None), "OSError", "no room"),
    (FailOnRecompileLimitHit("too many\nshapes"), "FailOnRecompileLimitHit", "too many"),
]


@pytest.mark.usefixtures("compiler_here")
@pytest.mark.parametrize(("error", "name", "line"), FAILURES, ids=[name for _, name, _ in FAILURES])
def test_auto_falls_back(
    error: Exception, name: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def fail(*_: object) -> None:
        tried.append(1)
        raise error

    calls = compile_by(monkeypatch, fail)
    compiler = Compiler("auto", work=ENOUGH, device=CPU)
    first, second = compiler(add_one), compiler(add_one)
    x = torch.zeros(())
    assert float(first(x)) == 1
    assert (compiler.enabled, compiler.reason) == (False, f"off: {name}")
    assert float(first(x)) == 2
    assert float(second(x)) == 3
    assert compiler(add_one) is add_one
    assert (len(calls), len(tried)) == (1, 1)


@pytest.mark.usefixtures("compiler_here")
@pytest.mark.parametrize(("error", "name", "line"), FAILURES, ids=[name for _, name, _ in FAILURES])
def test_on_says_so(
    error: Exception, name: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_by(monkeypatch, fail_with(error))
    with pytest.raises(RunError) as caught:
        Compiler("on", work=0, device=CPU)(add_one)(torch.zeros(()))
    assert str(caught.value) == f"compiling failed ({name}: {line}). Try: --compile off"


@pytest.mark.usefixtures("compiler_here")
def test_a_later_shape_that_cannot_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_short(function: Callable[..., Any], x: Tensor) -> Any:
        if len(x) > 2:
            raise FAILURES[0][0]
        return function(x)

    compile_by(monkeypatch, only_short)
    compiler = Compiler("auto", work=ENOUGH, device=CPU)
    function = compiler(add_one)
    assert function(torch.zeros(2)).tolist() == [1, 1]
    assert compiler.enabled
    assert function(torch.zeros(3)).tolist() == [1, 1, 1]
    assert not compiler.enabled


@pytest.mark.usefixtures("compiler_here")
def test_a_torch_that_cannot_compile_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("torch.compile is not supported on Python 3.99+")

    monkeypatch.setattr(torch, "compile", refuse)
    compiler = Compiler("auto", work=ENOUGH, device=CPU)
    assert float(compiler(add_one)(torch.zeros(()))) == 1
    assert (compiler.enabled, compiler.reason) == (False, "off: RuntimeError")
    with pytest.raises(
        RunError,
        match=r"compiling failed \(RuntimeError: torch.compile is not supported on Python 3.99\+\)",
    ):
        Compiler("on", work=0, device=CPU)(add_one)(torch.zeros(()))


@pytest.mark.usefixtures("compiler_here")
@pytest.mark.parametrize("choice", ["auto", "on"])
def test_the_functions_own_errors_are_its_own(choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []

    def wrong(_x: Tensor) -> Tensor:
        runs.append(1)
        raise ValueError("my own")

    # met when run, and when traced
    for stand_in in (lambda function, x: function(x), fail_with(FAILURES[0][0])):
        runs.clear()
        compile_by(monkeypatch, stand_in)
        compiler = Compiler(choice, work=ENOUGH, device=CPU)
        with pytest.raises(ValueError, match="my own"):
            compiler(wrong)(torch.zeros(()))
        assert (compiler.enabled, compiler.reason) == (True, "on")
        assert len(runs) == 1  # what it did to its arguments before is done once


# --- in a run


def test_a_run_tells_its_work_and_records_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []

    class Told(Compiler):
        def __init__(self, choice: str, *, work: float, device: torch.device) -> None:
            given.append({"choice": choice, "work": work, "device": device})
            super().__init__("off", work=work, device=device)
            self.reason = "off: a reason"

    monkeypatch.setattr(setup, "Compiler", Told)
    started = next(
        simulate(
            RunSpec(method="sgd", model="logistic", workers=5, byzantine=2, budget=3),
            device="cpu",
            compile="on",
        )
    )
    assert isinstance(started, events.Started)
    # the first one refuses before data are read
    assert given == [{"choice": "on", "work": work, "device": CPU} for work in (0, 3 * 5 * 650)]
    assert json.loads(started.record["versions"])["compile"] == "off: a reason"


def test_a_run_hands_its_compiler_on(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = []
    real = setup.Simulation

    def build(given: Any, state: Any) -> Any:
        parts.append(given)
        return real(given, state)

    monkeypatch.setattr(setup, "Simulation", build)
    next(simulate(RunSpec(model="logistic", budget=3), device="cpu"))
    assert parts[0].compiler.reason == "off: too little work"


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("choice", ["auto", "on", "off"])
def test_an_objective_is_never_compiled(choice: str) -> None:
    started = next(simulate(RunSpec(task="quadratic", budget=3), device="cpu", compile=choice))
    assert isinstance(started, events.Started)
    assert json.loads(started.record["versions"])["compile"] == "off"
