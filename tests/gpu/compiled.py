"""Kernels of compiled functions, built for a GPU that is not there: of the server, and of the layers between convolutions.

``python -m tests.gpu.compiled ARCHITECTURE METHOD RULE [METHOD RULE ...]`` prints a JSON object for each pair, and one for each
function of ``gradients.fusible``. A function is taken from a run on a fake GPU and traced with its own arguments; Inductor
writes its kernels in Triton's language, and Triton compiles them to machine code. torch and Triton ask a driver for the
properties of the GPU, and are given them instead.
"""

from __future__ import annotations

import ast
import contextlib
import json
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from benchmarks.fake_gpu import FakeGPU, launches, on_gpu, one_gpu
from dynabro_cli import RunSpec
from dynabro_cli.experiment.resolve import REGISTRIES, resolve
from dynabro_cli.gradients.engine import WorkerGradients
from dynabro_cli.simulation.compilation import Compiler
from dynabro_cli.simulation.setup import simulate_run
from dynabro_cli.tasks._api import ImageShape

PROCESSORS = {80: 108, 90: 132}
"""Multiprocessors of an A100 and of an H100, by architecture."""


def traced(method: str, chain: str, workers: int = 17) -> tuple[Any, list[Tensor], Any]:
    """Return a run's server function as a graph of torch's operations, its tensors, and the mode that they are fake in."""
    *stages, rule = chain.split("+")
    more: dict[str, Any] = {"workers": workers, "byzantine": 3, "batch_size": 2, "budget": 16, "eval_every": 100}
    more |= {"task": "digits", "model": "cnn-digits", "attack": "sf", "switching": "static"}
    spec = RunSpec(method=method, aggregator=rule, pre_aggregators="+".join(stages) or "none", **more)
    calls: list[tuple[Callable[..., Any], Any]] = []

    def remember(_: Compiler, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: calls.append((function, arguments)) or function(*arguments)  # type: ignore[func-returns-value]

    with one_gpu() as gpu, gpu.allowed(), mock.patch.object(Compiler, "__call__", remember):
        list(simulate_run(resolve(spec), device="cuda", compile="off"))
    return trace(lambda function: function, *calls[-1], gpu)  # its operators return views, which functionalize refuses


def traced_layers(precision: torch.dtype) -> Iterator[tuple[str, int, tuple[Any, list[Tensor], Any]]]:
    """Yield each function of the layers between convolutions: its name, its launches as it is, and what ``trace`` returns."""
    with one_gpu() as gpu, gpu.allowed():
        model = REGISTRIES["models"].parse("cnn-cifar:width=0.1").build(ImageShape(3, 8, 8, 10)).to("cuda")
        engine = WorkerGradients(model, 3, dtype=precision)
        calls: dict[str, tuple[int, Callable[..., Any], Any]] = {}

        def remember(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any) -> Any:
                gpu.counted()
                found = function(*arguments)
                calls[function.__name__] = launches(gpu.counted()), function, arguments
                return found

            return call

        engine.fuse(remember)
        engine(on_gpu(torch.randn(3, 4, 3, 8, 8)), on_gpu(torch.zeros(3, 4, dtype=torch.int64)), 2, range(6))
    for name, (launched, *call) in calls.items():
        yield name, launched, trace(torch.func.functionalize, *call, gpu)


def trace(
    prepare: Callable[[Callable[..., Any]], Callable[..., Any]], function: Callable[..., Any], arguments: Any, gpu: FakeGPU
) -> tuple[Any, list[Tensor], Any]:
    """Return a function, prepared, as a graph of torch's operations, its tensors, and the mode that they are fake in."""
    leaves, tree = tree_flatten(arguments)
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def of_tensors(*tensors: Tensor) -> list[Tensor]:
        given = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor
        return [leaf for leaf in tree_flatten(function(*tree_unflatten(given, tree)))[0] if isinstance(leaf, Tensor)]

    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    tensors = [leaves[place] for place in places]
    with pytest.MonkeyPatch.context() as patch, gpu.follows, torch.no_grad():
        patch.setattr(torch.compiler, "is_compiling", lambda: True)  # operators that the compiler does not look into
        make = make_fx(prepare(of_tensors), select_decomp_table(), "real", _allow_non_fake_inputs=True)
        return make(*tensors), tensors, gpu.follows


@contextlib.contextmanager
def architecture(number: int) -> Iterator[None]:
    """Have torch and Triton find a GPU of an architecture, such as 90, to compile for."""
    import triton
    from torch._dynamo import device_interface
    from torch._inductor.runtime import triton_helpers
    from torch._inductor.runtime.hints import DeviceProperties
    from torch._inductor.runtime.triton_heuristics import StaticTritonCompileResult
    from triton.backends.compiler import GPUTarget

    known = {"multi_processor_count": PROCESSORS[number], "major": number // 10, "warp_size": 32}
    known |= {"regs_per_multiprocessor": 1 << 16, "max_threads_per_multi_processor": 2048}
    found = DeviceProperties(type="cuda", index=0, cc=number, max_threads_per_block=1024, **known)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeviceProperties, "create", classmethod(lambda *_: found))
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "current_device", lambda: 0)
        patch.setattr(torch.cuda, "get_device_capability", lambda *_: (number // 10, 0))
        properties = types.SimpleNamespace(**known, minor=0)
        patch.setattr(torch.cuda, "get_device_properties", lambda *_: properties)
        patch.setitem(device_interface.caching_worker_device_properties, "cuda", [properties])
        patch.setattr("torch.utils._triton.triton_hash_with_backend", lambda: f"sm_{number}")
        driver = types.SimpleNamespace(get_current_target=lambda: GPUTarget("cuda", number, 32))
        patch.setattr(triton.runtime.driver, "_active", driver)
        patch.setattr(triton_helpers, "set_driver_to_gpu", lambda: None)
        patch.setattr(StaticTritonCompileResult, "can_statically_launch", lambda *_: None)  # it keeps no assembly
        yield


def written(graph: Any, tensors: list[Tensor], mode: Any) -> tuple[dict[str, str], list[str]]:
    """Return the kernels that Inductor writes for a graph, and the operators that it calls beside them."""
    from torch._inductor.debug import DebugContext
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    with DebugContext(), mode, torch.no_grad(), V.set_fake_mode(mode):
        lowered = GraphLowering(graph, example_inputs=tensors)
        with V.set_graph_handler(lowered):
            lowered.run(*tensors)
            code: Any = lowered.codegen()[0]
    program = ast.parse(getattr(code, "value", code))
    calls = [node for node in ast.walk(program) if isinstance(node, ast.Call)]
    kernels = [call.args for call in calls if ast.unparse(call.func) == "async_compile.triton"]
    names = [ast.unparse(call.func) for call in calls]
    triton = sum(name.endswith(".run") for name in names)
    others = [name for name in names if name.startswith(("extern_kernels.", "torch.ops."))]
    return {ast.literal_eval(name): ast.literal_eval(source) for name, source, *_ in kernels}, [*others, *["triton"] * triton]


def built(name: str, source: str) -> list[str]:
    """Compile a kernel in all its variants; return the architecture that each is for, as its assembly names it."""
    from torch._inductor.codecache import PyCodeCache

    tuner = getattr(PyCodeCache.load(source), name)
    tuner.precompile(warm_cache_only=True)
    targets = []
    for result in tuner.compile_results:
        assembly = result.kernel.asm
        assert assembly["cubin"][:4] == b"\x7fELF"
        targets += [line.split()[1] for line in assembly["ptx"].splitlines() if line.startswith(".target")]
    return targets


def build(number: int, graph: Any, tensors: list[Tensor], mode: Any) -> dict[str, Any]:
    """Return the number of kernels of a graph, what they were built for, and what it calls beside them."""
    with architecture(number):
        kernels, calls = written(graph, tensors, mode)
        targets = {target for name, source in kernels.items() for target in built(name, source)}
    return {
        "kernels": len(kernels),
        "targets": sorted(targets),
        "launches": len(calls),
        "others": sorted(set(calls) - {"triton"}),
    }


def main(number: int, *pairs: str) -> None:
    """Print what was built for an architecture, for each method and rule, and for the layers in both precisions."""
    for method, rule in zip(pairs[::2], pairs[1::2], strict=True):
        print(json.dumps({"method": method, "rule": rule} | build(number, *traced(method, rule))), flush=True)
    for precision in (torch.float32, torch.bfloat16):
        for name, launched, found in traced_layers(precision):
            about = {"function": name, "precision": str(precision), "launches as it is": launched}
            print(json.dumps(about | build(number, *found)), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
