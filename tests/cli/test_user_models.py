"""Models of the user's in runs: mixed samples, frozen layers, and random numbers in ``forward``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dynabro_cli import testing
from dynabro_cli.models._api import REGISTRY
from dynabro_cli.streams import Streams
from dynabro_cli.tasks._api import ImageShape
from tests.cli.conftest import Dynabro
from tests.cli.conftest import dynabro as dynabro
from tests.cli.conftest import folder as folder
from tests.own import fresh
from tests.store.made import read

MODELS = '''
import torch.nn.functional as F
from torch import nn
from dynabro_cli.components.parameters import NoParameters
from dynabro_cli.models._api import REGISTRY, any_size

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
    (folder / "own.py").write_text(MODELS)
    with fresh():
        yield


@pytest.mark.slow
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
