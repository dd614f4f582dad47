"""Right or wrong: rules, attacks, gradients and graphs on the device, against the CPU in double precision."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from benchmarks.gpu.steps import Check, Found, How
from dynabro_cli.api import make_aggregator, make_attack
from dynabro_cli.experiment.resolve import REGISTRIES
from dynabro_cli.gradients.engine import KINDS, LOOP, SHARED, WorkerGradients
from dynabro_cli.gradients.graphs import GraphedGradients
from dynabro_cli.simulation import precision
from dynabro_cli.tasks._api import ImageShape
from dynabro_cli.testing._rules import made

WORKERS, BYZANTINE = 17, 3
NEEDED = {
    "mfm": "mfm:threshold=2000",
    "centered-clipping": "centered-clipping:tau=100",
    "clipping": "clipping:c=100",
    "shift": "shift:lambda=2",
    "momentum-tailored": "momentum-tailored:lambda=2,beta=0.9",
    "mixed": "mixed:parts=sf/ipm",
}
"""Components whose parameters have no default."""
VARIANTS = ("gaussian:around=mean,sigma=1", "mimic:target=learned", "min-max:perturbation=sign", "fang-krum:direction=mean")
BEHIND = ("mean", "cwtm", "gm")
LIMIT = 1e-4
"""Largest relative error in single precision."""
RGB = ImageShape(3, 16, 16, 10)
WINDOW = ImageShape(1, 1, 16, 10)
"""Windows of 16 characters, 10 of them different, for networks that read text."""


def relative(found: Tensor, reference: Tensor) -> float:
    """Return |found - reference|/|reference|, on the CPU in double precision; equal numbers that are not finite are left out.

    The result is NaN if a number is finite in only one of the two.
    """
    found, reference = found.detach().cpu().double(), reference.detach().cpu().double()
    odd = ~reference.isfinite()
    same = (found == reference) | (found.isnan() & reference.isnan())
    if not bool(torch.where(odd, same, found.isfinite()).all()):
        return float("nan")
    size = reference[~odd].norm()
    return float((found - reference)[~odd].norm() / size) if float(size) else float((found - reference)[~odd].norm())


def judged(error: float, limit: float = LIMIT, **more: object) -> Found:
    """Return an error with its limit, and True if it is small enough."""
    return {"relative error": error, "limit": limit, "ok": error <= limit, **more}


def vectors(how: How) -> Tensor:
    """Make messages [m, d] in single precision: honest messages around a common vector, and a few far away."""
    source = torch.Generator().manual_seed(1)
    d = how.of(100_003, 257)
    messages = torch.randn(WORKERS, d, generator=source) + torch.randn(d, generator=source)
    messages[[2, 7, 11]] += 50 * torch.randn(3, d, generator=source)
    return messages


def texts(kind: str) -> list[str]:
    """Return the components of a kind, with the parameters that they need."""
    return [NEEDED.get(name, name) for name in REGISTRIES[kind].entries()]


def rules(how: How) -> Iterator[Check]:
    """Check every rule alone, and every pre-aggregator before rules of each kind, with two calls, because rules have state."""
    chains = [f"{stage}+{rule}" for stage in texts("pre_aggregators") for rule in BEHIND]
    for text in [*texts("aggregators"), *chains]:
        yield Check(text, functools.partial(_rule, text, how))


def _rule(text: str, how: How) -> Found:
    ours, exact = (made(text, workers=WORKERS, byzantine=BYZANTINE) for _ in range(2))
    messages = vectors(how)
    errors = []
    for scale in (1.0, 0.5):
        found = ours((messages * scale).to(how.device))
        if found.device.type != torch.device(how.device).type:
            return {"ok": False, "error": f"the aggregate is on {found.device}"}
        errors.append(relative(found, exact((messages * scale).double())))
    return judged(max(errors))


def attacks(how: How) -> Iterator[Check]:
    """Check every attack with two calls, because attacks have state."""
    for text in [*texts("attacks"), *VARIANTS]:
        yield Check(text, functools.partial(_attack, text, how))


def _attack(text: str, how: How) -> Found:
    ours, exact = (make_attack(text, workers=WORKERS) for _ in range(2))
    rule = make_aggregator("cwtm", workers=WORKERS, byzantine=BYZANTINE)
    sees = ours._attack.sees_defence
    byzantine, own = torch.zeros(WORKERS, dtype=torch.bool), vectors(how)
    byzantine[[1, 5, 9]] = True
    errors = []
    for scale in (1.0, 0.5):
        with_defence = (rule.preview,) if sees else ()
        found = ours((own * scale).to(how.device), byzantine.to(how.device), *with_defence)
        errors.append(relative(found, exact((own * scale).double(), byzantine, *with_defence)))
    return judged(max(errors), 1e-3 if sees else LIMIT)  # a search ends at one of several equally good factors


def smooth(model: nn.Module) -> nn.Module:
    """Replace kinks by smooth layers, and drop nothing: rounding flips kinks, and then no bound holds."""
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.ReLU):
            model.set_submodule(name, nn.Tanh())
        elif isinstance(module, nn.MaxPool2d):
            model.set_submodule(name, nn.AvgPool2d(2))
        elif isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def network(text: str, shape: ImageShape = RGB) -> nn.Module:
    """Build a registered network with the same weights in every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: nn.Module = REGISTRIES["models"].parse(text).build(shape)
    return model


def batch(workers: int, samples: int, shape: ImageShape = RGB) -> tuple[Tensor, Tensor]:
    """Return inputs [workers, samples, c, h, w] and labels, in single precision on the CPU."""
    source = torch.Generator().manual_seed(2)
    inputs = torch.randn(workers, samples, shape.channels, shape.height, shape.width, generator=source)
    if shape == WINDOW:
        inputs = torch.randint(shape.classes, inputs.shape, generator=source).float()
    return inputs, torch.randint(shape.classes, (workers, samples), generator=source)


def gradients(how: How) -> Iterator[Check]:
    """Check every network with smooth layers, in every way of computing its gradients; the paper's also with kinks."""
    for place, kind in enumerate(KINDS):
        for name in REGISTRIES["models"].entries():
            shape = WINDOW if name == "gpt" else RGB
            build = functools.partial(_smooth, name, shape)
            yield Check(f"{name}, {kind}", functools.partial(_gradients, build, shape, KINDS[place:], how, LIMIT))
    for name, shape in (("cnn-mnist", ImageShape(1, 28, 28, 10)), ("cnn-cifar", RGB)):
        build = functools.partial(_undropped, name, shape)
        yield Check(f"{name} with kinks, {SHARED}", functools.partial(_gradients, build, shape, KINDS, how, 5e-3))


def _smooth(name: str, shape: ImageShape) -> nn.Module:
    return smooth(network(name, shape))


def _undropped(name: str, shape: ImageShape) -> nn.Module:
    model = network(name, shape)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def _gradients(build: Callable[[], nn.Module], shape: ImageShape, kinds: tuple[str, ...], how: How, limit: float) -> Found:
    precision.apply("fp32", torch.device(how.device))
    workers, batches = how.of(WORKERS, 3), 2
    inputs, labels = batch(workers, 2 * batches * how.of(4, 1), shape)
    model = build()
    exact = WorkerGradients(copy.deepcopy(model).double(), workers, kinds=(LOOP,))
    engine = WorkerGradients(model.to(how.device), workers, kinds=kinds)
    worst, losses = 0.0, exact(inputs.double(), labels, batches, ())
    for _ in range(2):
        found = engine(inputs.to(how.device), labels.to(how.device), batches, ())
        parts = (engine.matrix, exact.matrix), (found, losses), (engine.statistics, exact.statistics)
        worst = max(worst, *(relative(*part) for part in parts if part[0].numel()))
    return judged(worst, limit, way=engine.kind)


def graphs(how: How) -> Iterator[Check]:
    """Compare gradients by graph with gradients without, for repeated shapes; last with layers that are Triton's kernels."""
    for name, shape in (("mlp", RGB), ("cnn-mnist", ImageShape(1, 28, 28, 10)), ("cnn-cifar", RGB)):
        yield Check(name, functools.partial(_graphs, name, shape, how))
    yield Check("cnn-cifar, kernels of layers", functools.partial(_layers, how), 180)


def _graphs(name: str, shape: ImageShape, how: How) -> Found:
    precision.apply("fp32", torch.device(how.device))
    workers = how.of(WORKERS, 3)
    plain = WorkerGradients(network(name, shape).to(how.device), workers)
    engine = WorkerGradients(network(name, shape).to(how.device), workers)
    graphed = GraphedGradients(engine) if how.gpu else engine
    inputs, labels = (part.to(how.device) for part in batch(workers, how.of(16, 2), shape))
    worst = 0.0
    for call in range(5):
        seeds = range(call * workers, (call + 1) * workers) if engine.random else ()
        shifted = inputs + call / 10
        losses, expected = graphed(shifted, labels, 1, seeds), plain(shifted, labels, 1, seeds)
        worst = max(worst, relative(losses, expected), relative(engine.matrix, plain.matrix))
    state = graphed.state if isinstance(graphed, GraphedGradients) else "no GPU"
    return judged(worst, 1e-6, graphs=state) | ({"ok": False} if state.startswith("off") else {})


def _layers(how: How) -> Found:
    """Check kernels of batch norm, ReLU and dropout for changing sizes, by graph from the second call of a size on."""
    precision.apply("fp32", torch.device(how.device))
    workers = how.of(WORKERS, 2)
    plain, engine = (WorkerGradients(network("cnn-cifar").to(how.device), workers, compile=way) for way in ("off", "on"))
    compute = GraphedGradients(engine) if how.gpu else engine
    worst = 0.0
    for batches in (1, 1, 2, 2, 4, 2, 1):
        inputs, labels = (part.to(how.device) for part in batch(workers, batches * how.of(16, 2)))
        seeds = torch.arange(workers * batches).to(how.device)
        losses, expected = compute(inputs, labels, batches, seeds), plain(inputs, labels, batches, seeds)
        worst = max(worst, relative(losses, expected), relative(engine.matrix, plain.matrix))
        worst = max(worst, relative(engine.statistics, plain.statistics))
    state = compute.state if isinstance(compute, GraphedGradients) else "no GPU"
    return judged(worst, 5e-3, graphs=state)  # rounding flips kinks


def memory(how: How) -> Iterator[Check]:
    """Check passes that do not fit into the memory: they are halved until they fit."""
    yield Check("out of memory", functools.partial(_out_of_memory, how))


def _out_of_memory(how: How) -> Found:
    if not how.gpu:
        return {"left out": "no GPU"}
    workers, shape = 25, ImageShape(3, 32, 32, 10)
    precision.apply("fp32", torch.device(how.device))
    inputs, labels = (part.to(how.device) for part in batch(workers, 256, shape))
    free = WorkerGradients(_undropped("cnn-cifar", shape).to(how.device), workers)
    free(inputs, labels, 1, ())
    expected, whole = free.matrix.cpu(), free.pass_values
    del free
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info(how.device)
    engine = WorkerGradients(_undropped("cnn-cifar", shape).to(how.device), workers)
    torch.cuda.set_per_process_memory_fraction(4e9 / total, how.device)
    try:
        engine(inputs, labels, 1, ())
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, how.device)
    found = judged(relative(engine.matrix, expected), way=engine.kind, values_a_pass=engine.pass_values, before=whole)
    return found | ({"ok": False} if engine.kind != SHARED or engine.pass_values >= whole else {})
