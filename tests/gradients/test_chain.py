"""Gradients without autograd equal autograd's, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dynabro_cli.core.machine import native
from dynabro_cli.gradients import WorkerGradients, engine
from dynabro_cli.gradients.layers.chain import Chain, chain_of
from dynabro_cli.gradients.layers.twin import twin
from dynabro_cli.gradients.layers.worker_layers import Shared
from tests.tables import each_row


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 20),
        nn.ReLU(),
        nn.Linear(20, 7, bias=False),
        nn.ReLU(),
        nn.Linear(7, 10),
    )


def cnn() -> nn.Sequential:
    layers = [
        nn.Conv2d(1, 6, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 4, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4, 10))


MODELS = {
    "mlp": mlp,
    "logistic": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
    "cnn": cnn,
}


def gradients(name: str, how: str, workers: int, batches: int) -> list[Tensor]:
    """Return losses and gradients of two calls, the first of which finds out how to compute, for 3
    of 4 workers.
    """
    torch.manual_seed(0)
    model = WorkerGradients(MODELS[name](), 4, compile=how)
    found = []
    for seed in (1, 2):
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(workers, batches * 5, 1, 8, 8, generator=generator)
        labels = torch.randint(0, 10, (workers, batches * 5), generator=generator)
        found += [model(inputs, labels, batches, []), model.matrix[:workers].clone()]
    assert model.kind == engine.SHARED
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize(
    ("name", "how"), [("mlp", "off"), ("logistic", "off"), ("mlp", "on"), ("cnn", "on")]
)
def test_equal_to_autograd(
    name: str, how: str, batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "on" and native.compiler() is None:
        pytest.skip("there is no C++ compiler")
    calls: list[int] = []
    plain = Chain.losses

    def counted(self: Chain, x: Tensor, labels: Tensor, workers: int) -> Tensor:
        calls.append(workers)
        return plain(self, x, labels, workers)

    monkeypatch.setattr(Chain, "losses", counted)
    ours = gradients(name, how, 3, batches)
    assert calls == [3], "the second call is the chain's"
    monkeypatch.setattr(engine, "chain_of", lambda _: None)
    expected = gradients(name, how, 3, batches)
    assert calls == [3]
    for found, wanted in zip(ours, expected, strict=True):
        assert torch.equal(found, wanted)
        assert found.abs().sum() > 0


@each_row(
    "model",
    [
        nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Softmax(1)),
        nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5), nn.Linear(8, 10)),
        nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10)),
        nn.Sequential(nn.Linear(8, 10), nn.Flatten(), nn.Linear(80, 10)),
        nn.Sequential(nn.Flatten(2), nn.Linear(64, 10)),
        nn.Linear(64, 10),
    ],
)
def test_other_models_are_left_to_autograd(model: nn.Module) -> None:
    assert chain_of(twin(model, Shared(1))) is None


def test_blocks_that_are_not_compiled_are_left_to_autograd() -> None:
    chain = chain_of(twin(cnn(), Shared(1)))
    assert chain is not None
    assert not chain.serves(torch.zeros(2, 1, 8, 8))


def test_the_type_of_the_inputs() -> None:
    chain = chain_of(twin(mlp(), Shared(1)))
    assert chain is not None
    assert chain.serves(torch.zeros(2, 1, 8, 8))
    assert not chain.serves(torch.zeros(2, 1, 8, 8, dtype=torch.bfloat16))
