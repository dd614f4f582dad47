"""Models of the user's in runs: mixed samples, frozen layers, and random numbers in ``forward``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dynabro_cli import testing
from dynabro_cli.components.models._api import REGISTRY
from dynabro_cli.components.tasks._api import ImageShape
from dynabro_cli.core.streams import Streams
from tests.cli.conftest import Dynabro
from tests.cli.conftest import dynabro as dynabro
from tests.cli.conftest import folder as folder
from tests.own import fresh
from tests.runs.store.made import read

MODELS = '''
import torch.nn.functional as F
from torch import nn
from dynabro_cli.core.registration.parameters import NoParameters
from dynabro_cli.components.models._api import REGISTRY, any_size

class Body(nn.Module):
    def __init__(self, between):
        super().__init__()
        self.first, self.last, self.between = nn.Linear(64, 12), nn.Linear(12, 10), between

    def forward(self, x):
        return self.last(self.between(self.first(x.flatten(1))))

@REGISTRY.register("mixing", NoParameters, reference="a test", check=any_size)
def mixing(parameters, shape):
    """Features in multiples of their mean length over the mini-batch."""
    return Body(lambda h: h / h.norm(dim=1).mean())

@REGISTRY.register("dropping", NoParameters, reference="a test", check=any_size)
def dropping(parameters, shape):
    """Dropout that is not a layer, also in evaluation mode."""
    return Body(lambda h: F.dropout(h, 0.5))

@REGISTRY.register("frozen", NoParameters, reference="a test", check=any_size)
def frozen(parameters, shape):
    """A frozen first layer."""
    model = Body(F.relu)
    model.first.requires_grad_(False)
    return model

@REGISTRY.register("ice", NoParameters, reference="a test", check=any_size)
def ice(parameters, shape):
    """All layers are frozen."""
    return Body(F.relu).requires_grad_(False)
'''
STATES = '''
import torch
from torch import nn
from dynabro_cli.plugins import model

class Net(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.first, self.last, self.change = nn.Linear(64, 12), nn.Linear(12, 10), change
        self.register_buffer("mean", torch.zeros(12))
        self.register_buffer("n", torch.zeros((), dtype=torch.int64))
        self.table, self.bank, self.other = torch.randn(12), [], nn.Linear(64, 5)

    def forward(self, x):
        return self.change(self, torch.relu(self.first(x.flatten(1))))

def averaged(net, h):
    if net.training:
        net.mean = 0.5 * net.mean + 0.5 * h.detach().mean(0)
        net.n += 1
    return net.last((h - net.mean) * (1 + net.n) + 0.1 * torch.randn_like(h) + net.table)

def banked(net, h):
    net.bank.append(h.detach().mean(0))
    return net.last(h - net.bank[0])

@model("state")
def state(shape, *, kind: str = "averaged"):
    """A state."""
    return Net({
        "averaged": averaged,
        "banked": banked,
        "dict": lambda net, h: {"logits": net.last(h)},
        "aux": lambda net, h: (net.last(h), h) if net.training else net.last(h),
        "tuple": lambda net, h: net.last(h) if net.training else (net.last(h), h),
        "few": lambda net, h: net.other(h.repeat(1, 6)[:, :64]),
        "flat": lambda net, h: net.last(h)[:, 0],
        "single": lambda net, h: net.last(h)[:, None],
        "double": lambda net, h: net.last(h).double(),
        "detached": lambda net, h: net.last(h).detach(),
        "wide": lambda net, h: net.last(h).repeat(1, 100),
    }[kind])

@model("lazy")
def lazy(shape):
    """A layer without a shape."""
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(shape.classes))

@model("wrong")
def wrong(shape):
    """Another type."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, shape.classes)).double()
'''
RUN = (
    "run",
    "--plugin",
    "own.py",
    "--method",
    "momentum:beta=0.5",
    "--budget",
    "60",
    "--batch-size",
    "4",
)


@pytest.fixture(autouse=True)
def _plugin(folder: Path) -> object:
    (folder / "own.py").write_text(MODELS + STATES)
    with fresh():
        yield


@pytest.mark.thorough
def test_a_model_that_mixes_samples_is_reported_once(dynabro: Dynabro, folder: Path) -> None:
    note = (
        "model 'mixing': gradients by vmap(grad): the shared pass gives other gradients "
        "than each worker's own pass"
    )
    outcome = dynabro(*RUN, "--model", "mixing")
    assert outcome.code == 0
    assert outcome.err.count(note) == 1
    how = json.loads(read(folder / "results.db", "SELECT versions FROM environments")[0][0])
    assert how["gradients"] == "vmap(grad)"
    assert how["gradients_reason"].startswith("the shared pass gives other gradients")
    (folder / "both.yaml").write_text(
        "name: both\nbase: {model: mixing, budget: 20}\nseeds: 1..3\n"
    )
    outcome = dynabro("sweep", "both.yaml", "--plugin", "own.py")
    assert outcome.code == 0
    assert outcome.err.count(note) == 1


def test_a_check_warns_of_a_model_that_mixes_samples(folder: Path) -> None:
    with pytest.warns(RuntimeWarning, match="gradients by vmap"):
        testing.check_model("mixing", plugin=folder / "own.py")


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:gradients by:RuntimeWarning")
def test_random_numbers_in_forward_come_from_the_seed(folder: Path) -> None:
    """The check makes a run twice, and resumes it from a checkpoint; evaluations draw, too."""
    assert testing.check_model("dropping", plugin=folder / "own.py") == 65 * 12 + 13 * 10


@pytest.mark.thorough
def test_frozen_layers_do_not_move(dynabro: Dynabro, folder: Path) -> None:
    assert dynabro(*RUN, "--model", "frozen", "--save-model", "model.safetensors").code == 0
    assert read(folder / "results.db", "SELECT dimension FROM runs") == [(13 * 10,)]
    saved = load_file("model.safetensors")
    torch.manual_seed(Streams(0).integer("init", 0))
    start = REGISTRY.parse("frozen").build(ImageShape(1, 8, 8, 10)).state_dict()
    assert [name for name, value in start.items() if torch.equal(saved[name], value)] == [
        "first.weight",
        "first.bias",
    ]
    outcome = dynabro("evaluate", "model.safetensors", "--plugin", "own.py", "--json")
    stored = read(
        folder / "results.db", "SELECT test_accuracy FROM evaluations ORDER BY budget DESC LIMIT 1"
    )[0][0]
    assert json.loads(outcome.out)["accuracy"] == stored
    assert testing.check_model("frozen") == 13 * 10


def test_a_model_that_is_frozen_whole(dynabro: Dynabro) -> None:
    outcome = dynabro(*RUN, "--model", "ice")
    assert outcome.code == 2
    assert "no parameter to train" in outcome.err


def test_a_run_of_a_model_with_state_is_resumed_and_evaluated_with_the_same_numbers(
    dynabro: Dynabro, folder: Path
) -> None:
    """Buffers that are averaged or stay, a constant that no file saves, and draws in evaluation."""
    with pytest.warns(RuntimeWarning, match="forward changes mean, n; each pass begins with the f"):
        assert testing.check_model("state", plugin=folder / "own.py") == 65 * 12 + 13 * 10 + 65 * 5
    outcome = dynabro(*RUN, "--model", "state", "--seed", "3", "--save-model", "model.safetensors")
    assert outcome.code == 0
    assert "each pass begins with the first value of n" in outcome.err
    saved = load_file("model.safetensors")
    assert (int(saved["n"]), bool(saved["mean"].any())) == (0, True)
    torch.rand(1)
    evaluated = json.loads(
        dynabro("evaluate", "model.safetensors", "--plugin", "own.py", "--json").out
    )
    stored = read(
        folder / "results.db",
        "SELECT test_accuracy, test_loss FROM evaluations ORDER BY budget DESC LIMIT 1",
    )
    assert (evaluated["accuracy"], evaluated["loss"]) == tuple(stored[0])


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("state:kind=banked", "keeps state in `self.bank` from one mini-batch to the next"),
        ("state:kind=dict", "returned a dict; expected logits [n, 10]"),
        ("state:kind=aux", "returned a tuple; expected logits [n, 10]"),
        ("state:kind=tuple", "returned a tuple; expected logits [n, 10]"),
        ("state:kind=few", "returned torch.float32 [4, 5]; expected logits [n, 10]"),
        ("state:kind=flat", "returned torch.float32 [4]; expected logits [n, 10]"),
        ("state:kind=single", "returned torch.float32 [4, 1, 10]; expected logits [n, 10]"),
        ("state:kind=double", "returned torch.float64 [4, 10]; expected logits [n, 10]"),
        ("state:kind=detached", "returned outputs without a gradient. Try: a forward without"),
        ("lazy", "its parameter 1.weight has no shape yet"),
        ("wrong", "its parameter 1.weight has the type torch.float64"),
    ],
)
def test_a_model_that_no_run_can_train_is_refused_before_anything_is_stored(
    dynabro: Dynabro, folder: Path, model: str, text: str
) -> None:
    outcome = dynabro(*RUN, "--model", model)
    assert outcome.code == 78
    assert f"model '{model}'" in outcome.err
    assert text in outcome.err
    assert len(outcome.err.strip().splitlines()) == 2  # the run, and the error
    assert read(folder / "results.db", "SELECT count(*) FROM runs") == [(0,)]


def test_more_logits_than_classes_are_legal(dynabro: Dynabro) -> None:
    assert dynabro(*RUN, "--model", "state:kind=wide").code == 0


def test_default_types_of_a_plugin_do_not_reach_a_run(dynabro: Dynabro, folder: Path) -> None:
    run = *RUN, "--model", "frozen", "--jobs", "0"
    assert dynabro(*run).code == 0
    (folder / "double.py").write_text("import torch\ntorch.set_default_dtype(torch.float64)\n")
    try:
        assert dynabro(*run, "--plugin", "double.py", "--db", "other.db").code == 0
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    query = "SELECT test_accuracy, test_loss, train_loss FROM evaluations ORDER BY budget"
    assert read(folder / "results.db", query) == read(folder / "other.db", query)
