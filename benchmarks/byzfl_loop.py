"""ByzFL's side: its own classes, called in the order in which its benchmark trains."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measuring import synchronise
from benchmarks.processes import Block
from dynabro_cli.core.errors import NotFoundError

PHASES = ("data", "gradients", "momentum", "attack", "aggregation", "send")


@dataclass(frozen=True)
class Settings:
    """Settings of an experiment of ByzFL, under its names."""

    aggregator: str
    attack: str
    attack_parameters: dict[str, float]
    mixed: bool = False
    honest: int = 9
    byzantine: int = 8
    batch_size: int = 32
    momentum: float = 0.9
    model: str = "cnn_mnist"

    @property
    def aggregator_info(self) -> dict[str, Any]:
        return {"name": self.aggregator, "parameters": {"f": self.byzantine}}

    @property
    def pre_aggregators(self) -> list[dict[str, Any]]:
        return [{"name": "NNM", "parameters": {"f": self.byzantine}}] if self.mixed else []


def iterations(
    settings: Settings, data_dir: Path | None, device: str, length: int, *, fixed: bool = False
) -> Iterator[Block]:
    """Train like ByzFL's ``start_training``, without evaluations; yield a block for each ``length``
    iterations.

    With ``fixed`` the data loading is left out: each client has one mini-batch, on the device.
    """
    clients, server, byzantine = _set_up(settings, data_dir, device)
    waiting = [0.0]
    for client in clients:
        if fixed:
            client._sample_train_batch = functools.partial(
                tuple, [part.to(device) for part in client._sample_train_batch()]
            )
        _watch_data(client, waiting)
    while True:
        waiting[0] = 0.0
        before = time.perf_counter()
        seconds = dict.fromkeys(PHASES, 0.0)
        for _ in range(length):
            _iterate(clients, server, byzantine, seconds)
        synchronise(device)
        total = time.perf_counter() - before
        seconds["data"] = waiting[0]
        seconds["gradients"] -= waiting[0]
        yield Block(length, total, seconds if device == "cpu" else {}, length * settings.honest)


def _iterate(clients: list[Any], server: Any, byzantine: Any, seconds: dict[str, float]) -> None:
    """Run one iteration; add the time of each phase to ``seconds``, including the time of data
    within gradients.
    """
    marks = [time.perf_counter()]
    for client in clients:
        client.compute_gradients()
    marks.append(time.perf_counter())
    honest = [client.get_flat_gradients_with_momentum() for client in clients]
    marks.append(time.perf_counter())
    vectors = honest + byzantine.apply_attack(honest)
    marks.append(time.perf_counter())
    server.update_model_with_gradients(vectors)
    marks.append(time.perf_counter())
    state = server.get_dict_parameters()
    for client in clients:
        client.set_model_state(state)
    marks.append(time.perf_counter())
    for phase, begin, end in zip(PHASES[1:], marks, marks[1:], strict=False):
        seconds[phase] += end - begin


def _watch_data(client: Any, waiting: list[float]) -> None:
    """Make a client add the time that it waits for mini-batches to ``waiting``."""
    sample = client._sample_train_batch

    def watched() -> Any:
        before = time.perf_counter()
        batch = sample()
        waiting[0] += time.perf_counter() - before
        return batch

    client._sample_train_batch = watched


def _set_up(settings: Settings, data_dir: Path | None, device: str) -> tuple[list[Any], Any, Any]:
    """Return the honest clients, the server and the Byzantine client."""
    from byzfl import ByzantineClient, Client, DataDistributor, Server
    from byzfl.utils.misc import set_random_seed

    set_random_seed(0)
    train, test = _data(data_dir)
    distribution = {
        "data_distribution_name": "iid",
        "distribution_parameter": 1.0,
        "nb_honest": settings.honest,
    }
    loaders = DataDistributor(
        distribution | {"data_loader": train, "batch_size": settings.batch_size}
    ).split_data()
    common = {
        "model_name": settings.model,
        "device": device,
        "optimizer_name": "SGD",
        "learning_rate": 0.01,
        "weight_decay": 1e-4,
        "milestones": [],
        "learning_rate_decay": 1.0,
    }
    of_clients = common | {
        "loss_name": "CrossEntropyLoss",
        "LabelFlipping": False,
        "momentum": settings.momentum,
        "nb_labels": 10,
        "store_per_client_metrics": False,
    }
    clients = [Client(of_clients | {"training_dataloader": loader}) for loader in loaders]
    rule = {"aggregator_info": settings.aggregator_info, "pre_agg_list": settings.pre_aggregators}
    server = Server(common | rule | {"validation_loader": None, "test_loader": test})
    parameters = settings.attack_parameters | rule | {"f": settings.byzantine}
    byzantine = ByzantineClient(
        {"name": settings.attack, "f": settings.byzantine, "parameters": parameters}
    )
    state = server.get_dict_parameters()
    for client in clients:
        client.set_model_state(state)
    return clients, server, byzantine


def _data(data_dir: Path | None) -> tuple[Any, Any]:
    """Return MNIST's training set as a Subset, and a loader of its test set, both normalised."""
    from torch.utils.data import DataLoader, random_split
    from torchvision import datasets, transforms

    from dynabro_cli.simulation.setup import data_directory

    folder = data_directory(data_dir)
    normalise = transforms.Compose(
        [transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))]
    )
    try:
        train, test = (
            datasets.MNIST(str(folder), train=part, transform=normalise) for part in (True, False)
        )
    except RuntimeError as error:
        raise NotFoundError(
            f"MNIST was not found under {folder}; name its folder with --data-dir or DYNABRO_DATA"
        ) from error
    return random_split(train, [len(train), 0])[0], DataLoader(test, batch_size=100)
