"""Models whose ``forward`` changes the module: every pass begins from the server's state, and state
that cannot be put back is refused by its name.
"""

from __future__ import annotations

import collections
import copy
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dynabro_cli.gradients.engine import LOOP, MAPPED, SHARED, WorkerGradients
from dynabro_cli.gradients.state import ModuleState, marks, torch_defaults
from dynabro_cli.gradients.trial import ModelError

pytestmark = pytest.mark.filterwarnings("ignore:gradients by:RuntimeWarning")
WIDTH, CLASSES, WORKERS, SAMPLES = 8, 4, 3, 6


class Body(nn.Module):
    """A layer, what ``change`` does with its features, and a layer; inputs are numbers [n, 7] or
    tokens [n, 7].
    """

    def __init__(
        self, start: Callable[[Any], object], change: Callable[[Any, Tensor], Tensor], tokens: bool
    ) -> None:
        super().__init__()
        self.first = nn.Embedding(20, WIDTH) if tokens else nn.Linear(7, WIDTH)
        self.last, self.tokens, self.change = nn.Linear(WIDTH, CLASSES), tokens, change
        start(self)

    def forward(self, x: Tensor) -> Tensor:
        features = self.first(x).mean(1) if self.tokens else self.first(x)
        return self.last(self.change(self, features))


def batches(tokens: bool) -> tuple[Tensor, Tensor]:
    """Three workers' samples; the last two workers have the same."""
    source = torch.Generator().manual_seed(0)
    x = torch.randn(WORKERS, SAMPLES, 7, generator=source)
    x = torch.randint(20, x.shape, generator=source) if tokens else x
    y = torch.randint(CLASSES, (WORKERS, SAMPLES), generator=source)
    x[1], y[1] = x[2], y[2]
    return x, y


def engine_of(state: str, *, tokens: bool, workers: int = WORKERS, **how: Any) -> WorkerGradients:
    torch.manual_seed(1)
    start, change = {**KEPT, **REFUSED}[state][:2]
    return WorkerGradients(Body(start, change, tokens), workers, **how)


def buffer(**tensors: Tensor) -> Callable[[nn.Module], None]:
    def register(model: nn.Module) -> None:
        for name, tensor in tensors.items():
            model.register_buffer(name, tensor.clone())

    return register


def frozen(model: Any) -> None:
    model.c = nn.Parameter(torch.zeros(WIDTH), requires_grad=False)


def mean(h: Tensor) -> Tensor:
    return h.detach().mean(0)


def in_place(model: Any, h: Tensor) -> Tensor:
    with torch.no_grad():
        model.c.mul_(0.5).add_(0.5 * mean(h))
    return h - model.c


def reassigned(model: Any, h: Tensor) -> Tensor:
    model.c = (0.5 * model.c + 0.5 * mean(h)).to(model.c.dtype)
    return h - model.c.real.to(h.dtype)


def data_assigned(model: Any, h: Tensor) -> Tensor:
    model.c.data = 0.5 * model.c.data + 0.5 * mean(h)
    return h - model.c


def counted(model: Any, h: Tensor) -> Tensor:
    model.n += 1
    return h * model.n


def counted_again(model: Any, h: Tensor) -> Tensor:
    model.n = model.n + 1
    return h * model.n


def taught(model: Any) -> None:
    model.student, model.teacher = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    model.teacher.requires_grad_(False)


def teaching(model: Any, h: Tensor) -> Tensor:
    with torch.no_grad():
        for frozen, trained in zip(
            model.teacher.parameters(), model.student.parameters(), strict=True
        ):
            frozen.lerp_(trained, 0.5)
    return model.student(h) + model.teacher(h)


def replaced(model: Any, h: Tensor) -> Tensor:
    scale = model.teacher.weight.abs().sum() / 2
    model.teacher = nn.Linear(WIDTH, WIDTH, device="meta").to_empty(device="cpu")
    model.teacher.requires_grad_(False).weight.fill_(float(scale))
    return h * scale


def clamped(model: Any, h: Tensor) -> Tensor:
    with torch.no_grad():
        model.last.weight.clamp_(-0.1, 0.1)
    return h


def recurrent(model: Any, h: Tensor) -> Tensor:
    model.h = torch.tanh(h + model.h.detach())
    return model.h


def toggled(model: Any, h: Tensor) -> Tensor:
    model.n = not model.n
    return h * (2 if model.n else 1)


def negated(model: Any, h: Tensor) -> Tensor:
    model.n.logical_not_()
    return h * (2 if model.n else 1)


def stored(bank: Callable[[Any], Any], least: int = 0) -> Callable[[Any, Tensor], Tensor]:
    def change(model: Any, h: Tensor) -> Tensor:
        bank(model).append(mean(h))
        return h - torch.stack(list(bank(model))).mean(0) if len(bank(model)) > least else h

    return change


def smoothed(model: Any, h: Tensor) -> Tensor:
    return h - model.average(mean(h))


class Average:
    """A running mean that is not part of the module."""

    def __init__(self) -> None:
        self.value = torch.zeros(WIDTH)

    def __call__(self, x: Tensor) -> Tensor:
        self.value = 0.5 * self.value + 0.5 * x
        return self.value


def initialised(model: Any, h: Tensor) -> Tensor:
    if not model.done:
        model.last.bias.data.copy_(torch.arange(CLASSES) + mean(h)[0])
        model.done = True
    return h


def counted_in_evaluation(model: Any, h: Tensor) -> Tensor:
    model.n += not model.training
    return h * (1 + model.n)


def normed(model: Any) -> None:
    model.norm = nn.BatchNorm1d(WIDTH)


def normed_once(model: Any, h: Tensor) -> Tensor:
    h = model.norm(h)
    model.norm.eval()
    return h


def set_attribute(name: str, make: Callable[[], object]) -> Callable[[Any], None]:
    return lambda model: setattr(model, name, make())


ZERO, NONE = torch.zeros(WIDTH), torch.zeros((), dtype=torch.int64)
GLOBAL: list[Tensor] = []
KEPT: dict[str, tuple[Callable[[Any], object], Callable[[Any, Tensor], Tensor], str]] = {
    "buffer in place": (buffer(c=ZERO), in_place, "forward changes c"),
    "buffer reassigned": (buffer(c=ZERO), reassigned, "forward changes c"),
    "buffer by data": (buffer(c=ZERO), data_assigned, "forward changes c"),
    "buffer in double": (buffer(c=ZERO.double()), reassigned, "first value of c"),
    "buffer of complex numbers": (buffer(c=ZERO.cfloat()), reassigned, "first value of c"),
    "whole number in place": (buffer(n=NONE), counted, "first value of n"),
    "whole number reassigned": (buffer(n=NONE), counted_again, "first value of n"),
    "truth": (buffer(n=torch.tensor(False)), negated, "first value of n"),
    "frozen in place": (frozen, in_place, "first value of c"),
    "frozen by data": (frozen, data_assigned, "first value of c"),
    "teacher": (taught, teaching, "first value of teacher.weight, teacher.bias"),
    "submodule": (taught, replaced, "forward changes teacher"),
    "trained parameter": (lambda _: None, clamped, "first value of last.weight"),
    "hidden buffer": (buffer(h=torch.zeros(SAMPLES, WIDTH)), recurrent, "forward changes h"),
}
REFUSED: dict[str, tuple[Callable[[Any], object], Callable[[Any, Tensor], Tensor], str]] = {
    "tensor": (set_attribute("c", ZERO.clone), reassigned, "`self.c`"),
    "tensor by data": (set_attribute("c", ZERO.clone), data_assigned, "`self.c`"),
    "hidden": (set_attribute("h", ZERO.clone), recurrent, "`self.h`"),
    "counter": (set_attribute("n", int), counted, "`self.n`"),
    "switch": (set_attribute("n", bool), toggled, "`self.n`"),
    "list": (set_attribute("bank", list), stored(lambda model: model.bank), "`self.bank`"),
    "list that fills": (
        set_attribute("bank", list),
        stored(lambda model: model.bank, least=40),
        "`self.bank`",
    ),
    "last one": (
        set_attribute("bank", lambda: collections.deque(maxlen=2)),
        stored(lambda model: model.bank, least=1),
        "`self.bank`",
    ),
    "object": (set_attribute("average", Average), smoothed, "`self.average`"),
    "torch's generator": (
        set_attribute("source", torch.Generator),
        lambda model, h: h + torch.rand((), generator=model.source),
        "`self.source`",
    ),
    "NumPy's generator": (
        set_attribute("source", lambda: np.random.default_rng(0)),
        lambda model, h: h * model.source.random(),
        "`self.source`",
    ),
    "iterator": (
        set_attribute("source", lambda: itertools.cycle([1, 2, 3])),
        lambda model, h: h * next(model.source),
        "(`self.source`|outside of itself)",  # Python 3.12 copies no such iterator
    ),
    "start from the first mini-batch": (
        set_attribute("done", bool),
        initialised,
        "`self.done`",
    ),
    "mode of a layer": (normed, normed_once, "`self.norm.training`"),
    "evaluation": (set_attribute("n", int), counted_in_evaluation, "`self.n`"),
    "list of the file": (lambda _: None, stored(lambda _: GLOBAL), "outside of itself"),
    "shape of a buffer": (
        buffer(h=torch.zeros(1, WIDTH)),
        recurrent,
        r"shape of buffer 'h' from \[1, 8\] to \[6, 8\]",
    ),
}


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("state", KEPT)
def test_every_pass_begins_from_the_servers_state(state: str, tokens: bool) -> None:
    """Compare with a worker alone on a new model, with changed samples of another worker, with
    equal samples, and with the same call again.
    """
    x, y = batches(tokens)
    alone = engine_of(state, tokens=tokens, workers=1, kinds=(LOOP,), compare=False)
    alone(x[2:], y[2:], 1, ())
    engine = engine_of(state, tokens=tokens)
    before = copy.deepcopy(engine.model.state_dict())
    for first in (x[:1], 19 - x[:1]):
        engine(torch.cat([first, x[1:]]), y, 1, ())
        for row in (1, 2):
            assert torch.equal(engine.matrix[row], alone.matrix[0])
            assert torch.equal(engine.statistics[row], alone.statistics[0])
    assert engine.kind == LOOP
    assert KEPT[state][2] in engine.reason
    logits = [engine.logits(x[0]) for _ in range(2)]
    assert torch.equal(*logits)
    after = engine.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    engine.buffers += 1  # still views of the server's
    averaged = [b for b in engine.model.buffers() if b.dtype == engine.buffers.dtype]
    assert len(averaged) == bool(engine.buffers.numel())
    assert all(torch.equal(b.flatten(), engine.buffers) for b in averaged)


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("state", REFUSED)
def test_other_state_is_refused_by_its_name(state: str, tokens: bool) -> None:
    GLOBAL.clear()
    with pytest.raises(ModelError, match=f"the model (keeps state|changes).*{REFUSED[state][2]}"):
        engine_of(state, tokens=tokens)(*batches(tokens), 1, ())


@pytest.mark.parametrize(
    ("start", "change"),
    [
        (lambda _: None, lambda model, h: setattr(model, "kept", h) or h),
        (lambda _: None, lambda model, h: h + vars(model).setdefault("scale", torch.ones(WIDTH))),
    ],
    ids=["kept output", "cache"],
)
def test_attributes_that_change_nothing_are_legal(start: Any, change: Any) -> None:
    engine = WorkerGradients(Body(start, change, tokens=False), WORKERS)
    for _ in range(2):
        engine(*batches(False), 1, ())
    assert (engine.kind, engine.reason) == (SHARED, "")


def test_a_trial_takes_four_passes_of_a_mini_batch_and_leaves_no_trace() -> None:
    sizes: list[int] = []

    def noted(model: Any, h: Tensor) -> Tensor:
        sizes.append(len(h) if model.training else -len(h))
        model.norm(h)
        return h + model.c

    torch.manual_seed(0)
    model = Body(lambda model: (normed(model), buffer(c=ZERO)(model)), noted, tokens=False).eval()
    engine = WorkerGradients(model, WORKERS, kinds=(LOOP,))
    before, states = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    engine(*batches(False), 1, ())
    assert sizes == [SAMPLES] * 4 + [-2] * 3 + [SAMPLES] * WORKERS
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(states, torch.get_rng_state())


def recurrent_layer(model: Any) -> None:
    model.layer = nn.GRU(WIDTH, WIDTH, batch_first=True)


LAYERS: dict[str, tuple[Any, Any, str]] = {
    "plain": (lambda _: None, lambda _, h: h, SHARED),
    "GRU": (recurrent_layer, lambda model, h: model.layer(h[:, None])[0][:, -1], LOOP),
    "BatchNorm1d": (normed, lambda model, h: model.norm(h), LOOP),
    "Dropout": (
        set_attribute("layer", lambda: nn.Dropout(0.5)),
        lambda model, h: model.layer(h),
        SHARED,
    ),
    "F.dropout": (lambda _: None, lambda _, h: nn.functional.dropout(h, 0.5), LOOP),
    "mixing": (lambda _: None, lambda _, h: h - h.mean(0), MAPPED),
}


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_tokens_are_computed_and_compared_as_numbers_are(name: str, tokens: bool) -> None:
    start, change, kind = LAYERS[name]
    torch.manual_seed(0)
    model, (x, y) = Body(start, change, tokens), batches(tokens)
    again = copy.deepcopy(model)
    engine, seeds = WorkerGradients(model, WORKERS), [1, 2, 2]
    losses = engine(x, y, 1, seeds)
    assert engine.kind == kind
    assert "not possible" not in engine.reason
    assert torch.allclose(losses[1], losses[2])
    for worker in range(WORKERS if "ropout" not in name else 0):
        loss = nn.functional.cross_entropy(again.train()(x[worker]), y[worker])
        gradient = torch.autograd.grad(loss, list(again.parameters()))
        torch.testing.assert_close(
            engine.matrix[worker], torch.cat([part.flatten() for part in gradient])
        )


def test_pixels_as_integers_become_numbers() -> None:
    torch.manual_seed(0)
    model, (x, y) = Body(lambda _: None, lambda _, h: h, False), batches(False)
    engine, pixels = WorkerGradients(model, WORKERS), (x.abs() * 50).to(torch.uint8)
    losses = engine(pixels, y, 1, ())
    torch.testing.assert_close(losses, engine(pixels.float(), y, 1, ()))
    assert torch.equal(engine.logits(pixels[0]), engine.logits(pixels[0].float()))


def test_inputs_that_forward_changes_stay() -> None:
    class Shifted(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            x.sub_(0.5)
            return super().forward(x)

    torch.manual_seed(0)
    engine = WorkerGradients(Shifted(nn.Linear(7, CLASSES)), WORKERS)
    x, y = batches(False)
    before, first = x.clone(), engine(x, y, 1, ())
    assert torch.equal(x, before)
    assert torch.equal(engine(x, y, 1, ()), first)
    engine.logits(x[0])
    assert torch.equal(x, before)
    assert (engine.kind, engine.reason) == (SHARED, "")


def test_nothing_is_mapped_that_could_end_the_process() -> None:
    """Vmap of an assignment to ``data`` is a segmentation fault."""
    written = torch.zeros(WIDTH)

    def change(_: Any, h: Tensor) -> Tensor:
        written.data = mean(h)
        return h - h.mean(0)

    engine = WorkerGradients(Body(lambda _: None, change, tokens=False), WORKERS)
    engine(*batches(False), 1, ())
    assert engine.kind == LOOP


def test_a_dict_for_a_loss() -> None:
    def loss(outputs: dict[str, Tensor], labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs["logits"], labels, reduction="none")

    class Named(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return {"logits": super().forward(x), "name": "logits"}

    class Pair(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x), x

    x, y = batches(False)
    torch.manual_seed(0)
    plain = WorkerGradients(nn.Linear(7, CLASSES), WORKERS)
    plain(x, y, 1, ())
    for kind, function in ((Named, loss), (Pair, lambda pair, y: loss({"logits": pair[0]}, y))):
        torch.manual_seed(0)
        engine = WorkerGradients(kind(7, CLASSES), WORKERS, loss=function)
        engine(x, y, 1, ())
        torch.testing.assert_close(engine.matrix, plain.matrix)
        with pytest.raises(ModelError, match=r"returned a (dict|tuple); expected logits \[n, cl"):
            WorkerGradients(kind(7, CLASSES), WORKERS)(x, y, 1, ())


@pytest.mark.parametrize("setting", ["autocast", "double", "bfloat16", "meta", "inference"])
def test_the_callers_settings_have_no_effect_and_come_back(setting: str) -> None:
    def made() -> WorkerGradients:
        torch.manual_seed(0)
        return WorkerGradients(nn.Sequential(nn.Linear(7, CLASSES), nn.BatchNorm1d(CLASSES)), 3)

    def seen() -> tuple[object, ...]:
        return (
            torch.get_default_dtype(),
            torch.get_default_device(),
            torch.is_autocast_enabled("cpu"),
            torch.is_inference_mode_enabled(),
        )

    (x, y), plain, engine = batches(False), made(), made()
    expected = plain(x, y, 1, ()), plain.matrix, plain.statistics, plain.logits(x[0])
    contexts = {
        "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
        "double": lambda: torch_defaults(torch.float64, torch.device("cpu")),
        "bfloat16": lambda: torch_defaults(torch.bfloat16, torch.device("cpu")),
        "meta": lambda: torch.device("meta"),
        "inference": torch.inference_mode,
    }
    with contexts[setting]():
        before = seen()
        results = engine(x, y, 1, ()), engine.matrix, engine.statistics, engine.logits(x[0])
        assert seen() == before
    assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


def test_settings_that_a_function_of_the_users_changes_come_back() -> None:
    before = torch.get_default_dtype(), torch.get_default_device()
    with torch_defaults(torch.float32, torch.device("cpu")):
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
    assert (torch.get_default_dtype(), torch.get_default_device()) == before


def test_names_that_come_and_go() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model.register_buffer("table", torch.tensor([float("nan")]))
    state, before = ModuleState(model), marks(model)
    assert marks(model) == before
    model.register_buffer("new", torch.ones(1))
    del model.table
    model[0].weight.data.mul_(2)
    weight = model[0].weight.clone()
    after = marks(model)
    differing = {name for name in {**before, **after} if before.get(name) != after.get(name)}
    assert differing == {"0.weight", "table", "new"}
    state.put_back()
    assert [name for name, _ in model.named_buffers()] == ["table"]
    assert torch.equal(model[0].weight * 2, weight)
